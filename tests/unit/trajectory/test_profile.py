"""Profiles: what ships is sound, one's own needs no code, contradictions are refused with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from coa.errors import ProfileError
from coa.trajectory import Form, Kind, Parser, Profile, Shape, Task, check, load_profile, parse, render
from coa.trajectory import profile as profiles
from coa.trajectory.formats.alpaca import guess_profile
from coa.trajectory.profile import AnswerKind, describe_rules, shipped, with_tool

OWN = """
name = "lab"
about = "An assay robot and a notebook."
start = ["assay"]
prompt = "Find the compound. {agents} {rules}"

[agents.muse]
title = "Thinking"
kind = "thought"
does = "thinks."

[agents.assay]
title = "Assay"
kind = "tool"
does = "measures a compound."
next = ["assay", "answer"]
thought = true
[agents.assay.shape]
form = "json"
[agents.assay.shape.fields]
compound = { about = "its name" }
dose = { type = "number", required = false }

[agents.answer]
title = "Answer"
kind = "answer"
does = "names the compound."
"""


def own(tmp_path: Path, text: str = OWN) -> Profile:
    path = tmp_path / "lab.toml"
    path.write_text(text, encoding="utf-8")
    return load_profile(path)


@pytest.mark.parametrize("name", shipped())
def test_every_agent_of_a_shipped_profile_is_explained_in_its_prompt(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    if name == "atlas":  # its whole point is that nothing is: the format is in the weights
        assert profile.agents == load_profile("nano").agents
        return
    for tag in profile.agents:
        assert tag in profile.system_prompt
    assert "{agents}" not in profile.system_prompt and "{rules}" not in profile.system_prompt


def test_the_paper_s_successor_rules_hold_in_the_web_profile() -> None:
    web = load_profile("web")
    follows = {tag: set(agent.next) for tag, agent in web.agents.items()}
    assert follows["plan"] == {"web_search", "crawl_page", "suggested_answer"}
    assert follows["web_search"] == {"web_search", "crawl_page", "reflection", "suggested_answer"}
    assert follows["reflection"] == {"plan", "web_search", "crawl_page", "suggested_answer"}
    assert follows["suggested_answer"] == {"double_check"}
    assert follows["double_check"] == {"answer", "plan", "web_search", "crawl_page"}
    assert all(agent.thought for tag, agent in web.agents.items() if tag != "think")


def test_a_profile_of_ones_own_works_without_code(tmp_path: Path) -> None:
    lab = own(tmp_path)
    text = (
        '<muse>try it</muse>\n<assay>\n```json\n{"compound": "X", "dose": 2}\n```\n</assay>\n'
        "<observation>strong</observation>\n<answer>X</answer>"
    )
    steps = parse(text, lab)
    assert [step.agent for step in steps] == ["muse", "assay", "observation", "answer"]
    assert check(steps, lab) == ()
    assert render(steps, lab) == text
    assert "compound (string: its name), dose (number, optional)" in lab.system_prompt
    assert lab.messages(Task(id="1", question="Which?", files=("a.csv",)))[1].content == "Which?\nfile: a.csv"


def test_a_tag_of_another_profile_is_plain_text(tmp_path: Path) -> None:
    steps = parse("<muse>I would <web_search>x</web_search></muse>", own(tmp_path))
    assert len(steps) == 1 and steps[0].text == "I would <web_search>x</web_search>"


def test_a_shipped_profile_can_be_extended(tmp_path: Path) -> None:
    text = """
