"""What `--help` adds to typer's: types in words, and examples at the end of each command's help."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from coa.cli.output import printable

EXAMPLES: Final[Mapping[str, tuple[str, ...]]] = {
    "": ("coa doctor", "coa run --model nano", "coa demo --quick"),
    "run": (
        "coa run --model nano",
        "coa run --chat --model nano",
        'coa run "Who founded the firm in Brivna?" --model http://127.0.0.1:8000 --profile web',
        "coa run --tasks tasks.jsonl --model runs/sft --out runs/answers",
    ),
    "serve": (
        "coa serve --model nano",
        "coa serve --model http://127.0.0.1:8000 --profile web --out runs/served",
        "coa serve agents.toml --port 8080",
    ),
    "view": ("coa view runs/", "coa view runs/ data/ traces/", "coa view runs/demo --bundle site/"),
    "mcp": (
        "coa mcp --model nano",
        "coa mcp --model http://127.0.0.1:8000 --profile web --out runs/asked",
        "coa mcp agents.toml --http --port 8090",
    ),
    "record": (
        "coa record --upstream http://127.0.0.1:8000 --out traces/",
        "coa record --upstream https://api.openai.com --out traces/ -- python my_team.py tasks.jsonl",
    ),
    "teach": (
        "coa teach tasks.jsonl --team team.py:build --model http://127.0.0.1:8000 --out traces/",
        "coa teach tasks.jsonl --command 'python my_team.py {question}' --model http://127.0.0.1:8000 --out traces/",
        "coa teach runs/world/tasks/train.jsonl --team world --world runs/world --out traces/ --limit 50",
    ),
    "distill": (
        "coa distill traces/ --out data/",
        "coa distill traces/ --out data/ --tasks tasks.jsonl --decontaminate math500",
        "coa distill traces/ --explain task-17",
    ),
    "cost": ("coa cost traces/ data/ --shared",),
    "inspect": ("coa inspect runs/answers", "coa inspect data/ --limit 1 --mask"),
    "export": (
        "coa export data/ --to messages --out messages.jsonl",
        "coa export kept-1.jsonl kept-2.jsonl --to tasks --out kept.jsonl",
        "coa export rows.parquet --to trajectories --out own.jsonl --profile web",
        "coa export runs/answers --to otlp --out http://localhost:4318 --content",
        "coa export runs/rl --to model --out models/agent",
    ),
    "sft": (
        "coa sft --model smollm2 --data data/ --out runs/sft",
        "coa sft configs/sft/nano.toml --out runs/sft",
        "coa sft configs/sft/web-7b.toml --launch --gpus-per-node 8 --dry-run",
    ),
    "sample": ("coa sample tasks.jsonl --model runs/sft --samples 8 --out kept.jsonl",),
    "rl": (
        "coa rl --model runs/sft --tasks kept.jsonl --steps 20 --out runs/rl",
        "coa rl configs/rl/nano.toml --model runs/sft --tasks kept.jsonl --out runs/rl",
        "coa rl configs/rl/code-7b.toml --tasks kept.jsonl --engine verl --nnodes 2 --gpus-per-node 8 --ray auto "
        "--out runs/rl",
    ),
    "eval": (
        "coa eval list",
        "coa eval math500 --model http://127.0.0.1:8000 --limit 50 --out runs/math500",
        "coa eval tasks.jsonl --model runs/rl --samples 4 --out runs/own",
        "coa eval math500 --model http://127.0.0.1:8000 --shard 2/8 --out runs/math500-2",
        "coa eval merge runs/math500-1 runs/math500-2 --out runs/math500",
    ),
    "score": ("coa score runs/math500 --scorer math",),
    "scan": (
        "coa scan runs/",
        "coa scan runs/rl --scanner reward_without_tools --scanner loops --out findings/",
        "coa scan runs/ --judge http://127.0.0.1:8000 --fail-on error",
    ),
    "compare": (
        "coa compare runs/base runs/sft runs/rl --out comparison/",
        "coa compare runs/base runs/rl-1 runs/rl-2 --out comparison/",
    ),
    "profile list": ("coa profile list",),
    "profile from-traces": ("coa profile from-traces traces/ > mine.toml",),
    "profile show": ("coa profile show web", "coa profile show web --toml"),
    "tools list": ("coa tools list", "coa tools list --mcp 'python server.py'"),
    "tools call": ("coa tools call code 'print(2 ** 10)'",),
    "index build": ("coa index build documents/ --out index/",),
    "index search": ("coa index search index/ 'steam engine' -k 3",),
    "sandbox serve": ("coa sandbox serve --host 0.0.0.0 --port 8765 --token-env SANDBOX_TOKEN",),
    "sandbox show": ("coa sandbox show",),
    "world build": ("coa world build --out runs/world --seed 7",),
    "world show": ("coa world show atlas:7",),
    "world tasks": ("coa world tasks --out sums.jsonl --count 100",),
    "world serve": ("coa world serve atlas --port 8090",),
    "judge": ("coa judge problem.json solution.py",),
    "demo": ("coa demo --quick", "coa demo --plan"),
    "setup": ("coa setup nano", "coa setup demo", "coa setup serve tools --plan"),
    "doctor": ("coa doctor", "coa doctor --engine verl --ray auto"),
}
"""Of each command, by its words after `coa`."""
_WORDS: Final = {str: "TEXT", int: "NUMBER", float: "NUMBER", Path: "PATH"}


class Command(TyperCommand):
    """A command whose help can be read without knowing Python."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _name_types(self, ctx)
        super().format_help(ctx, formatter)
        _show(EXAMPLES.get(ctx.command_path.partition(" ")[2], ()))


