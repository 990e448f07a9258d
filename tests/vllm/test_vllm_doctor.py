"""``vegas doctor --self-test``: engines with and without Vegas, in a process that the doctor starts."""

from engine_process import child_environment

from vegas_spec.vllm.start import self_test


def test_self_test(monkeypatch):
    """The tiny random model is written, served twice, and the outputs compared."""
    for name, value in child_environment().items():
        monkeypatch.setenv(name, value)
    status, detail = self_test.run(None)
    assert status == "PASS", detail
    assert detail.startswith("32 tokens are the same with and without Vegas: a tiny random model, float32, cpu")
