"""Engines as they are really run: lengths that change, other processes, several ranks, and a server with clients."""

import asyncio
import json
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import serving_models
from engine_process import EngineProcess, child_environment
from serving_prompts import VEGAS, prompts

LIMITS = {"max_model_len": 256, "max_num_seqs": 4, "num_gpu_blocks_override": 40}


@pytest.fixture(scope="module")
def expected(engines):
    """What stock vLLM says to three prompts."""
    engines.start("reference", "qwen3", **LIMITS)
    return engines.generate("reference", prompts(1, 40, 90), {"max_tokens": 12})


def test_dynamic_lengths(engines, expected):
    """Draft lengths by batch size: 3 for one request, 1 for two, none for three."""
    vegas = {**VEGAS, "num_speculative_tokens_per_batch_size": [[1, 1, 3], [2, 2, 1], [3, 4, 0]]}
    engines.start("dynamic", "qwen3", speculative_config=vegas, **LIMITS)
    options = [{"max_tokens": length} for length in (6, 9, 12)]
    said = engines.generate("dynamic", prompts(1, 40, 90), options)
    tokens = [output["tokens"] for [output] in said]
    assert tokens == [output["tokens"][: o["max_tokens"]] for [output], o in zip(expected, options, strict=True)]
    assert engines.counters("dynamic")["drafted"] > 0


def test_tensor_parallel_in_other_processes(model_folder, expected):
    """Two ranks over gloo, the engine core in its own process: the plugin is loaded in all four."""
    process = EngineProcess(model_folder, VLLM_ENABLE_V1_MULTIPROCESSING="1")
    try:
        parallel = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
        process.start("parallel", "qwen3", speculative_config=VEGAS, **LIMITS, **parallel)
        assert process.generate("parallel", prompts(1, 40, 90), {"max_tokens": 12}) == expected
        assert process.counters("parallel")["accepted"] > 0
    finally:
        process.close()


@pytest.fixture(scope="module")
def server(model_folder):
    """``vegas serve``, which calls vLLM's own command; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = serving_models.save_tiny_model("qwen3", model_folder)
    vegas = [f"-sc.{key.replace('_', '-')}={json.dumps(value)}" for key, value in VEGAS.items() if key != "method"]
    limits = ["--max-model-len=256", "--max-num-seqs=8", "--block-size=32", "--dtype=float32", "--enforce-eager"]
    command = ["serve", path, "--spec-method=vegas", *vegas, *limits, f"--port={port}", "--served-model-name=tiny"]
    command += ["--num-speculative-tokens=3"]
    with open(model_folder / "server.log", "w") as log:
        process = subprocess.Popen(
            [Path(sys.executable).with_name("vegas"), *command],
            env=child_environment(VLLM_ENABLE_V1_MULTIPROCESSING="1"),
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=model_folder,
        )
        address = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 180
        while True:
            try:
                urllib.request.urlopen(f"{address}/health", timeout=5)
                break
            except (urllib.error.URLError, ConnectionError):
                if process.poll() is not None or time.monotonic() > deadline:
                    process.kill()
                    pytest.fail(f"the server did not start; its log: {log.name}")
                time.sleep(1)
        yield address
        process.terminate()
        process.wait(timeout=60)


def test_server(server, expected):
    """The official client, streaming; 32 at once, one of which goes away; metrics that count drafts."""
    openai = pytest.importorskip("openai")
    tokens = prompts(1, 40, 90)
    texts = [output["text"] for [output] in expected]

    async def ask(client, number):
        stream = await client.completions.create(
            model="tiny",
            prompt=tokens[number % 3],
            max_tokens=12,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        parts = []
        async for event in stream:
            parts.append(event.choices[0].text)
            if number == 5:
                await stream.close()
                return None
        return "".join(parts)

    async def everyone():
        async with openai.AsyncOpenAI(base_url=f"{server}/v1", api_key="none") as client:
            return await asyncio.gather(*(ask(client, number) for number in range(32)))

    answers = asyncio.run(everyone())
    assert answers == [None if number == 5 else texts[number % 3] for number in range(32)]
    before = metrics(server)
    assert before["vllm:spec_decode_num_accepted_tokens_total"] > 0
    assert before["vegas:kv_budget"] == VEGAS["kv_budget"]
    assert before["vegas:drafting"] == 1
    assert before["vegas:num_speculative_tokens"] == 3
    assert before['vegas:request_steps_total,drafting="true"'] >= before["vllm:spec_decode_num_drafts_total"] > 0
    assert before['vegas:request_steps_total,drafting="false"'] == 0

    # A request that wants no drafts, and one that does not say clearly what it wants.
    with openai.OpenAI(base_url=f"{server}/v1", api_key="none") as client:
        asked = {"model": "tiny", "prompt": tokens[2], "max_tokens": 12, "temperature": 0}
        answer = client.completions.create(**asked, extra_body={"ignore_eos": True, "vllm_xargs": {"vegas": False}})
        assert answer.choices[0].text == texts[2]
        with pytest.raises(openai.BadRequestError, match="must be true or false; got 'no'"):
            client.completions.create(**asked, extra_body={"vllm_xargs": {"vegas": "no"}})
    after = metrics(server)
    assert after['vegas:request_steps_total,drafting="false"'] == 12
    assert after["vegas:drafting"] == after["vegas:num_speculative_tokens"] == 0
    assert after['vegas:drafting_changes_total,to="plain"'] == 1
    assert after["vllm:spec_decode_num_drafts_total"] == before["vllm:spec_decode_num_drafts_total"]


def metrics(server):
    """What the server counts, by name and by the label that tells series of one name apart."""
    with urllib.request.urlopen(f"{server}/metrics") as page:
        lines = page.read().decode().splitlines()
    found = {}
    for line in lines:
        name, labels, value = (
            re.fullmatch(r"([\w:]+)(?:\{(.*)\})? (\S+)", line).groups() if line[0] != "#" else 3 * [""]
        )
        label = [part for part in (labels or "").split(",") if part.startswith(("drafting=", "to="))]
        found[",".join([name, *label])] = value and float(value)
    return found
