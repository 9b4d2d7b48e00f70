"""Tools are found by name, opened with a setting, and closed whatever happens."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name

import pytest
from typer.testing import CliRunner

from coa.cli import app
from coa.errors import ToolError
from coa.tools import Tool
from coa.tools import registry as registry_module
from coa.tools.registry import Declaration, any_variable, declarations, open_tool, open_tools, package
from coa.trajectory import Form, Shape
from support.tools import FakeTool, searching

invoke = CliRunner().invoke
OWN = """
from coa.tools import Observation
from coa.trajectory import Form, Shape

class Echo:
    about = "says it back."
    shape = Shape(form=Form.LINE)
    timeout_s = 5.0
    async def call(self, arguments, context):
        if arguments["text"] == "fail":
            raise RuntimeError("no")
        return Observation(f"{arguments['text']} for {context.task.question}", meta={"source": "echo"})

def broken():
    return object()
"""


class Closing(FakeTool):
    closed = False

    async def close(self) -> None:
        self.closed = True
        raise RuntimeError("closing may fail too")


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "owntools.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("owntools", None)


def declare(monkeypatch: pytest.MonkeyPatch, *declared: Declaration) -> None:
    monkeypatch.setattr(registry_module, "SHIPPED", declared)


def test_listing_the_tools_imports_none_of_them() -> None:
    code = (
        "import sys\nfrom coa.tools.registry import declarations\n"
        "for declared in declarations().values(): declared.missing()\n"
        "print(sorted({'aiohttp', 'tantivy', 'bm25s', 'trafilatura', 'mcp', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_every_shipped_declaration_leads_to_a_function() -> None:
    for declared in declarations().values():
        if isinstance(declared.open, str):
            assert callable(resolve_name(declared.open)), declared.name


def test_a_setting_is_handed_to_the_tool_and_an_absent_one_asks_for_what_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str | None] = []

    def opening(setting: str | None, environment: object) -> Tool:
        asked.append(setting)
        return searching()

    need = any_variable("A_KEY", "B_KEY", or_else="--tool lookup=FILE")
    declare(monkeypatch, Declaration("lookup", "looks up", opening, (need,)))
    open_tool("lookup", "http://host:80/x", {})
    open_tool("lookup", None, {"B_KEY": "b"})
    assert asked == ["http://host:80/x", None]
    with pytest.raises(ToolError, match="no A_KEY or B_KEY") as refused:
        open_tool("lookup", None, {"A_KEY": ""})
    assert refused.value.hint == "set one, or --tool lookup=FILE"
    with pytest.raises(ToolError, match="no tool named 'other'"):
        open_tool("other", "x/", {})


def test_a_missing_package_is_named_with_the_command_that_installs_it() -> None:
    error = package("no_such_package_here")({})
    assert error is not None and str(error.hint).endswith("coa setup tools")
    assert package("json")({}) is None


def gather(given: list[str], **options: object) -> tuple[dict[str, Tool], dict[str, ToolError]]:
    async def go() -> tuple[dict[str, Tool], dict[str, ToolError]]:
        async with open_tools(given, **options) as box:  # type: ignore[arg-type]
            return dict(box.tools), dict(box.absent)

    return asyncio.run(go())


def test_what_a_profile_wants_is_opened_where_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    need = any_variable("A_KEY", or_else="give up")
    tool = Closing(lambda arguments: "x")
    declare(monkeypatch, Declaration("here", "", lambda s, e: tool), Declaration("not_here", "", "m:f", (need,)))
    opened, absent = gather([], wanted=["here", "not_here", "unheard_of"], environment={})
    assert opened == {"here": tool} and tool.closed
    assert absent["not_here"].message == "no A_KEY in the environment"
    assert absent["unheard_of"].hint == "--tool unheard_of=module:factory"


def test_an_index_that_is_not_there_does_not_keep_a_run_from_starting(tmp_path: Path) -> None:
    opened, absent = gather([], wanted=["wiki_search"], environment={"COA_WIKI_INDEX": str(tmp_path)})
    assert not opened and "is not a search index" in absent["wiki_search"].message


def test_what_the_user_names_must_work(monkeypatch: pytest.MonkeyPatch, own: Path) -> None:
    first = Closing(lambda arguments: "x")
    declare(monkeypatch, Declaration("first", "", lambda s, e: first))
    for wrong in ("first=", "=x", "first", "echo=owntools:nothing", "echo=nomodule:Echo", "echo=owntools:broken"):
        with pytest.raises(ToolError):
            gather(["first", wrong])
        assert first.closed, "what was open already is closed"
        first.closed = False
    opened, _ = gather(["first=owntools:Echo"])
    assert type(opened["first"]).__name__ == "Echo", "a user's own tool may take a shipped one's name"


def test_a_tool_is_tried_by_hand(own: Path) -> None:
    option = ["--tool", "echo=owntools:Echo"]
    done = invoke(app, ["tools", "call", "echo", "hello", "--question", "why?", *option])
    assert (done.exit_code, done.stdout) == (0, "hello for why?\n")
    shown = json.loads(invoke(app, ["tools", "call", "echo", "hello", "--json", *option]).stdout)
    assert shown == {"text": "hello for hello", "ok": True, "meta": {"source": "echo"}}
    piped = invoke(app, ["tools", "call", "echo", "-", *option], input="from stdin\n")
    assert piped.stdout.startswith("from stdin for")
    failed = invoke(app, ["tools", "call", "echo", "fail", *option])
    assert failed.exit_code == 1 and failed.stdout == "error: RuntimeError: no\n"
    unreadable = invoke(app, ["tools", "call", "echo", " ", *option])
    assert isinstance(unreadable.exception, ToolError) and "it is empty" in str(unreadable.exception)


def test_tools_are_listed_with_the_cure_for_those_that_do_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    need = any_variable("SOME_KEY_THAT_IS_NOT_SET", or_else="do without")
    declare(monkeypatch, Declaration("yes", "works.", "m:f"), Declaration("no", "does not.", "m:f", (need,)))
    shown = invoke(app, ["tools", "list"]).stdout
    assert "ok  yes" in shown and "hint: set it, or do without" in shown
    listed = {row["name"]: row for row in json.loads(invoke(app, ["tools", "list", "--json"]).stdout)}
    assert listed["yes"]["works"] and not listed["no"]["works"] and listed["no"]["hint"]
    assert "tool no" in invoke(app, ["doctor"]).stdout


def test_another_packages_entry_point_is_a_tool(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own: Path, caplog: pytest.LogCaptureFixture
) -> None:
    info = tmp_path / "owntools-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: owntools\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[coa.tools]\necho = owntools:Echo\ntaken = owntools:Echo\n")
    declare(monkeypatch, Declaration("taken", "ours", lambda s, e: searching()))
    found = declarations()
    assert set(found) == {"echo", "taken"} and found["taken"].about == "ours" and "name is taken" in caplog.text
    assert open_tool("echo").shape == Shape(form=Form.LINE)
    with pytest.raises(ToolError, match="takes no setting"):
        open_tool("echo", "x/")
