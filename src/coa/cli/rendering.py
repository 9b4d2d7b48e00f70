"""How trajectories, tasks, masks and profiles look in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from coa.cli.terminal import folded, printable
from coa.report import plural
from coa.trajectory import Author, Kind, Profile, Sample, Step, Task, Tokenizer, Trajectory, check
from coa.trajectory.counting import tool_calls
from coa.trajectory.shapes import expectation


def with_headings(
    found: Iterable[tuple[str, Trajectory]], console: Console, data: str, places: Sequence[str]
) -> Iterator[Trajectory]:
    """Print where the runs are if they are in several places: first a list of the places, then a line before each."""
    if len(places) > 1:
        heading = f"{data} holds runs in {len(places)} places; coa inspect PATH shows one alone:"
        console.print(Text(heading), soft_wrap=True)
        for place in places:
            console.print(Text(f"  {Path(data, place)}", style="cyan"), soft_wrap=True)
    last = ""
    for name, trajectory in found:
        if name != last:
            console.rule(Text(name, style="bold cyan"), characters="=")
        last = name
        yield trajectory


def show_task(console: Console, task: Task) -> None:
    console.rule(Text(f"task {task.id}", style="bold"), align="left")
    _show_conversation(console, task)
    console.print(Text(printable(task.question)))
    if task.answer:
        console.print(Text(f"answer: {' | '.join(task.answer)}", style="green"))
    if task.tests:
        judge = "assertions" if task.tests.functional is not None else plural(len(task.tests.cases), "input")
        console.print(Text(f"judged by {judge}", style="blue"))


def show_trajectory(console: Console, trajectory: Trajectory, profile: Profile, *, fold: int | None) -> None:
    """`fold` is the number of lines after which an observation is cut off."""
    sample = f" #{trajectory.sample}" if trajectory.sample else ""
    console.rule(Text(f"task {trajectory.task.id}{sample}", style="bold"), align="left")
    _show_conversation(console, trajectory.task)
    console.print(Text(printable(trajectory.task.question), style="bold"))
    for step in trajectory.steps:
        _show_step(console, step, profile, fold)
    violations = check(trajectory.steps, profile)
    calls = tool_calls(trajectory, profile)
    scores = "".join(f"  {name} {score.value}" for name, score in trajectory.scores.items())
    summary = (
        f"{trajectory.profile}  {trajectory.stop.words}  {plural(len(trajectory.steps), 'step')}  "
        f"{plural(calls, 'tool call')}  {trajectory.usage.total_tokens} tokens  {trajectory.usage.seconds:.1f} s  "
        f"{plural(len(trajectory.repairs), 'repair')}  {plural(len(violations), 'violation')}{scores}"
    )
    console.print(Text(summary, style="dim"))
    if trajectory.failure:
        console.print(Text(f"failed in the {trajectory.failure.site}: {trajectory.failure.message}", style="red"))
    asked = trajectory.meta.get("handovers") or trajectory.meta.get("failed_handovers")
    for handover in asked if isinstance(asked, list | tuple) else ():
        failed = ": failed" in str(handover)
        console.print(Text(f"hand-over: {printable(str(handover))}", style="red" if failed else "dim"))
    for violation in violations:
        console.print(Text(f"  step {violation.step}: {violation.rule}: {violation.message}", style="red"))
    console.print()


def _show_conversation(console: Console, task: Task) -> None:
    """The turns before the question."""
    for turn in task.conversation:
        console.print(Text.assemble((f"{turn.role}: ", "bold bright_black"), (printable(turn.content), "bright_black")))


def _show_step(console: Console, step: Step, profile: Profile, fold: int | None) -> None:
    color = profile.color(step.agent)
    by_model = step.author is Author.MODEL
    repairs = f"  repaired: {', '.join(repair.kind for repair in step.repairs)}" if step.repairs else ""
    console.print(Text.assemble((f"{step.agent}", f"bold {color}"), (repairs, "yellow")))
    text = folded(step.text, None if by_model else fold, " (--full shows them)")
    console.print(Padding(Text(text, style=color if by_model else "bright_black"), (0, 0, 0, 2), expand=False))


def show_mask(console: Console, trajectory: Trajectory, sample: Sample, profile: Profile, tokenizer: Tokenizer) -> None:
    """Trained tokens stand out: in colour on alternating backgrounds on a terminal, between «» elsewhere."""
    console.rule(Text(f"task {trajectory.task.id}", style="bold"), align="left")
    colored = console.color_system is not None
    out = Text()
    tokens = zip(tokenizer.split(sample.ids), sample.mask, sample.steps, strict=True)
    for number, (piece, trained, step) in enumerate(tokens):
        shown = printable(piece).replace("\n", "⏎\n")
        if not colored:
            out.append(f"«{shown}»" if trained else shown)
        elif trained:
            ground = "grey19" if number % 2 else "grey30"
            out.append(shown, style=f"bold {profile.color(sample.agents[step])} on {ground}")
        else:
            out.append(shown, style="dim" if number % 2 else "bright_black")
    console.print(out)
    share = sample.trained / len(sample)
    console.print(Text(f"{len(sample)} tokens, {sample.trained} trained ({share:.1%})", style="dim"))


def show_profile(console: Console, profile: Profile) -> None:
    console.print(Text.assemble((profile.name, "bold"), f"  {profile.about}\n"))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("tag", "agent", "kind", "content", "needs a thought", "at most"):
        table.add_column(heading, no_wrap=heading == "tag")
    for tag, agent in profile.agents.items():
        name, content = Text(tag, style=agent.color), Text(expectation(agent.shape))
        thought, most = "yes" if agent.thought else "", str(agent.max or "")
        table.add_row(name, Text(agent.title), agent.kind.value, content, thought, most)
    console.print(table)
    console.print("\n[bold]Who may follow whom[/]")
    for line in _graph(profile):
        console.print(line, soft_wrap=True)
    limits = ", ".join(f"{key} {value:g}" for key, value in profile.limits.model_dump(exclude_none=True).items())
    console.print(f"\n[bold]Limits[/] {limits}")


def _graph(profile: Profile) -> list[str]:
    """One line per arrow; `~>` passes through an observation."""

    def colored(tag: str) -> str:
        return f"[{profile.color(tag)}]{tag}[/]"

    lines = [f"{'(start)':>18} -> {' | '.join(map(colored, profile.start))}"]
    for tag, agent in profile.agents.items():
        pad = " " * (18 - len(tag))
        if agent.kind is Kind.ANSWER:
            lines.append(f"{pad}{colored(tag)} -> (end)")
        elif agent.kind is not Kind.THOUGHT:
            arrow = "~>" if agent.kind is Kind.TOOL else "->"
            lines.append(f"{pad}{colored(tag)} {arrow} {' | '.join(map(colored, agent.next))}")
        if agent.verdict is not None:
            lines.append(f"{'':>21} {agent.verdict.describe()}")
    if profile.thought:
        lines.append(f"{'':>18}    {colored(profile.thought)} may come before any of them; ~> passes an observation")
    return lines


def to_dot(profile: Profile) -> str:
    """The graph of a profile for Graphviz."""
    lines = [f'digraph "{profile.name}" {{', "  rankdir=LR; node [shape=box, style=rounded];", "  start [shape=point];"]
    lines += [f"  start -> {tag};" for tag in profile.start]
    for tag, agent in profile.agents.items():
        if agent.kind is not Kind.THOUGHT:
            style = ' [label="observation", style=dashed]' if agent.kind is Kind.TOOL else ""
            lines += [f"  {tag} -> {following}{style};" for following in agent.next]
    return "\n".join([*lines, "}"])
