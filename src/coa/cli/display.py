"""How one run looks on the terminal: each agent in its colour as it writes, and the line that closes it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.padding import Padding

from coa.cli.output import echo, echo_text, hanging
from coa.cli.terminal import SafeConsole, SafeText, folded
from coa.report import plural
from coa.runtime import ChainEvent, Observed
from coa.runtime.many import agrees
from coa.trajectory import Delta, Opened, Profile, Trajectory, Usage

_FOLD_LINES = 6


class Display:
    """Each agent in its colour, text as the model writes it, observations folded."""

    def __init__(self, profile: Profile) -> None:
        self._profile, self._console = profile, SafeConsole()
        self._middle_of_line = False

    def __call__(self, event: ChainEvent) -> None:
        if isinstance(event, Opened):
            self.end_line()
            self._console.print(SafeText(event.agent, f"bold {self._profile.color(event.agent)}"))
        elif isinstance(event, Delta):
            text = event.text if self._middle_of_line else event.text.lstrip("\n")
            self._console.print(SafeText(text, self._profile.color(event.agent), lines=True), end="")
            self._middle_of_line = bool(text) or self._middle_of_line
        elif isinstance(event, Observed):
            self.end_line()
            self._console.print(SafeText(event.step.agent, style="bold bright_black"))
            folded_text = SafeText(folded(event.step.text, _FOLD_LINES), "bright_black", lines=True)
            self._console.print(Padding(folded_text, (0, 0, 0, 2), expand=False))

    def end_line(self) -> None:
        """So that what others print, such as a warning, begins on a line of its own."""
        if self._middle_of_line:
            self._console.print()
        self._middle_of_line = False


def close(picked: Trajectory, candidates: Sequence[Trajectory]) -> None:
    """The closing line: results to stdout."""
    answer = picked.answer.strip() if picked.answer else "(none)"
    several = len(candidates) > 1
    chosen = f" (sample {picked.sample} of {len(candidates)})" if several else ""
    echo()
    echo_text(hanging(f"answer: {answer}{chosen}"))
    if verdict := _verdict(picked):
        echo(verdict)
    echo(f"{picked.stop.words}, {plural(len(picked.steps), 'step')}, {spent(picked.usage)}")
    if several:
        echo(f"all {len(candidates)}: {spent(Usage.sum(candidate.usage for candidate in candidates))}")
    if picked.failure:
        echo_text(hanging(f"failed in the {picked.failure.site}: {picked.failure.message}"), err=True)


def _verdict(picked: Trajectory) -> str:
    """Whether the answer is right, where the task has an answer to compare with."""
    right = agrees(picked)
    if right is None:
        return ""
    return "right" if right else f"wrong: the right answer is {' or '.join(picked.task.answer)}"


def spent(usage: Usage) -> str:
    cost = "" if usage.cost is None else f", cost {usage.cost:.4g}"
    return (
        f"{usage.total_tokens} tokens ({usage.completion_tokens} written, {usage.cached_tokens} from cache), "
        f"{plural(usage.tool_calls, 'tool call')}, {usage.seconds:.1f} s{cost}"
    )
