"""Tools by name: those that come with coa, those that other packages add, and those that a user names.

A shipped tool is a short `Declaration`: its module is imported only when the tool is opened, so that listing tools
costs nothing. Other packages declare their tools under the entry point group `coa.tools`.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import Final, TypeGuard

from coa.errors import CoaError, ToolError
from coa.importing import import_function, load_entry_point
from coa.tools.base import Tool, close_tool
from coa.trajectory import OBSERVATION

log = logging.getLogger(__name__)

GROUP: Final = "coa.tools"
"""Entry points of this group are tools: a `Declaration`, or a factory without arguments."""

Environment = Mapping[str, str]
Open = Callable[[str | None, Environment], Tool]
"""Takes the text that the user wrote after `name=`, and the environment, which has the keys. Raises ToolError."""
Need = Callable[[Environment], ToolError | None]
"""Returns what is missing here, without importing anything heavy or using the network."""


@dataclass(frozen=True)
class Declaration:
    """A tool that can be opened by name."""

    name: str
    about: str
    """One line for `coa tools list`."""
    open: Open | str
    """The function, or its place as `module:function`, which is imported when needed."""
    needs: tuple[Need, ...] = ()
    """What the tool needs if it has no setting."""

    def missing(self, environment: Environment = os.environ) -> ToolError | None:
        """Why the tool cannot be opened here without a setting; None if it can, as far as a quick check shows."""
        return next((error for need in self.needs if (error := need(environment)) is not None), None)

    def opened(self, setting: str | None = None, environment: Environment = os.environ) -> Tool:
        if setting is None and (error := self.missing(environment)) is not None:
            raise error
        try:
            opening: Open = resolve_name(self.open) if isinstance(self.open, str) else self.open
            tool = opening(setting, environment)
        except ImportError as error:
            raise ToolError(f"{self.name}: {error}", needs=["tools"]) from error
        return _checked(tool, self.name)


def package(module: str, *, extra: str = "tools") -> Need:
    """The tool needs this Python package."""

    def need(environment: Environment) -> ToolError | None:
        if find_spec(module) is not None:
            return None
        return ToolError(f"the package {module} is not installed", needs=[extra])

    return need


def any_variable(*names: str, or_else: str) -> Need:
    """The tool needs at least one of these environment variables; `or_else` describes the alternative."""

    def need(environment: Environment) -> ToolError | None:
        if any(environment.get(name) for name in names):
            return None
        listed = ", ".join(names[:-1]) + (" or " if len(names) > 1 else "") + names[-1]
        hint = f"set {'one' if len(names) > 1 else 'it'}, or {or_else}"
        return ToolError(f"no {listed} in the environment", hint=hint)

    return need


SEARCH_FOLDER: Final = "search an index of your own: --tool web_search=FOLDER (coa index build makes one)"
BUILD_INDEX: Final = "coa index build CORPUS --out FOLDER, then --tool wiki_search=FOLDER"
SHIPPED: Final[tuple[Declaration, ...]] = (
    Declaration("code", "runs a Python program in a sandbox and gets what it prints", "coa.tools.code:open_code"),
    Declaration("web_search", "looks queries up on the web or in a local index", "coa.tools.web_search:open_web_search",
                (any_variable("SERPAPI_API_KEY", "SERPER_API_KEY", "SEARXNG_URL", or_else=SEARCH_FOLDER),)),
    Declaration("wiki_search", "looks queries up in a local index or at a /retrieve server and gets passages",
                "coa.tools.wiki_search:open_wiki_search", (any_variable("COA_WIKI_INDEX", or_else=BUILD_INDEX),)),
    Declaration("crawl_page", "opens web pages and documents by address and gets their text",
                "coa.tools.crawl_page:open_crawl_page", (package("trafilatura"), package("protego"))),
    Declaration("read_file", "reads a file of the task: tables, documents, slides, PDF, archives, text",
                "coa.tools.read_file:open_read_file",
                (package("pypdf"), package("openpyxl"), package("docx"), package("pptx"))),
    Declaration("visual_inspector", "looks at an image, by address or of the task, and answers a question about it",
                "coa.tools.visual_inspector:open_visual_inspector",
                (any_variable("COA_VISION_URL", or_else="--tool visual_inspector=url=URL,model=NAME"),)),
)  # fmt: skip


def declarations() -> dict[str, Declaration]:
    """Every tool that can be opened by name. A shipped name cannot be taken by another package."""
    found = {declaration.name: declaration for declaration in SHIPPED}
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        if point.name in found:
            log.warning("the tool %s of %s is left out: the name is taken", point.name, point.value)
            continue
        found[point.name] = Declaration(point.name, f"from {point.value}", _of_entry_point(point))
    return found


def open_tool(name: str, setting: str | None = None, environment: Environment = os.environ) -> Tool:
    """A declared tool with its setting, or a tool of the user if the setting is `module:factory`."""
    if _is_factory(setting):
        return _checked(_factory(name, setting)(), name)
    known = declarations()
    if name not in known:
        raise _no_such_tool(name, known)
    return known[name].opened(setting, environment)


def check_tools(given: Sequence[str]) -> None:
    """Refuse names and factories that `open_tool` would refuse, without opening a tool."""
    known = declarations()
    for name, setting in _named(given):
        if _is_factory(setting):
            _factory(name, setting)
        elif name not in known:
            raise _no_such_tool(name, known)


def _named(given: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Names of tools with their settings."""
    seen: set[str] = set()
    for item in given:
        name, equals, setting = item.partition("=")
        if not name or (equals and not setting):
            raise ToolError(f"--tool {item!r} is not of the form name=setting or name=module:factory")
        if name in seen:
            raise ToolError(f"--tool {name} is given twice")
        seen.add(name)
        yield name, setting or None


