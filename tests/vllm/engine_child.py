"""Runs vLLM engines in a process of its own, at the command of a test; see `engine_process`.

Engines run in-process here (no engine core of their own), so that a test can look into their parts.
"""

import argparse
import contextlib
import copy
import inspect
import itertools
import os
import sys
from collections import Counter
from multiprocessing.connection import Client
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import serving_models
import torch
import triton.language as tl
import vllm.v1.worker.gpu.model_runner as runner
from engine_graphs import Graphs
from prometheus_client import REGISTRY
from transformers import AutoModelForCausalLM
from vllm import LLM, SamplingParams
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import StructuredOutputsParams
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.sample.ops import topk_topp_sampler
from vllm.v1.worker.gpu.spec_decode import rejection_sampler_utils

from vegas_spec.pacing.costs import CostModel
from vegas_spec.vllm.scheduler import draft_scheduler, metrics
from vegas_spec.vllm.scheduler.draft_scheduler import DraftScheduler
from vegas_spec.vllm.start import hooks, plugin, serve
from vegas_spec.vllm.worker import flash_attention, memory, speculator
from vegas_spec.vllm.worker.memory import MemoryLimits, memory_limits

# What the interpreter cannot run of vLLM's own sampling: a top-k kernel, which vLLM has in torch too, and a function of
# the device's library.
topk_topp_sampler.HAS_TRITON = False
rejection_sampler_utils.tldevice = SimpleNamespace(log1p=lambda x: tl.log(1.0 + x))

COMMON = {
    "dtype": "float32",
    "enforce_eager": True,
    "disable_log_stats": False,
    "block_size": 32,
    "kv_cache_memory_bytes": 128 * 2**20,
    "seed": 0,
}


def sampling(options):
    """Sampling parameters from plain values; greedy, and past the end token, unless the options say otherwise."""
    options = {"temperature": 0.0, "ignore_eos": True, **options}
    if "json" in options:
        options["structured_outputs"] = StructuredOutputsParams(json=options.pop("json"))
    return SamplingParams(**options)


def plain(output):
    """What one sequence says, as plain values."""
    logprobs = output.logprobs and [{k: v.logprob for k, v in step.items()} for step in output.logprobs]
    return {
        "tokens": list(output.token_ids),
        "text": output.text,
        "finish": output.finish_reason,
        "stop": output.stop_reason,
        "logprobs": logprobs,
    }


def tally(llm):
    """Count what the engine's scheduler sees; vLLM's own metrics are those of the process's latest engine."""
    core = getattr(llm.llm_engine.engine_core, "engine_core", None)
    if core is None:
        return None
    counted = {"drafted": 0, "accepted": 0, "preempted": 0, "lengths": Counter()}
    stats, preempt = core.scheduler.make_spec_decoding_stats, core.scheduler._preempt_request

    def make_spec_decoding_stats(*args, **kwargs):
        counted["drafted"] += kwargs["num_draft_tokens"]
        counted["lengths"][kwargs["num_draft_tokens"]] += 1
        counted["accepted"] += kwargs["num_accepted_tokens"]
        return stats(*args, **kwargs)

    def preempt_request(*args, **kwargs):
        counted["preempted"] += 1
        return preempt(*args, **kwargs)

    core.scheduler.make_spec_decoding_stats = make_spec_decoding_stats
    core.scheduler._preempt_request = preempt_request
    return counted


