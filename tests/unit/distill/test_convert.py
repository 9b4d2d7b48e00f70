"""From a team's run to one trajectory: what is told, by whom, and what stays out."""

from __future__ import annotations

from typing import Any

import pytest

from coa.distill.convert import convert
from coa.distill.fill import gaps
from coa.distill.filters.rules import broken_rules
from coa.distill.roles import Role, RoleMap, load_roles
from coa.distill.team_run import EvaluatorVerdict, Note, Purpose, ToolResult
from coa.errors import ConfigError
from coa.trajectory import Author, Profile, Trajectory, check, load_profile
from support.told_teams import agent, asks, called, code, inside, member, plans, result, team, thinks, tower

WEB, NANO, ALL, CODE, MHQA = (load_profile(name) for name in ("web", "nano", "all", "code", "mhqa"))


def told(trajectory: Trajectory) -> list[tuple[str, str]]:
    return [(step.agent, step.text) for step in trajectory.steps]


def agents(trajectory: Trajectory) -> list[str]:
    return [step.agent for step in trajectory.steps]


@pytest.mark.parametrize("profile", [WEB, ALL, NANO], ids=lambda profile: profile.name)
def test_a_whole_team_run_obeys_the_protocol(profile: Profile) -> None:
    run = convert(tower(), profile)
    assert check(run.steps, profile) == ()
    assert run.answer == "330 m" and run.task.answer == ("330 m",)


def test_sub_runs_stand_where_they_were_called_and_keep_their_thinker() -> None:
    run = convert(tower(), WEB)
    by = [step.meta.get("by") for step in run.steps if step.author is Author.MODEL]
    first, last = by.index("search_agent"), len(by) - 1 - by[::-1].index("search_agent")
    assert set(by[first : last + 1]) == {"search_agent"}
    assert by[first - 1] == by[last + 1] == "manager"


def test_what_orchestration_wrote_is_told_nowhere() -> None:
    whole = "\n".join(step.text for step in convert(tower(), WEB).steps)
    assert "Here is the report" not in whole and "Task outcome" not in whole and "Find the height" not in whole


def test_copied_context_and_notes_and_models_inside_tools_are_left_out() -> None:
    run = team(
        thinks("mine", asks("a", "web_search", query="q")).model_copy(update={"copied": True}),
        Note(text="a user interrupts"),
        thinks("summary of a page", purpose=Purpose.TOOL),
        thinks("only this"),
    )
    assert told(convert(run, NANO)) == [("think", "only this"), ("answer", "330 m")]


def test_an_error_is_an_observation_then_a_reflection() -> None:
    run = convert(tower(), WEB)
    at = next(index for index, step in enumerate(run.steps) if step.meta.get("ok") is False)
    assert agents(run)[at : at + 5] == ["observation", "think", "reflection", "think", "crawl_page"]
    # Its sentences are shared out in order; only the grades, which the profile wants, are added and marked.
    assert run.steps[at + 1].text == "The site did not answer."
    assert run.steps[at + 2].text.startswith("It may be down for long.\n")
    assert run.steps[at + 2].meta["derived"] == {"grades": "outcome"}
    assert run.steps[at + 3].text == "I open the other page."


def test_an_error_nobody_speaks_of_leaves_a_visible_gap() -> None:
    run = team(
        thinks("try", asks("a", "web_search", query="q")),
        result("a", "HTTP 500", ok=False),
        thinks("", asks("b", "web_search", query="r")),
        result("b", "found"),
    )
    converted = convert(run, WEB)
    assert "reflection" not in agents(converted)
    assert "missing_thought" in {violation.rule for violation in broken_rules(converted, WEB)}


def test_one_short_sentence_after_an_error_stays_a_thought() -> None:
    run = team(
        plans("Facts first.\n\nPlan: search"),
        thinks("try", asks("a", "web_search", query="q")),
        result("a", "HTTP 500", ok=False),
        thinks("Try again.", asks("b", "web_search", query="r")),
        result("b", "found"),
    )
    assert ("think", "Try again.") in told(convert(run, WEB))


