"""`coa export`: trajectories and tasks in the formats of other programs, or their rows in ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from coa.choices import Target
from coa.cli.configuring import misused
from coa.cli.output import echo, echo_json
from coa.report import plural


def export(
    data: Annotated[
        list[str],
        typer.Argument(
            help="Trajectories, AFM SFT rows, or (for tasks) task rows: files, folders, or hub ids, which are joined. "
            "For model: a run folder, an adapter, or a checkpoint of FSDP or verl."
        ),
    ],
    to: Annotated[
        Target,
        typer.Option(
            help="Format to write; `trajectories` and `tasks` are coa's own, `model` is a Hugging Face model folder."
        ),
    ],
    out: Annotated[
        str | None,
        typer.Option(
            help="File that ends in .jsonl, .json or .parquet; for atif also a folder, with one file per trajectory; "
            "for otlp also the address of an endpoint, such as http://localhost:4318; for model a new folder. Default: "
            "JSONL to stdout."
        ),
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="Profile (a name or a .toml) to read with, whatever profile the data carry.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace --out if it exists.")] = False,
    content: Annotated[
        bool | None,
        typer.Option(
            "--content/--no-content",
            help="For otlp: include the texts of users, model and tools. Default: in files, but not for an endpoint.",
        ),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(help="For model: the model that shards of FSDP belong to, where no run folder around them says."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the name of the file and the number of records as JSON.")
    ] = False,
) -> None:
    """Write trajectories for other trainers and tools, read foreign rows, or merge a checkpoint into a model."""
    from coa.cli.terminal import show_warnings
    from coa.trajectory.formats.export import export, exported_lines
    from coa.trajectory.formats.otlp_endpoint import is_endpoint

    show_warnings()
    if to is Target.MODEL:
        if len(data) > 1:
            raise misused("--to model takes one folder")
        _merge(data[0], out, base, force=force, as_json=as_json)
        return
    if base is not None:
        raise misused("--base is for --to model")
    if out is None:
        for line in exported_lines(data, to, profile=profile, content=content):
            echo_json(line)
        return
    count = export(data, to, out, profile=profile, force=force, content=content)
    noun = ("task", "tasks") if to is Target.TASKS else ("trajectory", "trajectories")
    if as_json:
        echo_json(json.dumps({"file": out, "format": to.value, "records": count}))
    else:
        done = "sent to" if is_endpoint(out) else "written to"
        echo(f"{plural(count, *noun)} {done} {out}", err=True)


def _merge(source: str, out: str | None, base: str | None, *, force: bool, as_json: bool) -> None:
    from coa.training.requirements import loading_torch

    if out is None:
        raise misused("the model needs a folder: add --out FOLDER")
    with loading_torch():
        from coa.training.merging import merge_checkpoint
    written = merge_checkpoint(source, Path(out), base=base, force=force)
    if as_json:
        echo_json(json.dumps({"folder": str(written), "format": Target.MODEL.value}))
    else:
        echo(f"model written to {written}", err=True)
