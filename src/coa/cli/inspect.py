"""`coa inspect`: read trajectories in the terminal, one colour per agent; see token by token what would be trained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coa.report import plural

if TYPE_CHECKING:
    from rich.console import Console

    from coa.distill.find_runs import FoundRuns
    from coa.models.tokenizer import TextTokenizer
    from coa.trajectory import Profile, Sample, Step, Task, Trajectory

_FOLD_LINES = 12


def inspect(
    data: Annotated[
        str, typer.Argument(help="Trajectories, AFM SFT rows, recorded teams, or tasks: a file, a folder, or a hub id.")
    ],
    task: Annotated[str | None, typer.Option(help="Only this task id.")] = None,
    skip: Annotated[int, typer.Option(min=0, help="Leave out so many at the start.")] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="Show at most so many.")] = None,
    mask: Annotated[bool, typer.Option("--mask", help="Show each token and whether it would be trained.")] = False,
    tokenizer: Annotated[
        str, typer.Option(help="For --mask: smollm2, a model folder, a tokenizer.json, a .gguf, or a hub id.")
    ] = "smollm2",
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="For --mask: cut or drop what is longer, as training would.")
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="Read with this profile (a name or a .toml), whatever the data carry.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Do not fold long observations.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    pager: Annotated[bool, typer.Option(help="Page when a person is looking.")] = True,
) -> None:
    """Page through trajectories or tasks."""
    from coa.cli.terminal import paged, show_warnings

    show_warnings()
    with paged(wanted=pager and not as_json) as console:
        from coa.distill.find_runs import find_runs
        from coa.trajectory import load_profile, profile_of, with_profile
        from coa.trajectory.store import Lines

        given = load_profile(profile) if profile else None
        parts = find_runs(data, given)
        if not parts:
            tasks = _selected(_tasks(data), lambda item: item.id, task, skip, limit)
            _show_tasks(console, tasks, as_json=as_json)
            return
        named = ((part.name, trajectory) for part in parts for trajectory in part.read())
        chosen = _selected(named, lambda item: item[1].task.id, task, skip, limit)
        trajectories = _headed(chosen, None if as_json else console, data, parts)
        if given is not None:
            trajectories = (with_profile(trajectory, given) for trajectory in trajectories)
        if mask:
            from coa.models.tokenizer import load_tokenizer

            _show_masks(console, trajectories, load_tokenizer(tokenizer), max_tokens, as_json=as_json)
            return
        lines = Lines()
        for trajectory in trajectories:
            if as_json:
                typer.echo(lines.line(trajectory))
            else:
                _show(console, trajectory, profile_of(trajectory), fold=None if full else _FOLD_LINES)


def _selected(items: Iterable[Any], key: Any, wanted: str | None, skip: int, limit: int | None) -> Iterator[Any]:
    from coa.errors import StoreError

    matching = (item for item in items if wanted is None or key(item) == wanted)
    shown = 0
    for item in islice(matching, skip, None if limit is None else skip + limit):
        shown += 1
        yield item
    if not shown:
        raise StoreError(f"there is no task {wanted!r} in it" if wanted else "there is nothing to show")


def _headed(
    found: Iterable[tuple[str, Trajectory]], console: Console | None, data: str, parts: Sequence[FoundRuns]
) -> Iterator[Trajectory]:
    """Says where each of them lies, where that is not plain: first what there is, then where a new part begins."""
    from pathlib import Path

    from rich.text import Text

    from coa.distill.find_runs import TRACES

    if console is not None and len(parts) > 1:
        console.print(
            Text(f"{data} holds runs in {len(parts)} places; coa inspect PATH shows one alone:"), soft_wrap=True
        )
        for part in parts:
            console.print(Text(f"  {Path(data, part.name.removesuffix(TRACES))}", style="cyan"), soft_wrap=True)
    last = ""
    for name, trajectory in found:
        if console is not None and name != last:
            console.rule(Text(name, style="bold cyan"), characters="=")
        last = name
        yield trajectory


def _tasks(data: str) -> Iterator[Task]:
    from coa.trajectory.formats.tasks import read_tasks

    return read_tasks(data)


def _show_tasks(console: Console, tasks: Iterable[Task], *, as_json: bool) -> None:
    from rich.text import Text

    from coa.cli.terminal import printable

    for task in tasks:
        if as_json:
            typer.echo(task.model_dump_json(exclude_defaults=True))
            continue
        tests = f"   {_count_tests(task)}" if task.tests else ""
        console.rule(Text(f"task {task.id}", style="bold"), align="left")
        console.print(Text(printable(task.question)))
        if task.answer:
            console.print(Text(f"answer: {' | '.join(task.answer)}", style="green"))
        if tests:
            console.print(Text(tests.strip(), style="blue"))


def _count_tests(task: Task) -> str:
    assert task.tests is not None
    if task.tests.functional is not None:
        return "judged by assertions"
    return f"judged by {len(task.tests.cases)} inputs"


def _show(console: Console, trajectory: Trajectory, profile: Profile, *, fold: int | None) -> None:
    from rich.text import Text

    from coa.cli.terminal import printable
    from coa.trajectory import check

    sample = f" #{trajectory.sample}" if trajectory.sample else ""
    console.rule(Text(f"task {trajectory.task.id}{sample}", style="bold"), align="left")
    console.print(Text(printable(trajectory.task.question), style="bold"))
    for step in trajectory.steps:
        _show_step(console, step, profile, fold)
    violations = check(trajectory.steps, profile)
    calls = sum(step.agent in profile.tools for step in trajectory.steps)
    scores = "".join(f"  {name} {score.value}" for name, score in trajectory.scores.items())
    console.print(
        Text(
            f"{trajectory.profile}  {trajectory.stop}  {plural(len(trajectory.steps), 'step')}  "
            f"{plural(calls, 'tool call')}  {trajectory.usage.total_tokens} tokens  {trajectory.usage.seconds:.1f} s  "
            f"{plural(len(trajectory.repairs), 'repair')}  {plural(len(violations), 'violation')}{scores}",
            style="dim",
        )
    )
    if trajectory.failure:
        console.print(Text(f"failed in the {trajectory.failure.site}: {trajectory.failure.message}", style="red"))
    for violation in violations:
        console.print(Text(f"  step {violation.step}: {violation.rule}: {violation.message}", style="red"))
    console.print()


def _show_step(console: Console, step: Step, profile: Profile, fold: int | None) -> None:
    from rich.padding import Padding
    from rich.text import Text

    from coa.cli.terminal import printable
    from coa.trajectory import Author

    color = profile.color(step.agent)
    lines = printable(step.text).strip().split("\n")
    if step.author is Author.ENVIRONMENT and fold is not None and len(lines) > fold:
        lines = [*lines[:fold], f"... {plural(len(lines) - fold, 'more line')} (--full shows them)"]
    repairs = f"  repaired: {', '.join(repair.kind for repair in step.repairs)}" if step.repairs else ""
    console.print(Text.assemble((f"{step.agent}", f"bold {color}"), (repairs, "yellow")))
    style = color if step.author is Author.MODEL else "bright_black"
    console.print(Padding(Text("\n".join(lines), style=style), (0, 0, 0, 2), expand=False))


def _show_masks(
    console: Console,
    trajectories: Iterable[Trajectory],
    tokenizer: TextTokenizer,
    max_tokens: int | None,
    *,
    as_json: bool,
) -> None:
    from coa.trajectory import Tally, profile_of, to_samples

    tally = Tally()
    for original in trajectories:
        profile = profile_of(original)
        for kept, sample in to_samples([original], tokenizer, profile, max_tokens=max_tokens, tally=tally):
            if as_json:
                _print_mask_json(kept, sample, tokenizer)
            else:
                _print_mask(console, kept, sample, profile, tokenizer)
    if not as_json:
        console.print(str(tally), style="bold")


def _print_mask_json(trajectory: Trajectory, sample: Sample, tokenizer: TextTokenizer) -> None:
    import orjson

    rows = [
        {"id": token, "text": text, "trained": trained, "agent": sample.agents[step] if step >= 0 else None}
        for token, text, trained, step in zip(
            sample.ids, tokenizer.split(sample.ids), sample.mask, sample.steps, strict=True
        )
    ]
    typer.echo(orjson.dumps({"task": trajectory.task.id, "sample": trajectory.sample, "tokens": rows}))


def _print_mask(
    console: Console, trajectory: Trajectory, sample: Sample, profile: Profile, tokenizer: TextTokenizer
) -> None:
    """Trained tokens stand out: on a terminal by colour on alternating ground, elsewhere between «»."""
    from rich.text import Text

    from coa.cli.terminal import printable

    console.rule(Text(f"task {trajectory.task.id}", style="bold"), align="left")
    colored = console.color_system is not None
    out = Text()
    for number, (piece, trained, step) in enumerate(
        zip(tokenizer.split(sample.ids), sample.mask, sample.steps, strict=True)
    ):
        shown = printable(piece).replace("\n", "⏎\n")
        if not colored:
            out.append(f"«{shown}»" if trained else shown)
        elif trained:
            ground = "grey19" if number % 2 else "grey30"
            out.append(shown, style=f"bold {profile.color(sample.agents[step])} on {ground}")
        else:
            out.append(shown, style="dim" if number % 2 else "bright_black")
    console.print(out)
    console.print(
        Text(f"{len(sample)} tokens, {sample.trained} trained ({sample.trained / len(sample):.1%})", style="dim")
    )