def test_reasoning_kept_apart_gives_two_texts() -> None:
    run = team(
        thinks("try", asks("a", "web_search", query="q")),
        result("a", "HTTP 500", ok=False),
        thinks("The server is away; use the mirror.", asks("b", "web_search", query="r"), thought="Why did it fail?"),
        result("b", "found"),
    )
    # nano asks for no thought before a reflection or after it: the whole text is the reflection.
    steps = told(convert(run, NANO))
    assert ("reflection", "Why did it fail?\n\nThe server is away; use the mirror.") in steps


def test_a_plan_that_may_not_stand_there_is_kept_as_a_thought() -> None:
    run = convert(tower(), WEB)
    kept = [step for step in run.steps if step.meta.get("told_as") == "plan"]
    assert [step.text for step in kept] == ["Look twice.\n1. search\n2. read the page"]
    assert agents(run).count("plan") == 1


def test_facts_before_the_heading_are_the_thought_before_the_plan() -> None:
    run = convert(team(plans("## Facts\nnone\n## Plan\n1. ask\n2. check")), WEB)
    assert told(run)[:2] == [("think", "## Facts\nnone"), ("plan", "## Plan\n1. ask\n2. check")]


def test_a_rejected_answer_gets_a_low_score_and_an_accepted_one_a_high() -> None:
    no = agent("checker", thinks("Compare.", purpose=Purpose.ANSWER), answer="That is wrong.")
    yes = agent("checker", thinks("Compare again.", purpose=Purpose.ANSWER), answer="Verified.")
    run = team(
        thinks("check", member("a", "checker", answer="300 m")),
        called("a", no),
        thinks("again", member("b", "checker", answer="330 m")),
        called("b", yes),
    )
    checks = [
        (step.agent, step.text) for step in convert(run, WEB).steps if "suggest" in step.agent or "check" in step.agent
    ]
    assert checks == [
        ("suggested_answer", "300 m"),
        ("double_check", "That is wrong.\nscore: 1"),
        ("suggested_answer", "330 m"),
        ("double_check", "Verified.\nscore: 4"),
    ]


@pytest.mark.parametrize(("score", "stands"), [(0.0, 1), (1.0, 4), (0.5, 2), (3.0, 3), (4.5, 3), (9, 3), (20, 1)])
def test_a_judge_of_any_scale_becomes_one_to_four(score: float, stands: int) -> None:
    run = convert(team(EvaluatorVerdict(judge="orm", score=score, text="It compared. So it is.")), WEB)
    assert [step.text[-8:] for step in run.steps if step.agent == "double_check"] == [f"score: {stands}"]


def test_a_verifiers_own_score_is_kept_as_written() -> None:
    checker = agent("checker", thinks("Hm.", purpose=Purpose.ANSWER), answer="Nearly.\nscore: 2")
    run = convert(team(thinks("check", member("a", "checker", answer="x")), called("a", checker)), WEB)
    (step,) = [step for step in run.steps if step.agent == "double_check"]
    assert step.text == "Nearly.\nscore: 2" and "derived" not in step.meta


def test_a_verifier_that_looks_things_up_does_so_before_the_suggestion() -> None:
    checker = agent(
        "checker",
        thinks("I look myself.", asks("c1", "web_search", query="height")),
        result("c1", "330 m"),
        thinks("It fits.", purpose=Purpose.ANSWER),
        answer="Confirmed.",
    )
    run = convert(team(thinks("check", member("a", "checker", answer="330 m")), called("a", checker)), WEB)
    order = [name for name in agents(run) if name != "think"]
    assert order == ["web_search", "observation", "suggested_answer", "double_check", "answer"]


def test_calls_made_at_once_are_told_one_after_another() -> None:
    run = team(
        thinks("two phrasings", asks("a", "web_search", query="one"), asks("b", "web_search", query="two")),
        result("a", "first"),
        result("b", "second"),
    )
    assert told(convert(run, NANO))[1:5] == [
        ("web_search", "one"),
        ("observation", "first"),
        ("web_search", "two"),
        ("observation", "second"),
    ]