class Engines(Graphs):
    """What a test can ask for."""

    def __init__(self, folder):
        self.folder = folder
        self.engines = {}
        self.tallies = {}
        self.pacers = {}

    def start(self, name, model, **options):
        """Start an engine of a tiny model, or of a folder's, under a name; nothing if it runs already."""
        if name not in self.engines:
            path = model if isinstance(model, Path) else serving_models.save_tiny_model(model, self.folder)
            self.engines[name] = LLM(str(path), **{**COMMON, **options})
            self.tallies[name] = tally(self.engines[name])

    def cost_of_a_pass(self, **cost):
        """Have engines that start from now on take this for what a forward pass reads."""
        draft_scheduler.estimate_cost = lambda vllm_config: CostModel(**cost)

    def room_for_scores(self, tokens):
        """Have engines that start from now on score this many tokens per step at most; None ends it."""
        limited = lambda *args: MemoryLimits(tokens, None)  # noqa: E731
        speculator.memory_limits = memory_limits if tokens is None else limited

    def scores_dropped(self, name):
        """How often a request found no room for its scores."""
        return int(self.runner(name).speculator.draft_kv.plan.dropped)

    def gpu_backend(self):
        """What the GPU backend is composed of here, and which hooks of it vLLM lacks; it cannot run here."""
        backend = flash_attention.VegasFlashAttentionBackend
        impl, builder = backend.get_impl_cls(), backend.get_builder_cls()
        open_methods = {*impl.__abstractmethods__, *builder.__abstractmethods__}
        return backend.get_name(), impl.__mro__[2].__name__, sorted(open_methods), hooks.faults(hooks.CUDA)

    def runner(self, name):
        return self.engines[name].llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner

    def describe(self, name):
        """Which parts the engine is made of."""
        runner = self.runner(name)
        layers = self.engines[name].llm_engine.vllm_config.compilation_config.static_forward_context
        return {
            "runner": [base.__module__ for base in type(runner).__mro__],
            "speculator": type(runner.speculator).__name__,
            "attention": sorted({type(layer.impl).__name__ for layer in layers.values() if hasattr(layer, "impl")}),
            "scheduler": type(self.engines[name].llm_engine.engine_core.engine_core.scheduler).__name__,
        }

    def generate(self, name, prompts, options):
        """Outputs of token prompts; `options` for all of them, or a list with those of each."""
        params = [sampling(o) for o in options] if isinstance(options, list) else sampling(options)
        prompts = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        results = self.engines[name].generate(prompts, params, use_tqdm=False)
        return [[plain(output) for output in result.outputs] for result in results]

    def configure(self, model, arguments=(), twice=False, **options):
        """The configuration that vLLM makes of these options, or of this command line; nothing is started."""
        path = str(serving_models.save_tiny_model(model, self.folder))
        if arguments:
            parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
            args = EngineArgs.from_cli_args(parser.parse_args(["--model", path, "--dtype", "float32", *arguments]))
        else:
            args = EngineArgs(path, **{**COMMON, **options})
        before = copy.deepcopy(vars(args))
        config = args.create_engine_config()
        if twice:
            config = args.create_engine_config()
        speculative = config.speculative_config
        names = ("speculative_config", "spec_method", "spec_tokens", "attention_backend", "additional_config")
        return {
            "method": speculative and speculative.method,
            "num_speculative_tokens": speculative and speculative.num_speculative_tokens,
            "draft_sample_method": speculative and speculative.draft_sample_method,
            "options": config.additional_config.get("vegas"),
            "backend": config.attention_config.backend and config.attention_config.backend.name,
            "lookahead": config.num_lookahead_tokens,
            "schedule": speculative and speculative.num_speculative_tokens_per_batch_size,
            "max_num_seqs": config.scheduler_config.max_num_seqs,
            "v2": config.use_v2_model_runner,
            "arguments_kept": all(getattr(args, name) == before[name] for name in names),
        }

    def budget_shown(self, model, device_bytes, **options):
        """What the gauge of the budget says in an engine with these options, on a device with this much memory."""
        path = str(serving_models.save_tiny_model(model, self.folder))
        config = EngineArgs(path, **{**COMMON, **options}).create_engine_config()
        with mock.patch.object(memory, "device_bytes", return_value=device_bytes):
            metrics.VegasStatLogger(config, [0])
        [gauge] = [each for each in REGISTRY.collect() if each.name == "vegas:kv_budget"]
        return gauge.samples[0].value

    def draft_scheduler(self, name):
        return DraftScheduler.of(self.engines[name].llm_engine.engine_core.engine_core.scheduler)

    def believe_in_drafts(self, name):
        """From now on have an engine decide on drafting as if every draft were accepted."""
        ours = self.draft_scheduler(name)
        observe = ours.observe
        ours.observe = lambda request, drafted, accepted: observe(request, drafted, drafted)

    def adapt_by(self, name, length_by_step):
        """Have an engine draft these lengths, one after the other, and over again; what it finds best if None."""
        ours = self.draft_scheduler(name)
        own = self.pacers.setdefault(name, ours.pacer)
        lengths = itertools.cycle(length_by_step or ())
        scripted = SimpleNamespace(
            decide=lambda *step: next(lengths), observe=lambda *result: None, forget=lambda request: None
        )
        ours.pacer = own if length_by_step is None else scripted

    def stop_the_clock(self):
        """Have no step timed: what it costs is then what `cost_of_a_pass` says."""
        draft_scheduler.clock = lambda: 0.0

    def lengths_seen(self, name):
        """How often each number of drafts was verified."""
        return dict(self.tallies[name]["lengths"])

    def check_arguments(self, arguments):
        """What a server's arguments lack, by vLLM's parser."""
        return serve.check_arguments(arguments, [])

    def check_hooks(self):
        return hooks.check_hooks()

    def register_again(self):
        """Whether another registration changes anything of what was replaced."""
        owners = (
            (EngineArgs, "create_engine_config"),
            (VllmConfig, "num_lookahead_tokens"),
            (runner, "init_speculator"),
        )
        before = [vars(owner)[name] for owner, name in owners]
        plugin.register()
        plugin.register()
        return before == [vars(owner)[name] for owner, name in owners]

    def register_without(self, hook):
        """A stock configuration's method, and what asking for Vegas says, after a registration that misses a hook."""
        missing = hooks.Hook(hook, "called", "test")
        table = hooks.CONFIGURATION
        create = vars(EngineArgs)["create_engine_config"]
        try:
            hooks.CONFIGURATION = (*table, missing)
            EngineArgs.create_engine_config = create.__wrapped__
            plugin.register()
            plain = self.configure("qwen3")["method"]
            try:
                self.configure("qwen3", speculative_config={"method": "vegas"})
            except ValueError as error:
                return plain, str(error)
        finally:
            hooks.CONFIGURATION = table
            EngineArgs.create_engine_config = create

    def rpc(self, name, method, *args):
        """What the engine's workers answer."""
        return self.engines[name].collective_rpc(method, args=args)

    def source_tokens(self, name, length):
        """That many tokens of Python's own source."""
        text = Path(inspect.getsourcefile(argparse)).read_text(encoding="utf-8")
        return self.engines[name].get_tokenizer().encode(text)[:length]

    def counters(self, name):
        """Drafted and accepted tokens, and preemptions, since the engine's start."""
        if self.tallies[name] is not None:
            return dict(self.tallies[name])
        wanted = {"vllm:spec_decode_num_draft_tokens": "drafted", "vllm:spec_decode_num_accepted_tokens": "accepted"}
        return {wanted[m.name]: m.value for m in self.engines[name].get_metrics() if m.name in wanted}

    def corrupt_drafts(self, name, share, seed=0):
        """From now on replace this share of the drafted tokens by random ones; 0 ends it."""
        drafter = self.runner(name).speculator
        drafter.__dict__.pop("sample_draft", None)
        if share == 0:
            return
        original = drafter.sample_draft
        generator = torch.Generator().manual_seed(seed)

        def sample_draft(*args, **kwargs):
            tokens = original(*args, **kwargs)
            wrong = torch.rand(tokens.shape, generator=generator) < share
            return torch.where(wrong, torch.randint(0, 256, tokens.shape, generator=generator), tokens)

        drafter.sample_draft = sample_draft

    def draft_support(self, name):
        """Between how many and how many tokens the latest drafts of each request were drawn."""
        support = (self.runner(name).speculator.draft_logits > -torch.inf).sum(-1)
        return int(support.min()), int(support.max())

    def bias_drafts(self, name, size, seed=0):
        """From now on add noise of this size to the draft's logits, so that its distribution is a wrong one."""
        drafter = self.runner(name).speculator
        original = type(drafter).compute_draft_logits
        noise = size * torch.randn(serving_models.VOCAB, generator=torch.Generator().manual_seed(seed))
        drafter.compute_draft_logits = lambda *args: original(drafter, *args) + noise

    def exact_distribution(
        self, model, prompt, length, temperature, top_k, top_p, repetition_penalty, min_p=0.0, logit_bias=None
    ):
        """Probability of every continuation of this length under plain sampling, computed with transformers."""
        path = serving_models.save_tiny_model(model, self.folder)
        reference = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        continuations = {(): 1.0}
        for _ in range(length):
            longer = {}
            tokens = torch.tensor([[*prompt, *said] for said in continuations])
            with torch.no_grad():
                logits = reference(tokens).logits[:, -1]
            for token, bias in (logit_bias or {}).items():
                logits[:, token] += bias
            seen = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, tokens, True)
            penalised = torch.where(logits > 0, logits / repetition_penalty, logits * repetition_penalty)
            logits = torch.where(seen, penalised, logits) / temperature
            probs = logits.softmax(-1)
            logits = logits.masked_fill(probs < min_p * probs.amax(-1, keepdim=True), -torch.inf)
            best, ids = logits.topk(top_k)
            probs = best.softmax(-1)
            probs = probs * (probs.cumsum(-1) - probs < top_p)
            probs = probs / probs.sum(-1, keepdim=True)
            for row, (said, so_far) in enumerate(continuations.items()):
                for token, probability in zip(ids[row].tolist(), probs[row].tolist(), strict=True):
                    if probability > 0:
                        longer[(*said, token)] = so_far * probability
            continuations = longer
        return continuations

    def abort_some(self, name, prompts, options, aborted, after):
        """Outputs of the prompts that are not aborted when the engine has made `after` steps."""
        engine = self.engines[name].llm_engine
        for index, prompt in enumerate(prompts):
            engine.add_request(str(index), {"prompt_token_ids": list(prompt)}, sampling(options))
        done, steps = {}, 0
        while engine.has_unfinished_requests():
            for result in engine.step():
                if result.finished:
                    done[int(result.request_id.split("-")[0])] = plain(result.outputs[0])
            steps += 1
            if steps == after:
                engine.abort_request([str(index) for index in aborted])
        return {index: output for index, output in done.items() if index not in aborted}


def main(address, folder):
    engines = Engines(Path(folder))
    with Client(address) as parent, contextlib.suppress(EOFError):
        while True:
            method, args, kwargs = parent.recv()
            try:
                answer = ("value", getattr(engines, method)(*args, **kwargs))
            except Exception as error:
                answer = ("error", f"{type(error).__name__}: {error}")
            parent.send(answer)

    for name, llm in engines.engines.items():
        if engines.tallies[name] is None:
            # This engine has processes of its own, which would outlive this one.
            llm.llm_engine.engine_core.shutdown()
    # The rest ends with the process; taking engines apart one by one takes vLLM long.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
