"""`coa view`: look into everything that any stage wrote, in a browser."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coa.cli.configuring import misused
from coa.cli.output import echo
from coa.report import plural

if TYPE_CHECKING:
    from coa.view import Viewer


def view(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Files and folders to show: runs, evaluations, training runs, data, traces of teams. Default: runs.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Loopback address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port to listen on. Default: 8090, or a free one if it is taken."),
    ] = None,
    bundle: Annotated[
        Path | None, typer.Option(help="Write a static site to this folder instead of starting a server.")
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="Tokenizer of the token overlay: smollm2, a model folder, a tokenizer.json, a .gguf, or a hub id. "
            "Default: the one that the run was sampled with, if it is at hand."
        ),
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(help="Folder of the index. Default: coa/view in the cache folder of the user.")
    ] = None,
    browser: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in a browser, if there is a desktop.")
    ] = True,
) -> None:
    """Look into runs, data, traces, evaluations and training in a browser, or write them as a static site."""
    from coa.cli.terminal import show_warnings

    show_warnings()
    chosen = paths or [_default()]
    if bundle is not None:
        if port is not None:
            raise misused("--bundle writes files and starts no server; leave out --port")
        _write(chosen, bundle, cache, tokenizer)
        return
    viewer = _opened(chosen, host, port, cache, tokenizer)
    viewer.run_forever(lambda ready: _announce(ready, chosen, browser=browser))


def _default() -> Path:
    runs = Path("runs")
    if not runs.exists():
        raise misused("there is no folder runs here to view", hint="name a file or a folder: coa view FOLDER")
    return runs


def _write(paths: list[Path], out: Path, cache: Path | None, tokenizer: str | None) -> None:
    from coa.cli.progress import terminal_progress
    from coa.view import write_bundle

    count = write_bundle(paths, out, cache=cache, tokenizer=tokenizer, progress=terminal_progress())
    echo(f"{plural(count, 'run')} written to {out}")
    echo(f"look at it with any web server, for example: python3 -m http.server --directory {out}", err=True)


def _opened(paths: list[Path], host: str, port: int | None, cache: Path | None, tokenizer: str | None) -> Viewer:
    from coa.addresses import VIEWER_PORT
    from coa.view import open_viewer
    from coa.web.listening import free_port

    chosen = port if port is not None else free_port(host, VIEWER_PORT)
    return open_viewer(paths, host=host, port=chosen, cache=cache, tokenizer=tokenizer)


def _announce(viewer: Viewer, paths: list[Path], *, browser: bool) -> None:
    echo(f"viewing {', '.join(map(str, paths))} at {viewer.start}")
    echo("Ctrl-C stops the viewer", err=True)
    if browser and sys.stdout.isatty() and (sys.platform == "darwin" or os.environ.get("DISPLAY")
                                            or os.environ.get("WAYLAND_DISPLAY")):  # fmt: skip
        import webbrowser

        webbrowser.open(viewer.start)