class Group(TyperGroup):
    """The same for `coa` itself and for commands that have commands.

    Typer words the mistakes in a command: an argument that a shell made of a file's name can be among them.
    """

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _name_types(self, ctx)
        super().format_help(ctx, formatter)
        _show(EXAMPLES.get(ctx.command_path.partition(" ")[2], ()))

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        with _visible_mistakes():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: Any) -> Any:
        with _visible_mistakes():
            return super().invoke(ctx)


@contextmanager
def _visible_mistakes() -> Iterator[None]:
    """Reports a misused command without the control characters in it."""
    try:
        yield
    except Exception as error:  # of a class that is typer's own or click's, from version to version
        if word := getattr(error, "format_message", None):
            said = printable(word())
            vars(error)["format_message"] = lambda: said
        raise


def use_for(app: typer.Typer) -> None:
    """Give all commands of an application this help."""
    for group in app.registered_groups:
        group.cls = Group
        if group.typer_instance is not None:
            use_for(group.typer_instance)
    for command in app.registered_commands:
        if not issubclass(command.cls or TyperCommand, Command):
            command.cls = Command


def _name_types(command: TyperCommand | TyperGroup, ctx: Any) -> None:
    # The types as they are written in the function: how typer keeps them changes from version to version.
    hints = typing.get_type_hints(inspect.unwrap(command.callback)) if command.callback is not None else {}
    for parameter in map(_any, command.get_params(ctx)):
        if parameter.param_type_name == "argument":
            parameter.display_type_rich = lambda ctx: None  # its name says what it is
        elif parameter.metavar is None:
            flag = getattr(parameter, "is_flag", False) or parameter.name not in hints
            parameter.metavar = "" if flag else _word(hints[parameter.name])


def _any(parameter: object) -> Any:
    """A parameter, of which typer has its own kinds and click had others."""
    return parameter


def _show(examples: tuple[str, ...]) -> None:
    if not examples:
        return
    from rich.panel import Panel
    from rich.text import Text

    from coa.cli.terminal import SafeConsole

    lines = Text("\n").join(Text(line) for line in examples)
    SafeConsole().print(Panel(lines, title="Examples", title_align="left", border_style="dim"))


def _word(hint: Any) -> str:
    """What an option takes."""
    for kind in typing.get_args(hint) if isinstance(hint, UnionType) or typing.get_origin(hint) else (hint,):
        if kind is type(None):
            continue
        if typing.get_origin(kind) is not None:
            return _word(kind)
        if isinstance(kind, type) and issubclass(kind, Enum):
            return "|".join(str(member.value) for member in kind)
        return _WORDS.get(kind, "TEXT")
    return "TEXT"
