"""`coa score`: score finished runs again, or by another scorer, without running anything."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coa.cli import options

if TYPE_CHECKING:
    from coa.evaluate.folder import Folder
    from coa.models.base import Model


def score(
    runs: Annotated[list[Path], typer.Argument(help="Evaluations, or .jsonl files of trajectories.")],
    scorer: Annotated[str, typer.Option(help="exact, f1, numeric, math, choice, code, judge, auto, module:function.")],
    judge: Annotated[str | None, typer.Option(help="URL of the model that judges answers.")] = None,
    judge_name: options.JudgeName = None,
    judge_key_env: options.JudgeKeyEnv = "COA_API_KEY",
    replace: Annotated[bool, typer.Option("--replace", help="Replace the scores of that name that are there.")] = False,
    unscored: Annotated[
        bool, typer.Option("--unscored", help="Of those there, replace only what has no value.")
    ] = False,
    at_once: Annotated[int, typer.Option(min=1, help="Answers scored at the same time.")] = 32,
    as_json: options.Json = False,
) -> None:
    """Score finished runs. Scores of other scorers stay; those of the same name stay too unless --replace is given."""
    from coa.cli.terminal import show_warnings

    show_warnings()
    told = asyncio.run(_score_all(runs, scorer, (judge, judge_name, judge_key_env), replace, unscored, at_once))
    if as_json:
        import orjson

        typer.echo(orjson.dumps(told))
        return
    for row in told:
        typer.echo(
            f"{row['run']}: {row['right']:,} of {row['runs']:,} right by {row['scorer']}, {row['failed']:,} failed, "
            f"{row['unscored']:,} unscored; {row['scored_now']:,} scored now, {row['kept']:,} were there"
        )
        for name, figure in row["agreement"].items():
            typer.echo(f"  agreement with {name:<12} {figure:.1%}")
        if row["report"]:
            typer.echo(f"  {row['report']}")


async def _score_all(
    runs: list[Path],
    name: str,
    judge: tuple[str | None, str | None, str],
    replace: bool,
    unscored: bool,
    at_once: int,
) -> list[dict[str, Any]]:
    from coa.cli.models import open_model
    from coa.evaluate.folder import Folder, folders_in
    from coa.evaluate.rescore import rescore, sum_up
    from coa.models.connect import Mode
    from coa.scoring import VerdictCache, scorer_for

    async with AsyncExitStack() as stack:
        source, judge_name, key_env = judge
        judging: Model | None = None
        if source is not None:
            judging = await open_model(source, judge_name, mode=Mode.CHAT, api_key_env=key_env)
            stack.push_async_callback(judging.close)
        told = []
        for path in [found for run in runs for found in folders_in(run)]:
            folder = Folder.of(path)
            _check(folder, path)
            with folder.held(), closing(VerdictCache(folder.path / "verdicts.sqlite" if judging else None)) as verdicts:
                chosen = scorer_for(name, judge=judging, verdicts=verdicts)
                try:
                    now, kept = await rescore(folder, chosen, replace=replace, unscored=unscored, at_once=at_once)
                    told.append({"run": str(path), "scored_now": now, "kept": kept, **sum_up(folder, name, judging)})
                finally:
                    await chosen.close()
        return told


def _check(folder: Folder, path: Path) -> None:
    from coa.errors import StoreError

    if not folder.trajectories.is_file():
        raise StoreError(f"{path} holds no {folder.name}", hint="give an evaluation's folder or a .jsonl file")
    if folder.trajectories.suffix != ".jsonl":
        raise StoreError(
            f"{folder.trajectories}: scores are kept in .jsonl",
            hint=f"coa export {path} --to trajectories --out {folder.trajectories.with_suffix('.jsonl')}",
        )