def test_calls_of_one_reply_share_the_thought_before_the_first() -> None:
    run = team(
        thinks("two phrasings", asks("a", "wiki_search", query="one"), asks("b", "wiki_search", query="two")),
        result("b", "second", ok=False),
        result("a", "first"),
        thinks("The second failed, the first did not. I know enough.", purpose=Purpose.ANSWER),
    )
    converted = convert(run, MHQA)
    assert told(converted)[:5] == [
        ("think", "two phrasings"),
        ("wiki_search", "one"),
        ("observation", "first"),
        ("wiki_search", "two"),
        ("observation", "second"),
    ]
    assert converted.steps[3].meta["same_reply"] is True and "same_reply" not in converted.steps[1].meta
    assert not broken_rules(converted, MHQA) and not check(converted.steps, MHQA) and not gaps(converted.steps, MHQA)
    # Two replies, the second without a thought: the protocol lets it pass, the filter does not, and a gap is filled.
    bare = converted.steps[3].model_copy(update={"meta": {}})
    unsaid = converted.model_copy(update={"steps": (*converted.steps[:3], bare, *converted.steps[4:])})
    assert [one.rule for one in broken_rules(unsaid, MHQA)] == ["missing_thought"]
    assert not check(unsaid.steps, MHQA) and gaps(unsaid.steps, MHQA) == [(3, ("think",))]


def test_an_error_among_the_calls_of_one_reply_is_commented_on_after_them() -> None:
    first, second = asks("a", "wiki_search", query="one"), asks("b", "wiki_search", query="two")
    run = team(
        thinks("Two phrasings.", first, second),
        result("a", "HTTP 500", ok=False),
        result("b", "second"),
        thinks("One server is away. The other is not. I have what I need.", purpose=Purpose.ANSWER),
    )
    assert agents(convert(run, MHQA))[5:8] == ["think", "reflection", "think"]


def test_a_handover_that_failed_is_left_out_with_what_its_caller_said_of_it() -> None:
    searcher = agent("searcher", thinks("I look.", asks("s", "wiki_search", query="q")), result("s", "r"), answer="330")
    retried = team(
        thinks("I ask the searcher.", member("a", "searcher", task="t")),
        result("a", "Error: no connection", ok=False),
        thinks("It did not answer. I ask again.", member("b", "searcher", task="t")),
        called("b", searcher),
        result("b", "330", report_of=("searcher",)),
        thinks("That is it.", purpose=Purpose.ANSWER),
    )
    converted = convert(retried, MHQA)
    assert told(converted) == [
        ("think", "I ask the searcher."), ("think", "I look."), ("wiki_search", "q"), ("observation", "r"),
        ("think", "That is it."), ("answer", "330 m"),
    ]  # fmt: skip
    assert converted.meta["problems"] == [] and not broken_rules(converted, MHQA)
    assert converted.meta["failed_handovers"] == ["manager asked searcher: failed: Error: no connection"]
    # Where it acts itself instead of asking again, its words explain why, and there is nothing to reflect on.
    alone = team(
        thinks("I ask the searcher.", member("a", "searcher", task="t")),
        result("a", "Error: no connection", ok=False),
        thinks("It did not answer. I look myself. That is quick.", asks("b", "wiki_search", query="q")),
        result("b", "r"),
        thinks("That is it.", purpose=Purpose.ANSWER),
    )
    assert agents(convert(alone, MHQA)) == ["think", "think", "wiki_search", "observation", "think", "answer"]


def test_a_member_that_cannot_be_shown_is_left_out_if_the_roles_file_says_so() -> None:
    run = team(
        thinks("go", member("a", "ask_searcher", task="t")),
        result("a", "330 m"),
        thinks("Good.", purpose=Purpose.ANSWER),
    )
    assert convert(run, MHQA).meta["problems"] == ["manager: ask_searcher: the run of searcher was not recorded"]
    for roles in (RoleMap(agents={"searcher": Role.DROP}), RoleMap(tools={"ask_searcher": "drop"})):
        assert convert(run, MHQA, roles).meta["problems"] == []


