"""What a running generation looks like on a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.segment import Segment, Segments
from rich.style import Style
from rich.text import Text

if TYPE_CHECKING:
    from vegas_spec.engine.llm import LLM
    from vegas_spec.engine.outputs import CompletionOutput, Origin, RequestOutput, RequestStats, Update

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


def watch_prefill(console: Console, updates: Iterable[Update], label: str) -> Iterable[Update]:
    """Show a bar while the prompt is read, then pass on the updates that bring tokens."""
    with token_bar(console) as bar:
        task = bar.add_task(label, total=None)
        for update in updates:
            bar.update(task, completed=update.prefilled, total=len(update.output.prompt_token_ids))
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
        self._taken = 0
        # A stop string is not part of the output, so its possible beginnings must wait.
        self._hold = max((len(text) for text in stop), default=1) - 1
        self._pieces: list[tuple[str, Origin]] = []

    def show(self, update: Update) -> None:
        """Print what an update brought."""
        completion = update.output.outputs[0]
        length = self._take(completion)
        end = len(completion.text) - (0 if update.output.finished else self._hold)
        self._print_to(end)
        if update.output.finished and end > length:  # the rest of an unfinished character
            self._out(completion.text[length:], None)

    def show_rest(self, output: RequestOutput) -> None:
        """Print what an interrupted output says further, also what waits for a stop string that will not come."""
        completion = output.outputs[0]
        self._take(completion)
        self._print_to(len(completion.text))

    def _take(self, completion: CompletionOutput) -> int:
        """Cut the text of new tokens into pieces; return the length of all text so far."""
        first = self._taken
        self._taken = len(completion.token_ids)
        length = sum(len(piece) for piece, _ in self._pieces)
        for token, origin in zip(completion.token_ids[first:], completion.token_origins[first:], strict=False):
            text, _ = self._text.append(token)
            self._pieces.append((text[length:], origin))
            length = len(text)
        return length

    def _print_to(self, end: int) -> None:
        start = 0
        for piece, origin in self._pieces:
            shown = piece[max(0, self._printed - start) : max(0, end - start)]
            if shown:
                self._out(shown, STYLES[origin] if self._coloured else None)
            start += len(piece)
        self._printed = max(self._printed, min(end, start))

    def _out(self, text: str, style: str | None) -> None:
        # A segment, since text that is printed as such loses its tabs and carriage returns.
        segment = Segment(text, Style.parse(style) if style else None)
        self._console.print(Segments([segment]), end="", soft_wrap=True)


def summary(stats: RequestStats, tokens: int, prompt_tokens: int) -> str:
    """Sum a request up in one line."""
    decoding = sum(seconds for phase, seconds in stats.seconds.items() if phase != "prefill")
    parts = [
        f"{tokens} token{'' if tokens == 1 else 's'} in {decoding:.1f} s ({tokens / max(decoding, 1e-9):.1f} tokens/s) "
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
