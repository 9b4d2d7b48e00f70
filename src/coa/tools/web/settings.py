"""Settings of fetching: from the environment, or after the tool's name (`--tool crawl_page=robots=off`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from coa.errors import ToolError
from coa.tools.web.guard import AllowList

ALLOW = "COA_FETCH_ALLOW"
"""Hosts and ports in the private network that may be fetched, separated by commas, such as `127.0.0.1:8080`."""


def parse_setting(tool: str, setting: str | None, known: Collection[str]) -> dict[str, list[str]]:
    """`key=value,key=value`; a key may occur several times."""
    found: dict[str, list[str]] = {}
    for item in (setting or "").split(","):
        if not item.strip():
            continue
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or key not in known:
            hint = f"--tool {tool}=KEY=VALUE,... with the keys {', '.join(sorted(known))}"
            raise ToolError(f"{tool}: {item.strip()!r} is not a setting", hint=hint)
        found.setdefault(key, []).append(value)
    return found


def allow_list(given: Collection[str], environment: Mapping[str, str]) -> AllowList:
    try:
        return AllowList.parse([*given, *environment.get(ALLOW, "").split(",")])
    except ValueError as error:
        raise ToolError(f"the allow-list is wrong: {error}", hint="write for instance 127.0.0.1:8080") from error


def switch(tool: str, key: str, value: str) -> bool:
    if value.lower() in ("on", "yes", "true", "1"):
        return True
    if value.lower() in ("off", "no", "false", "0"):
        return False
    raise ToolError(f"{tool}: {key} is {value!r}", hint=f"{key}=on or {key}=off")