def _is_factory(setting: str | None) -> TypeGuard[str]:
    return setting is not None and _FACTORY.fullmatch(setting) is not None and not Path(setting).exists()


def _factory(name: str, setting: str) -> Callable[[], object]:
    return import_function(setting, what=f"--tool {name}: the factory", error=ToolError)


def _no_such_tool(name: str, known: Iterable[str]) -> ToolError:
    hint = f"use one of {', '.join(known)}, or {name}=module:factory for one of your own"
    return ToolError(f"there is no tool named {name!r}", hint=hint)


@dataclass(frozen=True)
class Toolbox:
    """Tools opened together, and why others were not."""

    tools: dict[str, Tool] = field(default_factory=dict)
    absent: dict[str, ToolError] = field(default_factory=dict)


@asynccontextmanager
async def open_tools(
    given: Sequence[str] = (),
    *,
    wanted: Iterable[str] = (),
    environment: Environment = os.environ,
    wrap: Callable[[str, Tool], Tool] | None = None,
    mcp: Sequence[str] = (),
    tags: Collection[str] = (),
) -> AsyncIterator[Toolbox]:
    """Open tools, and close them at the end of the `async with` block.

    Args:
        given: Tools as a user writes them: `name`, `name=setting` or `name=module:factory`.
        wanted: Names of tools that a profile calls. Those that are not available are listed in `absent`.
        environment: Where to look up keys.
        wrap: Is applied to each tool, for example to add a cache.
        mcp: Commands or URLs of MCP servers whose tools to add.
        tags: Tags of the profile. Tools of MCP servers get names that differ from these.

    Yields:
        The opened tools (`tools`), and the reasons why others are not available (`absent`).

    Raises:
        ToolError: A tool in `given` does not exist or cannot be opened.
    """
    box = Toolbox()
    stack = AsyncExitStack()
    try:
        for name, setting in _named(given):
            box.tools[name] = open_tool(name, setting, environment)
        known = declarations()
        for name in wanted:
            if name not in box.tools:
                try:
                    box.tools[name] = open_tool(name, None, environment)
                except CoaError as error:
                    unknown = "coa has no tool of that name", f"--tool {name}=module:factory"
                    message, hint = (error.message, error.hint) if name in known else unknown
                    box.absent[name] = ToolError(message, hint=hint)
        if mcp:
            try:
                from coa.tools.mcp import open_mcp
            except ImportError as error:
                raise ToolError(f"--mcp: {error}", needs=["tools"]) from error
            taken = {*tags, *known, *box.tools, OBSERVATION}
            servers = open_mcp(mcp, taken=taken, environment=environment)
            box.tools.update(await stack.enter_async_context(servers))
        if wrap is not None:
            for name, tool in box.tools.items():
                box.tools[name] = wrap(name, tool)
        yield box
    finally:
        for name, tool in box.tools.items():
            try:
                await close_tool(tool)
            except Exception as error:  # code of any origin runs here; the other tools must still be closed
                log.warning("closing the tool %s failed: %s: %s", name, type(error).__name__, error)
        await stack.aclose()


_FACTORY: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def _of_entry_point(point: EntryPoint) -> Open:
    def opening(setting: str | None, environment: Environment) -> Tool:
        found = load_entry_point(point, what="the tool", error=ToolError)
        if isinstance(found, Declaration):
            return found.opened(setting, environment)
        if setting is not None:
            raise ToolError(f"the tool {point.name} takes no setting", hint=f"--tool {point.name}")
        return _checked(found(), point.name)

    return opening


def _checked(tool: object, name: str) -> Tool:
    if not isinstance(tool, Tool):
        raise ToolError(f"{name} has no `about`, `shape`, `timeout_s` and `call`, so it is not a tool")
    return tool
