"""A profile made from a team's traces: the runs that it was made from follow it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import JsonValue
from typer.testing import CliRunner

from coa.cli import app
from coa.distill import profile_from_traces
from coa.distill.atif_writer import to_atif
from coa.distill.config import DistillConfig
from coa.distill.convert import convert
from coa.distill.distillation import distill
from coa.distill.profile_from_traces import propose
from coa.distill.profile_toml import to_toml
from coa.distill.roles import RoleMap, Roles
from coa.distill.team_run import AgentRun, Source, TeamRun
from coa.distill.tool_names import tag_of
from coa.errors import CoaError, ConfigError, ProfileError
from coa.models.scripted import ScriptedModel
from coa.trajectory import Form, Kind, Profile, Rule, Task, Trajectory, check, load_profile
from coa.trajectory.profile import shipped
from coa.trajectory.shapes import FieldType
from support.distilled import good
from support.recorded_teams import CORPUS
from support.runs import run
from support.team_runs import team_runs
from support.told_teams import agent, asks, called, code, member, plans, result, team, thinks, tower
from support.tools import FakeTool
from support.trace_samples import SAMPLES

LAXER = (Rule.MISSING_OBSERVATION, Rule.UNEXPECTED_OBSERVATION, Rule.NO_ANSWER, Rule.AFTER_ANSWER)
"""What no profile can allow: results that the trace does not have."""


def shop(number: int = 1, *, definitions: dict[str, JsonValue] | None = None) -> TeamRun:
    """A manager with a clerk who has a calculator, a database and a CRM."""
    clerk = agent(
        "clerk",
        thinks("I look the order up.", asks("a", "lookupOrder", order_id=f"A-{number}", limit=3)),
        result("a", '{"price": 12, "count": 4}'),
        thinks("The total is the product.", asks("b", "calculator", expression="12 * 4")),
        result("b", "48"),
        thinks("I note it.", asks("c", "crm.note", text="Total 48.\n\nTold the customer.")),
        result("c", "saved"),
        answer="48",
        meta={"tool_definitions": definitions} if definitions else {},
    )
    root = agent(
        "manager",
        thinks("The clerk knows.", member("m", "clerk", task="Find the total")),
        called("m", clerk),
        result("m", "48", report_of=("clerk",)),
        answer="48",
    )
    task = Task(id=f"order-{number}", question=f"What is the total of order A-{number}?", answer="48")
    return TeamRun(task=task, root=root, source=Source(format="atif", file="a.json"))


def proposed(*runs: TeamRun, **rest: object) -> Profile:
    return propose(lambda: runs, **rest).profile  # type: ignore[arg-type]


def broken(runs: Iterable[TeamRun], profile: Profile, roles: RoleMap | None = None) -> list[str]:
    """What a profile could have allowed and did not."""
    steps = [convert(run, profile, roles).steps for run in runs]
    return [one.message for each in steps for one in check(each, profile) if one.rule not in LAXER]


def test_a_team_with_its_own_tools_gets_a_profile_that_its_runs_follow() -> None:
    runs = [shop(1), shop(2)]
    made = propose(lambda: runs, name="shop")
    assert (made.runs, made.fitting) == (2, 2) and not made.notes
    assert set(made.profile.tools) == {"lookup_order", "calculator", "crm_note"}
    assert dict(made.tools) == {"lookup_order": 2, "calculator": 2, "crm_note": 2}
    shapes = {tag: made.profile.shape(tag).form for tag in made.profile.tools}
    assert shapes == {"lookup_order": Form.JSON, "calculator": Form.LINE, "crm_note": Form.TEXT}
    assert not broken(runs, made.profile)
    assert "called 2 times in 2 of 2 runs" in made.toml


def test_the_file_loads_as_the_proposed_profile(tmp_path: Path) -> None:
    made = propose(lambda: [shop(), tower()], name="shop")
    file = tmp_path / "mine.toml"
    file.write_text(made.toml, encoding="utf-8")
    assert load_profile(file) == made.profile


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_profile_can_be_written_as_a_file(name: str, tmp_path: Path) -> None:
    file = tmp_path / "copy.toml"
    file.write_text(to_toml(load_profile(name), {"": "a\nb"}), encoding="utf-8")
    assert load_profile(file) == load_profile(name)


@pytest.mark.parametrize("example", ["\n<think>\n", "a\nb'", "a\n'''", "a\r\nb", "tab\there\n"])
def test_an_example_is_written_as_it_is(example: str, tmp_path: Path) -> None:
    profile = load_profile("web").model_copy(update={"example": example})
    file = tmp_path / "copy.toml"
    file.write_text(to_toml(profile), encoding="utf-8", newline="")
    assert load_profile(file).example == example


def test_distilling_with_the_proposed_profile_keeps_the_runs(tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()
    questions = ("What does the red kettle cost?", "Who ordered nine lamps in May?")
    for number, question in enumerate(questions):
        run = shop(number)
        run = run.model_copy(update={"task": run.task.model_copy(update={"question": question})})
        (traces / f"{number}.json").write_text(json.dumps(to_atif(run)))
    mine = tmp_path / "mine.toml"
    mine.write_text(profile_from_traces(traces, name="shop").toml, encoding="utf-8")
    report = distill(DistillConfig(profile=str(mine)), [traces], tmp_path / "data")
    assert (report.kept, report.unreadable) == (2, 0)


@given(runs=st.lists(team_runs(), min_size=1, max_size=3))
@settings(max_examples=60, deadline=None)
def test_whatever_a_team_did_its_runs_break_no_rule_of_the_profile_made_from_them(runs: list[TeamRun]) -> None:
    made = propose(lambda: runs)
    assert not broken(runs, made.profile)


@pytest.mark.parametrize("name", SAMPLES)
def test_each_trace_format_gives_a_profile_that_its_runs_follow(name: str, tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_bytes(SAMPLES[name])
    made = profile_from_traces(file)
    assert made.runs >= 1
    assert not [note for note in made.notes if "break a rule" in note]


def test_an_own_tool_goes_before_the_patterns() -> None:
    profile = proposed(shop(), team(thinks("Now.", code("p", "print(2 ** 10)")), result("p", "1024"), answer="1024"))
    roles = Roles()
    assert tag_of("calculator", profile, roles) == "calculator"
    assert tag_of("Calculator", profile, roles) == "calculator"
    assert tag_of("python_interpreter", profile, roles) == "code"


def test_definitions_decide_shape_and_description() -> None:
    schema: dict[str, JsonValue] = {
        "type": "object",
        "properties": {
            "order_id": {"type": "string", "description": "as printed on the bill"},
            "limit": {"type": "integer"},
            "currency": {"type": "string"},
        },
        "required": ["order_id", "limit"],
    }
    text = "Evaluate an expression.\n\nArgs:\n    expression: the expression"
    calculator: dict[str, JsonValue] = {"type": "object", "properties": {"expression": {"type": "string"}}}
    definitions: dict[str, JsonValue] = {
        "lookupOrder": {"description": "Find an order.", "parameters": schema},
        "calculator": {"description": text, "parameters": calculator},
        "refund": {"type": "object", "properties": {}},
    }
    made = propose(lambda: [shop(definitions=definitions)])
    fields = made.profile.shape("lookup_order").fields
    assert [(name, field.type, field.required) for name, field in fields.items()] == [
        ("order_id", FieldType.STRING, True), ("limit", FieldType.INTEGER, True), ("currency", FieldType.STRING, False),
    ]  # fmt: skip
    assert fields["order_id"].about == "as printed on the bill"
    assert made.profile.agents["calculator"].does == "Evaluate an expression. Write its argument expression."
    assert any("never called" in note and "refund" in note for note in made.notes)
    assert "Find an order." in made.profile.system_prompt


def test_a_definition_that_the_calls_contradict_gives_way() -> None:
    text: JsonValue = {"type": "object", "properties": {"expression": {"type": "integer"}}, "required": ["base"]}
    order: JsonValue = {"type": "object", "properties": {"limit": {"type": "string"}}}
    runs = [shop(definitions={"calculator": text, "lookupOrder": order})]
    made = propose(lambda: runs)
    assert made.profile.shape("calculator").form is Form.LINE
    assert made.profile.shape("lookup_order").form is Form.JSON and not made.profile.shape("lookup_order").fields
    assert made.notes == ("lookup_order: limit is integer and string; its shape accepts any JSON object",)
    assert "limit" in made.profile.agents["lookup_order"].does
    assert not broken(runs, made.profile)


def test_our_own_tools_keep_their_shape_and_others_of_their_name_do_not() -> None:
    ours = team(
        thinks("Search.", asks("s", "web_search", query="tower", max_results=5)),
        result("s", "a"),
        thinks("Read.", asks("v", "crawl_page", url="http://ex.org/a|b")),
        result("v", "b"),
    )
    made = propose(lambda: [ours])
    assert made.profile.shape("web_search").form is Form.LINE and made.profile.shape("crawl_page").form is Form.LIST
    assert made.notes == ("web_search: coa's own tool has no argument max_results; it is left out",)
    other = team(thinks("Search.", asks("s", "web_search", query="tower", site="ex.org")), result("s", "a"))
    assert proposed(other).shape("web_search").form is Form.JSON
    assert not broken([ours], made.profile)


def test_tools_with_the_names_of_roles_get_tags_of_their_own() -> None:
    run = team(
        thinks("Hm.", asks("t", "think", thought="harder")), result("t", "ok"),
        thinks("Now.", asks("d", "drop", table="x")), result("d", "dropped"),
        thinks("Ask.", asks("q", "查询", 城市="x", n=1)), result("q", "1"),
        thinks("Again.", asks("r", "搜索", 城市="x", n=1)), result("r", "1"),
    )  # fmt: skip
    profile = proposed(run)
    assert {"think_tool", "drop_tool"} < set(profile.tools) and len(profile.tools) == 4
    assert profile.agents["think"].kind is Kind.THOUGHT
    assert not broken([run], profile)


def test_parts_appear_only_where_the_team_has_them() -> None:
    bare, full = proposed(shop()), proposed(tower())
    assert set(bare.agents) == {"think", "lookup_order", "calculator", "crm_note", "answer"}
    assert {"plan", "suggested_answer", "double_check"} < set(full.agents) and "reflection" not in full.agents
    assert full.distill.keep_without_reflection == bare.distill.keep_without_reflection == 1.0
    assert full.start == ("plan",)
    verdict = full.agents["double_check"].verdict
    assert verdict is not None and verdict.passed == ("answer",) and "answer" not in verdict.failed


def test_a_thought_is_required_where_the_team_always_wrote_one() -> None:
    silent = team(thinks("", asks("a", "calculator", expression="1")), result("a", "1"))
    assert all(proposed(shop()).agents[tag].thought for tag in ("lookup_order", "calculator", "crm_note"))
    assert not proposed(shop(), silent).agents["calculator"].thought


def test_two_teams_in_one_folder_get_the_union_of_their_tools(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(to_atif(shop())))
    (tmp_path / "b.json").write_text(json.dumps(to_atif(tower())))
    row = {"messages": [{"role": "user", "content": "How much?"}, {"role": "assistant", "content": "7"}]}
    (tmp_path / "c.jsonl").write_text(json.dumps(row))
    made = profile_from_traces(tmp_path)
    assert made.runs == 3 == made.fitting
    assert {"calculator", "web_search", "visit_page"} < set(made.profile.tools)
    assert any("without any tool call" in note for note in made.notes)


def test_trajectories_between_the_traces_follow_the_profile_too() -> None:
    mixed: list[TeamRun | Trajectory] = [shop(), good()]
    made = propose(lambda: mixed)
    assert made.fitting == made.runs == 2
    assert made.profile.shape("web_search").form is Form.LINE


def test_thresholds_come_from_the_runs() -> None:
    once = team(thinks("Now.", asks("a", "calculator", expression="1")), result("a", "x" * 3_000))
    assert proposed(shop()).distill.min_tool_calls == 2 and proposed(shop(), once).distill.min_tool_calls == 1
    assert proposed(once).limits.observation_characters == 3_000
    assert proposed(team(thinks("I know."))).distill.min_tool_calls == 0


def test_a_roles_file_names_tool_agents(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(to_atif(shop())))
    roles = tmp_path / "roles.toml"
    roles.write_text('[tools]\nlookupOrder = "orders"\n"crm.note" = "drop"\n')
    assert set(profile_from_traces(tmp_path / "a.json", roles=roles).profile.tools) == {"orders", "calculator"}
    roles.write_text('[tools]\nlookupOrder = "My Orders"\n')
    with pytest.raises(ConfigError, match="My Orders"):
        profile_from_traces(tmp_path / "a.json", roles=roles)


def test_a_run_that_cannot_be_expressed_is_named() -> None:
    lost = team(thinks("Ask.", member("m", "clerk", task="x")), answer="1")
    made = propose(lambda: [lost, shop()])
    assert made.fitting == 1 and any("clerk" in note for note in made.notes)


def test_nothing_readable_is_an_error_that_names_the_reason(tmp_path: Path) -> None:
    with pytest.raises(CoaError, match="no traces"):
        profile_from_traces(tmp_path)
    (tmp_path / "x.json").write_text('{"weather": 1}')
    with pytest.raises(CoaError, match="no known trace format"):
        profile_from_traces(tmp_path)
    with pytest.raises(ProfileError, match="cannot name a profile"):
        propose(lambda: [shop()], name="my team")


def test_an_agent_that_only_asks_and_plans_still_gets_a_profile() -> None:
    run = team(plans("1. think\n2. answer"), answer=None)
    made = propose(lambda: [run])
    assert made.profile.agents["plan"].next and any("no run ends with an answer" in note for note in made.notes)
    empty = run.model_copy(update={"root": AgentRun(id="r", agent="r")})
    assert proposed(empty).start == ("answer",)


def test_many_tools_with_the_same_followers_share_one_rule_in_the_prompt() -> None:
    few, many = proposed(shop()).system_prompt, proposed(shop(), tower()).system_prompt
    assert few.count("After the observation") == 3 and many.count("After the observation") == 1


def test_descriptions_of_recorded_tools_reach_the_prompt() -> None:
    made = profile_from_traces(CORPUS / "mlflow" / "own" / "traces.jsonl")
    assert made.profile.agents["calculator"].does == "Calculate an expression. Write its argument expression."
    assert "Calculate an expression." in made.profile.system_prompt


def test_a_model_runs_with_the_proposed_profile_and_the_tools_of_the_team() -> None:
    profile = proposed(shop())
    tools = {"lookup_order": FakeTool(lambda given: f"{given['order_id']} costs 12"), "calculator": FakeTool(str)}
    script = [
        '<think>Look.</think>\n<lookup_order>\n```json\n{"order_id": "A-1", "limit": 3}\n```\n</lookup_order>',
        "<think>Add.</think>\n<calculator>12 * 4</calculator>",
        "<think>Done.</think>\n<answer>48</answer>",
    ]
    done = asyncio.run(run("What is the total?", ScriptedModel(script), tools, profile))
    assert done.answer == "48" and check(done.steps, profile) == ()
    assert tools["lookup_order"].asked == [{"order_id": "A-1", "limit": 3}]
    assert tools["calculator"].asked == [{"text": "12 * 4"}]


def test_the_command_prints_the_profile_and_a_summary_beside_it(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(to_atif(shop())))
    done = CliRunner().invoke(app, ["profile", "from-traces", str(tmp_path), "--name", "shop"])
    assert done.exit_code == 0 and done.stdout.startswith("# Proposed by") and 'name = "shop"' in done.stdout
    assert "1 run; 1 of them follow the proposed profile" in done.stderr and "calculator (1 call)" in done.stderr
    as_json = CliRunner().invoke(app, ["profile", "from-traces", str(tmp_path), "--json"])
    assert Profile.model_validate(json.loads(as_json.stdout)["profile"]).tools
