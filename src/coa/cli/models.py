"""What every command that runs a model shares: from `--model` to a model, from `--tool` to tools."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from coa.errors import ModelError, ToolError
from coa.models.base import Model
from coa.models.connect import Mode, connect
from coa.tools import Tool


async def open_model(
    source: str,
    name: str | None = None,
    *,
    mode: Mode = Mode.AUTO,
    tokenizer: str | None = None,
    api_key_env: str = "COA_API_KEY",
) -> Model:
    """A server's URL, `smollm2`, a model folder, or a hub id."""
    if source.startswith(("http://", "https://")):
        return await connect(source, name, mode=mode, tokenizer=tokenizer, api_key_env=api_key_env)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: waiting threads must not spin
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        from coa.models.local import load_local
    except ImportError as error:
        raise ModelError(
            f"running weights in this process needs torch and transformers ({error})",
            cure=f"{sys.executable} -m pip install 'chain-of-agents[local]', or give the URL of a model server",
        ) from error
    return load_local(source)


def load_tools(given: Sequence[str]) -> dict[str, Tool]:
    """`name=module:factory`, each: the factory is called without arguments and returns a tool."""
    tools: dict[str, Tool] = {}
    for item in given:
        name, _, target = item.partition("=")
        module_name, _, factory_name = target.partition(":")
        if not (name and module_name and factory_name):
            raise ToolError(f"--tool {item!r} is not of the form name=module:factory")
        if str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        try:
            tool = getattr(importlib.import_module(module_name), factory_name)()
        except (ImportError, AttributeError) as error:
            raise ToolError(f"--tool {item!r}: {error}") from error
        if not isinstance(tool, Tool):
            raise ToolError(f"--tool {item!r}: it has no `about`, `shape`, `timeout_s` and `call`, so it is not a tool")
        tools[name] = tool
    return tools