def test_a_report_stands_for_the_thought_that_its_reader_did_not_write() -> None:
    searcher = agent(
        "searcher", thinks("", asks("s", "wiki_search", query="q")), result("s", "r"), answer="It is 330 m."
    )
    other = agent("other", thinks("", asks("s", "wiki_search", query="p")), result("s", "r"), answer="330 m")
    run = team(
        thinks("Both.", member("a", "searcher", task="Find the height."), member("b", "other", task="Look elsewhere.")),
        called("a", searcher), result("a", "It is 330 m.", report_of=("searcher",)),
        called("b", other), result("b", "330 m", report_of=("other",)),
        thinks("330 m", purpose=Purpose.ANSWER),
    )  # fmt: skip
    converted = convert(run, MHQA)
    # The request stands for the thought of a silent member, unless one stands there already.
    assert [step.text for step in converted.steps if step.agent == "think"] == [
        "Both.",
        "Look elsewhere.",
        "It is 330 m.",
    ]
    assert not broken_rules(converted, MHQA)
    assert "think" not in agents(convert(run, NANO))[1:]


def test_words_that_repeat_a_report_are_told_once() -> None:
    searcher = agent("searcher", thinks("I look.", asks("s", "wiki_search", query="q")), result("s", "r"),
                     thinks("The tower has 330 m."), answer="The tower has 330 m.")  # fmt: skip
    run = team(
        thinks("I ask.", member("a", "searcher", task="t")), called("a", searcher),
        result("a", "The tower has 330 m.", report_of=("searcher",)),
        thinks("The tower has 330 m."), thinks("The tower has 330 m."), thinks("330 m", purpose=Purpose.ANSWER),
    )  # fmt: skip
    texts = [step.text for step in convert(run, MHQA).steps]
    assert texts.count("The tower has 330 m.") == 1


def test_merged_results_are_one_call_for_a_list_and_a_gap_for_a_line() -> None:
    both = ToolResult(call_ids=("a", "b"), text="both")
    pages = team(thinks("open", asks("a", "visit_page", url="http://x"), asks("b", "visit_page", url="http://y")), both)
    assert told(convert(pages, NANO))[1:3] == [("crawl_page", "http://x | http://y"), ("observation", "both")]
    queries = team(thinks("ask", asks("a", "web_search", query="x"), asks("b", "web_search", query="y")), both)
    assert [v.rule for v in check(convert(queries, NANO).steps, NANO)] == ["missing_observation"]


def test_code_that_only_calls_a_member_is_no_step() -> None:
    searcher = agent("search_agent", thinks("go", asks("s", "web_search", query="q")), result("s", "r"), answer="330 m")
    run = team(
        thinks("delegate", code("c", "r = search_agent(task='How tall?')\nprint(r)")),
        called("c", searcher),
        result("c", "Execution logs:\n330 m\nLast output from code snippet:\nNone"),
    )
    assert agents(convert(run, ALL)) == ["think", "think", "web_search", "observation", "answer"]


def test_tools_called_from_code_are_steps_of_their_own() -> None:
    run = team(
        thinks("look", code("c", "print(web_search(query='tower'))")),
        inside("c", "web_search", "1. a page", query="tower"),
        result("c", "Execution logs:\n1. a page"),
    )
    assert told(convert(run, ALL))[1:3] == [("web_search", "tower"), ("observation", "1. a page")]


def test_a_tool_seen_only_in_the_code_is_a_step_with_the_codes_result() -> None:
    run = team(
        thinks("look", code("c", "print(web_search('tower'))")),
        result("c", "Execution logs:\n1. a page\nLast output from code snippet:\nNone"),
    )
    assert told(convert(run, ALL))[1:3] == [("web_search", "tower"), ("observation", "1. a page")]


def test_computation_is_a_program_that_stands_alone() -> None:
    searcher = agent("search_agent", thinks("known"), answer="330")
    run = team(
        thinks("first", code("c1", "r = search_agent(task='height')\nprint(r)")),
        called("c1", searcher),
        result("c1", "330"),
        thinks("convert", code("c2", "feet = int(r) * 3.28\nprint(feet)")),
        result("c2", "Execution logs:\n1082.4\nLast output from code snippet:\nNone"),
    )
    steps = told(convert(run, ALL))
    assert ("code", "\n```py\nr = '330'\nfeet = int(r) * 3.28\nprint(feet)\n```\n") in steps
    assert ("observation", "1082.4") in steps


