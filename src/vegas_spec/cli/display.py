"""What a running generation looks like on a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

if TYPE_CHECKING:
    from vegas_spec.engine.llm import LLM
    from vegas_spec.engine.outputs import Origin, RequestStats, Update

STYLES: dict[Origin, str] = {"accepted": "green", "corrected": "red", "bonus": "cyan"}

LEGEND = Text.assemble(
    ("accepted draft", STYLES["accepted"]), "  ", ("correction", STYLES["corrected"]), "  ", ("bonus", STYLES["bonus"])
)


def token_bar(console: Console) -> Progress:
    """Make a bar over tokens with the time left; silent where there is no terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def watch_prefill(console: Console, updates: Iterable[Update], prompt_tokens: int, label: str) -> Iterable[Update]:
    """Show a bar while the prompt is read, then pass on the updates that bring tokens."""
    with token_bar(console) as bar:
        task = bar.add_task(label, total=prompt_tokens)
        for update in updates:
            bar.update(task, completed=update.prefilled)
            if update.new_tokens or update.output.finished:
                bar.stop()
                yield update


class TokenPrinter:
    """Prints the text of an output as it grows, each token in the colour of its origin if wanted."""

    def __init__(self, llm: LLM, console: Console, stop: Iterable[str], coloured: bool) -> None:
        from vegas_spec.engine.text import TextStream

        self._text = TextStream(llm.model.tokenizer, ())
        self._console = console
        self._coloured = coloured
        self._printed = 0
        # A stop string is not part of the output, so its possible beginnings must wait.
        self._hold = max((len(text) for text in stop), default=1) - 1
        self._pieces: list[tuple[str, Origin]] = []

    def show(self, update: Update) -> None:
        """Print what an update brought."""
        completion = update.output.outputs[0]
        first = len(completion.token_ids) - update.new_tokens
        before = sum(len(piece) for piece, _ in self._pieces)
        for token, origin in zip(completion.token_ids[first:], completion.token_origins[first:], strict=True):
            text, _ = self._text.append(token)
            self._pieces.append((text[before:], origin))
            before = len(text)
        end = len(completion.text) - (0 if update.output.finished else self._hold)
        self._print_to(end)
        if update.output.finished and end > before:  # the rest of an unfinished character
            self._console.out(completion.text[before:], end="", highlight=False)

    def _print_to(self, end: int) -> None:
        start, line = 0, Text()
        for piece, origin in self._pieces:
            shown = piece[max(0, self._printed - start) : max(0, end - start)]
            line.append(shown, STYLES[origin] if self._coloured else None)
            start += len(piece)
        if line:
            self._console.print(line, end="", soft_wrap=True, highlight=False)
        self._printed = max(self._printed, min(end, start))


def summary(stats: RequestStats, tokens: int, prompt_tokens: int) -> str:
    """Sum a request up in one line."""
    decoding = sum(seconds for phase, seconds in stats.seconds.items() if phase != "prefill")
    parts = [
        f"{tokens} tokens in {decoding:.1f} s ({tokens / max(decoding, 1e-9):.1f} tokens/s) "
        f"after a prompt of {prompt_tokens:,} tokens ({stats.seconds['prefill']:.1f} s)"
    ]
    if stats.drafts:
        parts.append(f"{stats.accepted_per_draft:.2f} of {stats.num_speculative_tokens} drafts accepted per iteration")
        parts.append(f"drafting read {stats.draft_kv_share:.1%} of the cache")
    return "; ".join(parts)


def acceptance_by_position(stats: RequestStats) -> Text:
    """Draw how often the draft at each distance was accepted, as bars."""
    lines = Text()
    for position, accepted in enumerate(stats.accepted_per_position, start=1):
        share = accepted / stats.drafts if stats.drafts else 0.0
        lines.append(f"  draft {position:>2}  ")
        lines.append("█" * round(30 * share), STYLES["accepted"])
        lines.append("░" * (30 - round(30 * share)), "dim")
        lines.append(f"  {share:4.0%}\n")
    return lines
