"""`coa inspect`: read trajectories in the terminal, one colour per agent; see token by token what would be trained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from coa.cli.output import echo_json

if TYPE_CHECKING:
    from rich.console import Console

    from coa.trajectory import Trajectory

_FOLD_LINES = 12
_NAMED = 5
"""Number of tasks that an error names."""
_Item = TypeVar("_Item")


def inspect(
    data: Annotated[
        list[str],
        typer.Argument(help="Trajectories, AFM SFT rows, recorded teams, or tasks: files, folders, or hub ids."),
    ],
    task: Annotated[str | None, typer.Option(help="Show only the task with this id.")] = None,
    skip: Annotated[int, typer.Option(min=0, help="Number of records to skip at the start.")] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="Number of records to show at most.")] = None,
    mask: Annotated[bool, typer.Option("--mask", help="Show each token and whether it would be trained.")] = False,
    tokenizer: Annotated[
        str, typer.Option(help="Tokenizer for --mask: smollm2, a model folder, a tokenizer.json, a .gguf, or a hub id.")
    ] = "smollm2",
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=1, help="With --mask: number of tokens above which a trajectory is cut or dropped, as in training."
        ),
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="Profile (a name or a .toml) to read with, whatever profile the data carry.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Do not fold long observations.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    pager: Annotated[bool, typer.Option(help="Use a pager when the output goes to a terminal.")] = True,
) -> None:
    """Read trajectories or tasks in the terminal. --mask shows which tokens are trained."""
    from coa.cli.terminal import paged, show_warnings

    show_warnings()
    with paged(wanted=pager and not as_json) as console:
        from coa.cli.rendering import show_task, show_trajectory, with_headings
        from coa.distill.find_runs import find_runs
        from coa.trajectory import load_profile, profile_of, with_profile
        from coa.trajectory.formats.sources import not_empty
        from coa.trajectory.formats.tasks import read_tasks
        from coa.trajectory.store import Lines

        given = load_profile(profile) if profile else None
        found = {source: find_runs(source, given) for source in not_empty(data)}
        if not any(found.values()):
            tasks = chain.from_iterable(map(read_tasks, found))
            for item in _selected(tasks, lambda task: task.id, task, skip, limit):
                if as_json:
                    echo_json(item.model_dump_json(exclude_defaults=True))
                else:
                    show_task(console, item)
            return
        several = len(found) > 1
        named = (
            (str(Path(source, part.name)) if several else part.name, trajectory)
            for source, parts in found.items()
            for part in parts
            for trajectory in part.read()
        )
        chosen = _selected(named, lambda item: item[1].task.id, task, skip, limit)
        # Whoever names several places knows them.
        places = [] if several else list(dict.fromkeys(part.place for parts in found.values() for part in parts))
        trajectories = (item[1] for item in chosen) if as_json else with_headings(chosen, console, data[0], places)
        if given is not None:
            trajectories = (with_profile(trajectory, given) for trajectory in trajectories)
        if mask:
            _show_masks(console, trajectories, tokenizer, max_tokens, as_json=as_json)
            return
        lines = Lines()
        for trajectory in trajectories:
            if as_json:
                echo_json(lines.line(trajectory))
            else:
                show_trajectory(console, trajectory, profile_of(trajectory), fold=None if full else _FOLD_LINES)


def _selected(
    items: Iterable[_Item], id_of: Callable[[_Item], str], wanted: str | None, skip: int, limit: int | None
) -> Iterator[_Item]:
    from coa.errors import StoreError

    ids: dict[str, None] = {}
    shown = 0

    def matches(item: _Item) -> bool:
        if len(ids) < _NAMED:
            ids[id_of(item)] = None
        return wanted is None or id_of(item) == wanted

    matching = filter(matches, items)
    for item in islice(matching, skip, None if limit is None else skip + limit):
        shown += 1
        yield item
    if not shown and wanted is not None:
        raise StoreError(f"there is no task {wanted!r} in it", hint=f"its tasks are {', '.join(ids)}, ...")
    if not shown:
        hint = "lower --skip" if ids else "coa distill --dry-run says what can be read of traces"
        raise StoreError("there is nothing to show", hint=hint)


def _show_masks(
    console: Console, trajectories: Iterable[Trajectory], tokenizer: str, max_tokens: int | None, *, as_json: bool
) -> None:
    import orjson

    from coa.cli.rendering import show_mask
    from coa.models.tokenizer import load_tokenizer
    from coa.trajectory import Tally, profile_of, to_samples

    loaded, tally = load_tokenizer(tokenizer), Tally()
    for original in trajectories:
        profile = profile_of(original)
        for kept, sample in to_samples([original], loaded, profile, max_tokens=max_tokens, tally=tally):
            if not as_json:
                show_mask(console, kept, sample, profile, loaded)
                continue
            tokens = zip(sample.ids, loaded.split(sample.ids), sample.mask, sample.steps, strict=True)
            rows: list[dict[str, Any]] = [
                {"id": token, "text": text, "trained": trained, "agent": sample.agents[step] if step >= 0 else None}
                for token, text, trained, step in tokens
            ]
            echo_json(orjson.dumps({"task": kept.task.id, "sample": kept.sample, "tokens": rows}))
    if not as_json:
        console.print(str(tally), style="bold")
