"""``vegas doctor --self-test``: engines with and without Vegas, in a process that the doctor starts."""

from engine_process import child_environment

from vegas_spec.vllm.start import doctor


def test_self_test(monkeypatch):
    """The tiny random model is written, served twice, and the outputs compared."""
    for name, value in child_environment().items():
        monkeypatch.setenv(name, value)
    [check] = doctor.self_test(None)
    assert check.status == "PASS", check.detail
    assert check.detail.startswith("32 tokens are the same with and without Vegas: a tiny random model, float32, cpu")