extends = "mhqa"
name = "mhqa-dates"
[agents.calendar]
title = "Calendar"
kind = "tool"
does = "counts days."
next = ["wiki_search", "answer"]
[agents.wiki_search]
next = ["wiki_search", "calendar", "reflection", "plan", "answer"]
"""
    extended = own(tmp_path, text)
    assert "calendar" in extended.tools and "wiki_search" in extended.tools
    assert "calendar" in extended.agents["wiki_search"].next
    assert extended.agents["wiki_search"].thought


CONTRADICTIONS = {
    # what is changed in OWN: (before, after, what the refusal says)
    "unknown successor": ('next = ["assay", "answer"]', 'next = ["assay", "bake"]', "not defined"),
    "no way to the answer": ('next = ["assay", "answer"]', 'next = ["assay"]', "can never act"),
    "two answers": ('kind = "tool"', 'kind = "answer"', "exactly one agent has the kind `answer`"),
    "no thought to need": ('kind = "thought"', 'kind = "role"', "requires a thought"),
    "environment's tag": ("[agents.muse]", "[agents.observation]", "environment's tag"),
    "bad tag": ("[agents.muse]", '[agents."Mu se"]', "not of the form"),
    "fields without json": ('form = "json"', 'form = "line"', "belong to the form `json`"),
    "unknown key": ('about = "An', 'abuot = "x"\nabout = "An', "abuot"),
    "start with nobody": ('start = ["assay"]', "start = []", "start"),
    "thought as successor": ('start = ["assay"]', 'start = ["assay", "muse"]', "is a thought"),
    "answer goes on": ('does = "names', 'next = ["assay"]\ndoes = "names', "cannot have `next`"),
    "verdict outside next": (
        'does = "measures',
        'verdict = { read = "score", passed = ["answer"], failed = ["muse"] }\ndoes = "measures',
        "which its `next` does not allow",
    ),
    "verdict of one way": (
        'does = "measures',
        'verdict = { read = "score", pass_at = 1, passed = ["answer"], failed = ["assay"] }\ndoes = "measures',
        "never go both ways",
    ),
    "limits": ("[agents.muse]", "[limits]\nmodel_tokens = 50000\n[agents.muse]", "exceed context_tokens"),
    "not TOML": ("name =", "name", "not valid TOML"),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_contradictions_are_refused_with_the_reason(case: str, tmp_path: Path) -> None:
    before, after, reason = CONTRADICTIONS[case]
    assert before in OWN
    with pytest.raises(ProfileError) as refusal:
        own(tmp_path, OWN.replace(before, after, 1))
    assert reason in str(refusal.value)


def test_a_role_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    text = OWN.replace('next = ["assay", "answer"]', 'next = ["trap", "answer"]') + (
        '[agents.trap]\ntitle = "T"\nkind = "role"\ndoes = "x."\nnext = ["trap"]\n'
    )
    with pytest.raises(ProfileError, match=r"from \['trap'\] no path leads to the answer"):
        own(tmp_path, text)


def test_an_unknown_name_says_which_there_are() -> None:
    with pytest.raises(ProfileError, match="shipped are all, atlas, code, math, mhqa, nano, web"):
        load_profile("wbe")


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ProfileError, match=r"nowhere\.toml"):
        load_profile("nowhere.toml")


@pytest.mark.parametrize("name", shipped())
def test_the_rules_in_words_name_every_successor(name: str) -> None:
    profile = load_profile(name)
    words = describe_rules(profile)
    for agent in profile.agents.values():
        assert all(following in words for following in agent.next)
    assert len(profile.of_kind(Kind.ANSWER)) == 1


def test_prompt_and_parser_agree_on_the_tags() -> None:
    for name in shipped():
        profile = load_profile(name)
        for tag in profile.agents:
            parser = Parser(profile)
            parser.feed(f"<{tag}>x</{tag}>")
            parser.finish()
            assert [step.agent for step in parser.steps] == [tag]


def test_a_limit_that_leaves_nobody_to_follow_a_verdict_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('extends = "web"\n[agents.plan]\nmax = 1\n')
    with pytest.raises(ProfileError, match="`max` lets nobody act after `reflection` where plan should follow"):
        load_profile(path)
    path.write_text('extends = "web"\n[agents.plan]\nmax = 2\n')
    assert load_profile(path).agents["plan"].max == 2


def test_a_tool_that_joins_follows_the_verdicts_that_lead_to_tools() -> None:
    nano = with_tool(load_profile("nano"), "lookup", title="Lookup", does="looks up.", shape=Shape())
    verdict = nano.agents["double_check"].verdict
    assert verdict is not None and "lookup" in verdict.failed and "lookup" not in verdict.passed
    web = with_tool(load_profile("web"), "lookup", title="Lookup", does="looks up.", shape=Shape())
    verdict = web.agents["double_check"].verdict
    assert verdict is not None and verdict.failed == ("plan",)


def test_a_shipped_profile_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lab.toml").write_text(OWN + "[distill]\nmin_tool_calls = 7\n")
    (tmp_path / "quiet.toml").write_text('extends = "lab"\nname = "quiet"\nprompt = "Find it."\n')
    monkeypatch.setattr(profiles, "_FOLDER", tmp_path)
    assert profiles.shipped() == ("lab", "quiet")
    assert load_profile("quiet").system_prompt == "Find it." and load_profile("quiet").distill.min_tool_calls == 7
    assert guess_profile("<assay>x</assay>").name in ("lab", "quiet")


def test_what_a_profile_extends_says_of_distillation_and_answers_holds_for_it_too(tmp_path: Path) -> None:
    (tmp_path / "sums.toml").write_text('extends = "math"\n')
    sums = load_profile(tmp_path / "sums.toml")
    assert sums.answers is AnswerKind.MATH
    assert (sums.distill.min_tool_calls, sums.distill.keep_without_reflection) == (1, 0.0)
    assert own(tmp_path).answers is AnswerKind.TEXT
    assert (own(tmp_path).distill.min_tool_calls, own(tmp_path).distill.keep_without_reflection) == (2, 0.3)


LOOKUP = """
[agents.lookup]
title = "Lookup"
kind = "tool"
does = "finds the density of a material."
shape = { form = "line" }
next = ["answer"]
"""


@pytest.mark.parametrize("base", shipped())
def test_an_agent_that_a_profile_adds_is_in_the_prompt(base: str, tmp_path: Path) -> None:
    path = tmp_path / "lab.toml"
    start = [*load_profile(base).start, "lookup"]
    path.write_text(f'extends = "{base}"\nstart = {start}\n{LOOKUP}')
    prompt = load_profile(path).system_prompt
    assert "<lookup>...</lookup> Lookup: finds the density of a material. Content: one line of text." in prompt
    assert prompt.count("<lookup>") == 1


def test_a_prompt_of_ones_own_must_mention_an_added_agent(tmp_path: Path) -> None:
    path = tmp_path / "lab.toml"
    start = [*load_profile("nano").start, "lookup"]
    path.write_text(f'extends = "nano"\nstart = {start}\nprompt = "Solve it."\n{LOOKUP}')
    with pytest.raises(ProfileError, match="adds the agent 'lookup', which its prompt does not mention") as refused:
        load_profile(path)
    assert "{agents}" in (refused.value.hint or "")
    path.write_text(f'extends = "nano"\nstart = {start}\nprompt = "Solve it. Use lookup."\n{LOOKUP}')
    assert load_profile(path).system_prompt == "Solve it. Use lookup."


def test_added_tools_are_in_a_fixed_prompt_too() -> None:
    shape = Shape(form=Form.LINE)
    one = with_tool(load_profile("nano"), "weekday", title="weekday", does="names the weekday.", shape=shape)
    two = with_tool(one, "moon", title="moon", does="names the phase of the moon.", shape=shape)
    assert two.system_prompt.count("Further agents:") == 1
    assert "<weekday>...</weekday> weekday: names" in two.system_prompt and "<moon>...</moon>" in two.system_prompt


@pytest.mark.parametrize("name", [name for name in shipped() if load_profile(name).example])
def test_the_example_in_the_prompt_is_a_legal_run(name: str) -> None:
    profile = load_profile(name)
    steps = parse(profile.example.strip(), profile)
    assert check(steps, profile) == () and not any(step.repairs for step in steps)
    assert profile.example.strip() in profile.system_prompt and "{example}" not in profile.system_prompt


def test_profiles_for_models_that_were_not_trained_on_chains_have_an_example() -> None:
    assert {name for name in shipped() if load_profile(name).example} == {"all", "code", "math", "mhqa", "web"}
