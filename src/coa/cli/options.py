"""Options that several commands share: spelled once, so that they mean the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from coa.choices import Select as SelectChoice

AGENT: Final = "Agent"
ATTEMPTS: Final = "Attempts"
SCORING: Final = "Scoring"
SETTINGS: Final = "Settings"
OUTPUT: Final = "Output"

# How to run the agent
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="URL of a model server (several, with commas, share the work), nano, smollm2, a folder, or a hub id.",
        rich_help_panel=AGENT,
    ),
]
ModelName = Annotated[
    str | None,
    typer.Option("--model-name", help="Name of the model on a server that serves several.", rich_help_panel=AGENT),
]
Profile = Annotated[
    str | None,
    typer.Option(
        "--profile",
        help="Name of a shipped profile or path of a .toml file. Default: the profile of the world, else web.",
        rich_help_panel=AGENT,
    ),
]
World = Annotated[
    str | None,
    typer.Option(
        "--world",
        help="Offline world whose tools to use: atlas, atlas:SEED, or a folder made by coa world build.",
        rich_help_panel=AGENT,
    ),
]
Tool = Annotated[
    list[str] | None,
    typer.Option(
        "--tool",
        help="Setting of a tool as name=setting, or name=module:factory for your own tool. Repeatable.",
        rich_help_panel=AGENT,
    ),
]
Mcp = Annotated[
    list[str] | None,
    typer.Option(
        "--mcp", help="MCP server whose tools to add: its command in quotes, or its URL. Repeatable.",
        rich_help_panel=AGENT,
    ),
]  # fmt: skip
Temperature = Annotated[
    float | None, typer.Option("--temperature", min=0, help="Sampling temperature.", rich_help_panel=AGENT)
]
Seed = Annotated[
    int | None,
    typer.Option(
        "--seed",
        help="Seed of the first attempt at a task; further attempts add their number to it.",
        rich_help_panel=AGENT,
    ),
]
Budget = Annotated[
    list[str] | None,
    typer.Option(
        "--budget",
        metavar="NAME=VALUE",
        help="Limit of one run instead of the profile's: seconds=60, tool_calls=5, cost=0.1, ... Repeatable.",
        rich_help_panel=AGENT,
    ),
]

# How many runs
Concurrency = Annotated[
    int | None, typer.Option("--concurrency", min=1, help="Number of runs at a time.", rich_help_panel=ATTEMPTS)
]
Limit = Annotated[
    int | None,
    typer.Option("--limit", min=1, help="Number of tasks to take from the beginning.", rich_help_panel=ATTEMPTS),
]
Shard = Annotated[
    str | None,
    typer.Option(
        "--shard",
        metavar="I/N",
        help="Part of the tasks, such as 2/8: eight machines do 1/8 to 8/8, each with a separate --out.",
        rich_help_panel=ATTEMPTS,
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Ray cluster in whose actors the runs are made: local, auto, HOST:PORT or ray://HOST:PORT.",
        rich_help_panel=ATTEMPTS,
    ),
]
RayActors = Annotated[
    int | None,
    typer.Option("--ray-actors", min=1, help="Number of actors, which share --concurrency.", rich_help_panel=ATTEMPTS),
]
RetryFailed = Annotated[
    bool | None,
    typer.Option(
        "--retry-failed", help="Run the failed and interrupted attempts of --out again.", rich_help_panel=ATTEMPTS
    ),
]
Select = Annotated[
    SelectChoice | None,
    typer.Option("--select", help="How to select one of the attempts of --best-of.", rich_help_panel=ATTEMPTS),
]

# How to score
Judge = Annotated[
    str | None,
    typer.Option("--judge", help="URL of the model that judges answers.", rich_help_panel=SCORING),
]
JudgeName = Annotated[
    str | None,
    typer.Option(
        "--judge-name", help="Name of the judge on a server that serves several models.", rich_help_panel=SCORING
    ),
]
JudgeKeyEnv = Annotated[
    str,
    typer.Option(
        "--judge-key-env", help="Environment variable that holds the key of the judge's server.",
        rich_help_panel=SCORING,
    ),
]  # fmt: skip

# Where settings come from
Config = Annotated[
    Path | None, typer.Option("--config", help="TOML file with settings of this command.", rich_help_panel=SETTINGS)
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Setting to change; --settings lists the keys. Repeatable.",
        rich_help_panel=SETTINGS,
    ),
]
ShowSettings = Annotated[
    bool,
    typer.Option("--settings", help="List all keys for --set with their defaults, and stop.", rich_help_panel=SETTINGS),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the resolved settings as JSON, and stop.", rich_help_panel=SETTINGS)
]
DryRunPlan = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Print the resolved settings and what the run would do, without loading a model, and stop.",
        rich_help_panel=SETTINGS,
    ),
]

RunFolder = Annotated[
    Path | None,
    typer.Option("--out", help="Required: folder of the run. Run again with it to go on.", rich_help_panel=OUTPUT),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON and nothing else.", rich_help_panel=OUTPUT)
]

RUN_FLAGS: Final = {
    "--mode": "mode",
    "--tokenizer": "tokenizer",
    "--api-key-env": "api_key_env",
    "--prompt": "prompt",
    "--prompt-file": "prompt_file",
    "--top-p": "top_p",
    "--top-k": "top_k",
    "--constrain": "constrain",
    "--price-in": "price.input",
    "--price-cached": "price.cached",
    "--price-out": "price.output",
    "--prices": "prices",
    "--cache": "cache",
    "--cache-file": "cache_file",
}
"""Flags that are settings now, with the keys of `RunConfig` that they stand for."""
