"""Options that every command with a model and tools shares: spelled once, so that they mean the same everywhere."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeVar

import typer

Model = Annotated[
    str, typer.Option("--model", help="URL of a model server, nano, smollm2, a model folder, or a hub id.")
]
ModelName = Annotated[str | None, typer.Option("--model-name", help="Which model of the server, if it serves several.")]
Tool = Annotated[
    list[str] | None,
    typer.Option("--tool", help="name=setting, or name=module:factory for one of your own. Repeatable."),
]
World = Annotated[
    str | None,
    typer.Option("--world", help="Tools of an offline world: atlas, atlas:SEED, or a folder of coa world build."),
]
Profile = Annotated[
    str | None, typer.Option("--profile", help="Profile by name or .toml; with --world, the world's own if not given.")
]
Mcp = Annotated[
    list[str] | None,
    typer.Option("--mcp", help="All tools of an MCP server: its command in quotes, or its URL. Repeatable."),
]
Mode = Annotated[str, typer.Option("--mode", help="How to talk to a server: auto, tokens, or chat.")]
Tokenizer = Annotated[
    str | None, typer.Option("--tokenizer", help="For token mode, where the server's model does not tell.")
]
ApiKeyEnv = Annotated[str, typer.Option("--api-key-env", help="Environment variable that holds the server's key.")]
Prompt = Annotated[str, typer.Option("--prompt", help="Whose prompt: profile, or row (each task's own).")]
PromptFile = Annotated[
    Path | None, typer.Option("--prompt-file", help="A system prompt to use instead of the profile's.")
]
Seed = Annotated[int | None, typer.Option("--seed", help="For the same run again, where the model allows it.")]
Constrained = Annotated[
    str,
    typer.Option(
        "--constrain",
        help="Hold the model to the protocol: auto (small local models, unless trained by coa), always, or never.",
    ),
]
Budget = Annotated[
    list[str] | None,
    typer.Option("--budget", help="Of a run, instead of the profile's: seconds=60, cost=0.1, ... Repeatable."),
]
PriceIn = Annotated[float | None, typer.Option("--price-in", min=0, help="Price of a million tokens read.")]
PriceCached = Annotated[float | None, typer.Option("--price-cached", min=0, help="Of a million read from the cache.")]
PriceOut = Annotated[float | None, typer.Option("--price-out", min=0, help="Price of a million tokens written.")]
Prices = Annotated[Path | None, typer.Option("--prices", help="Prices of several models, a .toml file.")]
JudgeName = Annotated[str | None, typer.Option("--judge-name", help="Which model of the judge's server.")]
JudgeKeyEnv = Annotated[str, typer.Option("--judge-key-env", help="Environment variable with the judge's key.")]
Cache = Annotated[
    str, typer.Option("--cache", help="Answers of the tools: off, record (keep and use), or replay (never ask).")
]
CacheFile = Annotated[
    Path | None, typer.Option("--cache-file", help="Where they are kept; one file may serve many runs.")
]
Json = Annotated[bool, typer.Option("--json", help="For machines.")]

Choice = TypeVar("Choice", bound=StrEnum)


def one_of(kind: type[Choice], text: str, option: str) -> Choice:
    try:
        return kind(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option} is one of {', '.join(kind)}, not {text!r}") from error
