"""How trajectories, tasks, masks and profiles look in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from coa.cli.output import hanging, printable
from coa.cli.terminal import SafeTable, SafeText, folded
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
        console.print(SafeText(heading), soft_wrap=True)
        for place in places:
            console.print(SafeText(f"  {Path(data, place)}", style="cyan"), soft_wrap=True)
    last = ""
    for name, trajectory in found:
        if name != last:
            console.rule(SafeText(name, style="bold cyan"), characters="=")
        last = name
        yield trajectory


def show_task(console: Console, task: Task) -> None:
    console.rule(SafeText(f"task {task.id}", style="bold"), align="left")
    _show_conversation(console, task)
    console.print(SafeText(hanging(task.question), lines=True))
    if task.answer:
        console.print(SafeText(f"answer: {' | '.join(task.answer)}", style="green"))
    if task.tests:
        judge = "assertions" if task.tests.functional is not None else plural(len(task.tests.cases), "input")
        console.print(SafeText(f"judged by {judge}", style="blue"))


def show_trajectory(console: Console, trajectory: Trajectory, profile: Profile, *, fold: int | None) -> None:
    """`fold` is the number of lines after which an observation is cut off."""
    sample = f" #{trajectory.sample}" if trajectory.sample else ""
    console.rule(SafeText(f"task {trajectory.task.id}{sample}", style="bold"), align="left")
    _show_conversation(console, trajectory.task)
    console.print(SafeText(hanging(trajectory.task.question), "bold", lines=True))
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
    console.print(SafeText(summary, style="dim"))
    if trajectory.failure:
        failure = f"failed in the {trajectory.failure.site}: {trajectory.failure.message}"
        console.print(SafeText(hanging(failure), "red", lines=True))
    asked = trajectory.meta.get("handovers") or trajectory.meta.get("failed_handovers")
    for handover in asked if isinstance(asked, list | tuple) else ():
        failed = ": failed" in str(handover)
        console.print(SafeText(f"hand-over: {handover}", style="red" if failed else "dim"))
    for violation in violations:
        console.print(SafeText(f"  step {violation.step}: {violation.rule}: {violation.message}", style="red"))
    console.print()


def _show_conversation(console: Console, task: Task) -> None:
    """The turns before the question."""
    for turn in task.conversation:
        text = SafeText(f"{turn.role}: ", "bold bright_black", lines=True)
        console.print(text.append(hanging(turn.content), "not bold"))


def _show_step(console: Console, step: Step, profile: Profile, fold: int | None) -> None:
    color = profile.color(step.agent)
    by_model = step.author is Author.MODEL
    repairs = f"  repaired: {', '.join(repair.kind for repair in step.repairs)}" if step.repairs else ""
    console.print(SafeText.assemble((f"{step.agent}", f"bold {color}"), (repairs, "yellow")))
    text = folded(step.text, None if by_model else fold, " (--full shows them)")
    console.print(
        Padding(SafeText(text, color if by_model else "bright_black", lines=True), (0, 0, 0, 2), expand=False)
    )


def show_mask(console: Console, trajectory: Trajectory, sample: Sample, profile: Profile, tokenizer: Tokenizer) -> None:
    """Trained tokens stand out: in colour on alternating backgrounds on a terminal, between «» elsewhere."""
    console.rule(SafeText(f"task {trajectory.task.id}", style="bold"), align="left")
    colored = console.color_system is not None
    out = SafeText(lines=True)
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
    console.print(SafeText(f"{len(sample)} tokens, {sample.trained} trained ({share:.1%})", style="dim"))


def show_profile(console: Console, profile: Profile) -> None:
    console.print(SafeText.assemble((profile.name, "bold"), f"  {profile.about}"))
    console.print()
    table = SafeTable(header_style="bold")
    for heading in ("tag", "agent", "kind", "content", "needs a thought", "at most"):
        table.add_column(heading, no_wrap=heading == "tag")
    for tag, agent in profile.agents.items():
        thought, most = "yes" if agent.thought else "", str(agent.max or "")
        name = SafeText(tag, agent.color)
        table.add_row(name, agent.title, agent.kind.value, expectation(agent.shape), thought, most)
    console.print(table)
    console.print()
    console.print(SafeText("Who may follow whom", "bold"))
    for line in _graph(profile):
        console.print(line, soft_wrap=True)
    limits = ", ".join(f"{key} {value:g}" for key, value in profile.limits.model_dump(exclude_none=True).items())
    console.print()
    console.print(SafeText.assemble(("Limits", "bold"), f" {limits}"))


def _graph(profile: Profile) -> list[Text]:
    """One line per arrow; `~>` passes through an observation."""

    def any_of(tags: Iterable[str]) -> list[tuple[str, str]]:
        colored = [[(" | ", ""), (tag, profile.color(tag))] for tag in tags]
        return [part for parts in colored for part in parts][1:]

    lines = [SafeText.assemble(f"{'(start)':>18} -> ", *any_of(profile.start))]
    for tag, agent in profile.agents.items():
        head = [(" " * (18 - len(tag)), ""), *any_of([tag])]
        if agent.kind is Kind.ANSWER:
            lines.append(SafeText.assemble(*head, " -> (end)"))
        elif agent.kind is not Kind.THOUGHT:
            arrow = "~>" if agent.kind is Kind.TOOL else "->"
            lines.append(SafeText.assemble(*head, f" {arrow} ", *any_of(agent.next)))
        if agent.verdict is not None:
            lines.append(SafeText(f"{'':>21} {agent.verdict.describe()}"))
    if profile.thought:
        note = " may come before any of them; ~> passes an observation"
        lines.append(SafeText.assemble(f"{'':>18}    ", *any_of([profile.thought]), note))
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