def test_computation_has_no_place_in_a_profile_without_code() -> None:
    run = team(thinks("compute", code("c", "print(2 ** 10)")), result("c", "1024"))
    assert "unknown_agent" in {violation.rule for violation in check(convert(run, WEB).steps, WEB)}


def test_tools_find_their_agent_and_their_shape() -> None:
    run = team(
        thinks("a", asks("1", "DuckDuckGoSearchTool", query="x\ny")),
        result("1", "r"),
        thinks("b", asks("2", "visit_webpage", url="http://a/b|c")),
        result("2", "r"),
        thinks("c", asks("3", "inspect_image", path="a.png", question="colour?")),
        result("3", "r"),
    )
    converted = convert(run, ALL)
    steps = [step for step in told(converted) if step[0] not in ("think", "observation", "answer")]
    assert steps == [
        ("web_search", "x y"),
        ("crawl_page", "http://a/b%7Cc"),
        ("visual_inspector", '\n```json\n{"file_path":"a.png","question":"colour?"}\n```\n'),
    ]
    roles: Any = converted.meta["roles"]
    assert roles["tool visit_webpage"] == "crawl_page by name"


def test_roles_are_decided_by_type_then_map_then_name_and_said_so() -> None:
    def decided(roles: RoleMap, **rest: object) -> object:
        helper = agent("reviewer", thinks("hm"), answer="x", **rest)
        run = team(thinks("go", member("a", "reviewer", task="t")), called("a", helper))
        found: Any = convert(run, NANO, roles).meta["roles"]
        return found["reviewer"]

    assert decided(RoleMap()) == "reflect by name"
    assert decided(RoleMap(agents={"reviewer": "verify"})) == "verify by map"
    assert decided(RoleMap(agents={"reviewer": "verify"}), type="PlannerAgent") == "plan by type"


def test_a_dropped_agent_and_a_dropped_tool_are_told_nowhere() -> None:
    helper = agent("notes", thinks("I write this down."), answer="x")
    run = team(
        thinks("go", member("a", "notes", task="t")),
        called("a", helper),
        thinks("sleep", asks("b", "pause", seconds=1)),
        result("b", "slept"),
    )
    roles = RoleMap(agents={"notes": "drop"}, tools={"pause": "drop"})
    assert told(convert(run, NANO, roles)) == [("think", "go"), ("think", "sleep"), ("answer", "330 m")]


