"""Does drafting change what a model says? Plain and speculative greedy outputs side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vegas_spec.engine.llm import LLM
from vegas_spec.engine.outputs import RequestOutput, Update
from vegas_spec.engine.prompts import Prompt
from vegas_spec.engine.sampling_params import SamplingParams
from vegas_spec.ties import tie_gap


@dataclass(frozen=True)
class Difference:
    """A place where the output with drafts is not what the plain model says after the same text.

    Attributes
    ----------
    gap : float
        By how much the plain model, given the common text, prefers its own token: difference of the two logits.
    tie : bool
        Whether the gap is within what rounding explains.

    """

    prompt: int
    position: int
    plain_token: int | None
    plain_text: str
    vegas_token: int | None
    vegas_text: str
    gap: float
    tie: bool


@dataclass(frozen=True)
class EqualityReport:
    """What `judge` found."""

    compared: int
    """Tokens compared: the longer output of each prompt counts."""
    agreeing: int
    """Tokens that are the plain model's own after the text before them; none after a fault."""
    differences: list[Difference]
    plain: list[RequestOutput]
    vegas: list[RequestOutput]

    @property
    def identical(self) -> bool:
        """Whether every token of every prompt is the same."""
        return not self.differences

    @property
    def ties(self) -> list[Difference]:
        """Differences that rounding explains."""
        return [difference for difference in self.differences if difference.tie]

    @property
    def faults(self) -> list[Difference]:
        """Differences that rounding does not explain."""
        return [difference for difference in self.differences if not difference.tie]

    def to_dict(self) -> dict[str, Any]:
        """Give the report, fit for JSON."""
        stats = [output.stats for output in self.vegas]
        iterations = sum(each.iterations for each in stats)
        return {
            "identical": self.identical,
            "compared": self.compared,
            "agreeing": self.agreeing,
            "first_difference": asdict(self.differences[0]) if self.differences else None,
            "ties": len(self.ties),
            "faults": len(self.faults),
            "acceptance_length": sum(each.committed for each in stats) / iterations if iterations else 0.0,
            "prompts": len(self.plain),
            "stats": [each.to_dict() for each in stats],
        }


Watch = Callable[[str, Update], None]
"""Called with the name of a run (``"plain"``, ``"vegas"``, ``"after a tie"``) and every update, to show progress."""


def compare(
    plain: LLM, vegas: LLM, prompts: Sequence[Prompt], max_tokens: int, watch: Watch | None = None
) -> EqualityReport:
    """Complete prompts greedily with both engines and `judge` the outputs.

    Parameters
    ----------
    plain, vegas : LLM
        Engines over the same model.
    prompts : sequence
        What to complete.
    max_tokens : int
        Of each output.
    watch : callable, optional
        See `Watch`.

    """
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    expected, got = (_run(llm, name, prompts, params, watch) for name, llm in (("plain", plain), ("vegas", vegas)))
    return judge(plain, expected, got, watch=watch)


def judge(
    plain: LLM,
    expected: Sequence[RequestOutput],
    got: Sequence[RequestOutput],
    *,
    ignore_eos: bool = False,
    watch: Watch | None = None,
) -> EqualityReport:
    """Compare finished greedy outputs of the same prompts token by token, to their ends.

    A difference is judged by feeding the common text to the plain model: a gap of its logits within `tie_gap` is a
    numerical tie. After a tie the outputs are different texts, so the plain model goes on from the text with drafts,
    tie included, and is compared with the rest of it; after any other difference nothing is.

    Parameters
    ----------
    plain : LLM
        Decodes without drafts.
    expected, got : sequence of RequestOutput
        What it said, and what was said with drafts.
    ignore_eos : bool
        Whether the outputs go on after the end of a text.
    watch : callable, optional
        See `Watch`.

    """
    differences, compared, agreeing = [], 0, 0
    for number, (one, other) in enumerate(zip(expected, got, strict=True)):
        plain_tokens, tokens = one.outputs[0].token_ids, other.outputs[0].token_ids
        start = 0  # of what was not compared yet; the plain tokens before it are those of the other text
        while True:
            longer = max(len(plain_tokens), len(tokens))
            pairs = zip(plain_tokens[start:], tokens[start:], strict=False)
            shared = min(len(plain_tokens), len(tokens))
            at = next((place for place, (a, b) in enumerate(pairs, start) if a != b), shared)
            agreeing += at - start
            if at == longer:
                break
            found = _difference(plain, number, at, [*other.prompt_token_ids, *tokens[:at]], plain_tokens, tokens)
            differences.append(found)
            start = at + 1
            if not found.tie:
                break
            plain_tokens = tokens[:start]
            if start < len(tokens):
                text = [*other.prompt_token_ids, *tokens[:start]]
                rest = SamplingParams(temperature=0.0, max_tokens=len(tokens) - start, ignore_eos=ignore_eos)
                [output] = _run(plain, "after a tie", [{"prompt_token_ids": text}], rest, watch)
                plain_tokens = [*plain_tokens, *output.outputs[0].token_ids]
        compared += longer
    return EqualityReport(compared, agreeing, differences, list(expected), list(got))


def _run(
    llm: LLM, name: str, prompts: Sequence[Prompt], params: SamplingParams, watch: Watch | None
) -> list[RequestOutput]:
    done: dict[str, RequestOutput] = {}
    for update in llm.stream(prompts, params):
        done[update.output.request_id] = update.output
        if watch is not None:
            watch(name, update)
    return [done[str(number)] for number in range(len(prompts))]


def _difference(
    plain: LLM, prompt: int, at: int, text: list[int], plain_tokens: Sequence[int], tokens: Sequence[int]
) -> Difference:
    pair = [each[at] if at < len(each) else None for each in (plain_tokens, tokens)]
    if None in pair:
        # One output ends where the other goes on, after the same tokens: no rounding does that.
        gap = float("inf")
    else:
        logits = plain.next_token_logits(text)
        gap = float(logits[pair[0]] - logits[pair[1]])
    allowed = tie_gap(plain.model.dtype)
    texts = ["" if token is None else plain.decode([token]) for token in pair]
    return Difference(prompt, at, pair[0], texts[0], pair[1], texts[1], gap, abs(gap) <= allowed)