def test_a_roles_file_with_an_unknown_part_is_refused(tmp_path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "roles.toml"
    file.write_text('[agents]\nx = "king"\n')
    with pytest.raises(ConfigError, match=r"agents\.x"):
        load_roles(file, WEB)
    file.write_text('[tools]\ny = "crawl_pages"\n')
    with pytest.raises(ConfigError, match="crawl_pages"):
        load_roles(file, WEB)
    file.write_text('[agents]\nx = "verify"\n[tools]\ny = "crawl_page"\n')
    assert load_roles(file, WEB).tools == {"y": "crawl_page"}


def test_code_runs_reflect_after_every_program() -> None:
    run = team(
        plans("Sum the primes."),
        thinks("Try small.", code("a", "print(sum([2, 3]))")),
        result("a", "5"),
        thinks("Five is right for three. Now the whole range.", code("b", "print(sum(range(9)))")),
        result("b", "36"),
        thinks("It runs fast enough. I hand it in.", purpose=Purpose.ANSWER),
        answer="```python\nprint(sum(range(9)))\n```",
    )
    converted = convert(run, CODE)
    assert check(converted.steps, CODE) == ()
    assert converted.answer == "\n```py\nprint(sum(range(9)))\n```\n"
    assert ("reflection", "Five is right for three.") in told(converted)


def test_a_run_without_an_answer_says_so() -> None:
    converted = convert(team(thinks("lost"), answer=None), NANO)
    assert converted.stop == "unanswered" and converted.answer is None


def test_what_the_team_spent_is_kept_beside_the_trajectory() -> None:
    spent = convert(tower(), WEB).meta["team"]
    # 4 calls of the manager, 7 of the searcher (one a plan), 1 of the checker, 1,000 and 50 tokens each.
    assert spent == {
        "prompt_tokens": 12_000,
        "completion_tokens": 600,
        "model_calls": 12,
        "tool_calls": 5,
        "unmetered_calls": 0,
    }


def test_the_request_of_a_silent_manager_is_its_thought_where_the_profile_asks_for_thoughts() -> None:
    searcher = agent("search_agent", thinks("", asks("s", "web_search", query="q")), result("s", "r"), answer="330 m")
    run = team(thinks("", member("m", "search_agent", task="Find the height.")), called("m", searcher))
    assert [step.text for step in convert(run, WEB).steps if step.agent == "think"] == ["Find the height."]
    assert agents(convert(run, NANO)) == ["web_search", "observation", "answer"]


def test_the_last_message_is_the_answer_and_not_also_a_thought() -> None:
    run = team(thinks("330 m", thought="Both pages agree."))
    assert told(convert(run, NANO)) == [("think", "Both pages agree."), ("answer", "330 m")]


def test_a_member_whose_run_is_not_on_record_makes_the_story_inexpressible() -> None:
    asked = team(thinks("go", member("a", "searcher", task="t")), result("a", "330 m"))
    coded = team(thinks("go", code("a", "print(search_agent(task='t'))")), result("a", "330 m"))
    for run in (asked, coded):
        converted = convert(run, ALL)
        problems: Any = converted.meta["problems"]
        assert "not recorded" in problems[0]
        assert agents(converted) == ["think", "answer"]


def test_a_verdict_on_the_way_is_a_reflection_not_a_check() -> None:
    run = team(
        thinks("look", asks("a", "web_search", query="q")),
        result("a", "nothing"),
        EvaluatorVerdict(judge="orm", score=0.2, text="The query was too narrow."),
        thinks("wider", asks("b", "web_search", query="r")),
        result("b", "330 m"),
    )
    steps = told(convert(run, NANO))
    assert ("reflection", "The query was too narrow.") in steps
    assert "double_check" not in [name for name, _ in steps]


def test_a_rejected_candidate_is_the_one_that_was_rejected() -> None:
    no = agent("checker", thinks("Hm.", purpose=Purpose.ANSWER), answer="Wrong.", request="Check this.\nAnswer: 300 m")
    run = team(
        thinks("check", member("a", "checker", task="Check this")), called("a", no), thinks("so"), plans("again")
    )
    steps = told(convert(run, WEB))
    assert ("suggested_answer", "300 m") in steps
    unnamed = agent("checker", thinks("Hm.", purpose=Purpose.ANSWER), answer="Wrong.", request="Check it")
    run = team(thinks("check", member("a", "checker", task="x")), called("a", unnamed), thinks("so"), plans("again"))
    assert "suggested_answer" not in agents(convert(run, WEB))


def test_the_root_acts_whatever_it_is_called_and_evidence_is_never_dropped_by_name() -> None:
    judge = team(thinks("x")).model_copy(update={"root": agent("judge", thinks("hm"), answer="330 m", type="Planner")})
    assert told(convert(judge, NANO)) == [("think", "hm"), ("answer", "330 m")]
    reader = agent(
        "summarizer", thinks("read", asks("s", "visit_page", url="http://x")), result("s", "page"), answer="x"
    )
    run = team(thinks("go", member("a", "summarizer", task="t")), called("a", reader))
    assert "crawl_page" in agents(convert(run, NANO))


def test_a_judges_scale_is_told_by_all_its_scores_of_the_run() -> None:
    """1 alone may be the best of 0 to 1; beside a 5 it is the worst."""
    first = EvaluatorVerdict(judge="orm", score=5, text="A sound step.")
    last = EvaluatorVerdict(judge="orm", score=1, text="It compared. So it is.")
    checks = [
        [step.text for step in convert(run, WEB).steps if step.agent == "double_check"]
        for run in (team(first, thinks("Go on."), last), team(last))
    ]
    assert checks[0][-1].endswith("score: 1") and checks[1][-1].endswith("score: 4")
