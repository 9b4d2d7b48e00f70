"""The page of a run in the viewer: its steps, deep links, keys, tokens, raw text, and the page as one file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from coa.models.tokenizer import load_tokenizer
from coa.runtime.live import LiveFeed
from coa.trajectory import Message, Score, Step, Stop, Task, Trajectory, Usage, load_profile, observation, write
from coa.trajectory.ledger import ledger_of
from coa.trajectory.shorten import shorten
from coa.trajectory.types import Failure, FailureSite, Repair, RepairKind, Tokens
from support.browsing import Visitor
from support.viewing import asked, viewed

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from coa.view import Viewer

WEB = load_profile("web")
QUESTION = "Which tower is the tallest?"
EVIL = """<img src=x onerror="window.hurt=1"><script>window.hurt=2</script>"'></style><svg onload=window.hurt=3>"""
FOUND = """engine, results for "tower":
1. The Vell tower - https://towers.example/vell (2021)
   It is the tallest.
2. Click - javascript:window.hurt=4
   No."""
PAGE = "\n".join(f"Line {number} of a page about towers." for number in range(400))


def trajectory(task: str, *steps: Step, profile: str = "web", question: str = QUESTION, **rest: Any) -> Trajectory:
    known = load_profile(profile)
    return Trajectory(
        task=Task(id=task, question=question, answer="Vell", meta={"note": "a task's meta"}),
        profile=profile,
        profile_hash=known.hash,
        steps=steps,
        **rest,
    )


def towers(sample: int = 0, answer: str = "Vell") -> Trajectory:
    return trajectory(
        "towers",
        Step(agent="think", text="I need a plan.", tokens=Tokens(ids=(1, 2, 3)), usage=Usage(seconds=1.0)),
        Step(agent="plan", text="1. Search. 2. Read. 3. Answer.", tokens=Tokens(ids=tuple(range(9)))),
        Step(agent="web_search", text="tower", repairs=(Repair(kind=RepairKind.LOOSE_TAG, detail="<WEB_SEARCH>"),)),
        observation(FOUND, meta={"ok": True, "seconds": 2.0}),
        Step(agent="crawl_page", text="https://towers.example/vell"),
        observation(shorten(PAGE, 8000), meta={"ok": True, "seconds": 5.0}),
        Step(agent="crawl_page", text="https://gone.example"),
        observation("error: 404", meta={"ok": False, "error": "not_found"}),
        observation("note: little time is left"),
        Step(agent="answer", text=answer, surface=f"<answer>{answer}</answer>", given=8),
        sample=sample,
        scores={"auto": Score(value=float(answer == "Vell"), reason="exact: as it should be")},
        usage=Usage(prompt_tokens=900, completion_tokens=120, cached_tokens=800, tool_calls=3, seconds=12.0, cost=0.25),
        meta={"model": "tiny"},
    )


def sampled() -> Trajectory:
    """A run with ids and logprobs of the tokenizer that is always there."""
    tokenizer, profile = load_tokenizer("smollm2"), load_profile("nano")
    plain = trajectory(
        "sampled",
        Step(agent="plan", text="Say it."),
        Step(agent="web_search", text="tower"),
        observation("Vell " * 400),
        Step(agent="answer", text="Vell"),
        profile="nano",
    )
    ids: dict[int, list[int]] = {}
    for span in ledger_of(plain, tokenizer, profile).spans:
        ids.setdefault(span.step, []).extend(span.ids)
    steps = [
        step
        if step.agent == "observation"
        else step.model_copy(update={"tokens": Tokens(ids=tuple(ids[at]), logprobs=_logprobs(len(ids[at])))})
        for at, step in enumerate(plain.steps)
    ]
    return plain.model_copy(update={"steps": tuple(steps), "tokenizer": tokenizer.fingerprint})


def _logprobs(count: int) -> tuple[float, ...]:
    return tuple((-0.01, -1.0, -6.0)[place % 3] for place in range(count))


def long_run() -> Trajectory:
    steps = [
        step
        for number in range(50)
        for step in (
            Step(agent="think", text=f"Thought {number}."),
            Step(agent="web_search", text=f"query {number}"),
            observation(f"Result {number}\n" + "A line of a long result.\n" * 4_200),
        )
    ]
    return trajectory("long", *steps, Step(agent="answer", text="Vell"))


RUNS = (
    towers(),
    towers(1, "Nobody"),
    sampled(),
    long_run(),
    trajectory(
        "line", Step(agent="web_search", text="x"), observation("a" * 10**7), Step(agent="answer", text="b" * 10**6)
    ),
    trajectory(
        "hostile",
        Step(agent="plan", text=EVIL, meta={"by": EVIL}),
        Step(agent="web_search", text=EVIL),
        observation(
            f"{EVIL}\x1b[31m \u202ekcab\u202c \x00\x00\x00", meta={"pages": [{"url": "javascript:window.hurt=5"}]}
        ),
        Step(agent="answer", text=EVIL),
        question=EVIL,
        meta={EVIL: EVIL},
    ),
    trajectory(
        "failed",
        Step(agent="think", text="hm"),
        stop=Stop.FAILED,
        failure=Failure(site=FailureSite.MODEL, message="the server went away"),
    ),
    trajectory("code", Step(agent="code", text="```py\nprint(1)  # one\n```"), observation("1"), profile="code"),
)  # fmt: skip


@pytest.fixture(scope="module")
def viewer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    root = tmp_path_factory.mktemp("shown")
    talk = (Message(role="user", content="What is a tower?"), Message(role="assistant", content="A high house."))
    follow_up = towers().model_copy(update={"task": towers().task.model_copy(update={"conversation": talk})})
    write(root / "one" / "trajectories.jsonl", RUNS)
    write(root / "two" / "trajectories.jsonl", [follow_up])
    nobody = Visitor(browser=None)  # type: ignore[arg-type]
    with viewed(nobody, root, cache=tmp_path_factory.mktemp("cache")) as found:
        yield found


def run_id(viewer: Viewer, task: str, place: int = 0) -> str:
    return str(asked(viewer, f"api/runs.json?task={task}&sort=sample")["rows"][place]["id"])


def opened(visitor: Visitor, viewer: Viewer, task: str, more: str = "", **options: Any) -> Page:
    return visitor.open(f"{viewer.url}/#/run/{run_id(viewer, task)}{more}", **options)


# ---- what is shown


def test_the_page_says_how_the_run_ended_and_what_it_used(visitor: Visitor, viewer: Viewer) -> None:
    page = opened(visitor, viewer, "towers")
    expect(page.locator("h1")).to_have_text(QUESTION)
    assert page.title() == f"{QUESTION} · coa view"
    expect(page.locator(".verdict")).to_contain_text("right")
    side = page.locator(".run-side")
    for words in ("exact: as it should be", "12.0 s", "Tokens read", "900", "Cost", "0.25", "trajectories.jsonl:1"):
        expect(side).to_contain_text(words)
    side.locator("summary", has_text="Meta").click()
    expect(side).to_contain_text("a task's meta")


def test_a_plan_is_a_list_and_search_results_are_links(visitor: Visitor, viewer: Viewer) -> None:
    page = opened(visitor, viewer, "towers")
    expect(page.locator(".step[data-step='1'] ol li")).to_have_text(["Search.", "Read.", "Answer."])
    search = page.locator(".step[data-step='2']")
    search.locator("summary").first.click()
    expect(search.locator(".found-title")).to_have_text(["The Vell tower2021", "Click - javascript:window.hurt=4"])
    assert [link.get_attribute("href") for link in search.locator(".found a").all()] == ["https://towers.example/vell"]
    expect(search.locator(".found-text").first).to_have_text("It is the tallest.")


def test_code_is_highlighted(visitor: Visitor, viewer: Viewer) -> None:
    page = opened(visitor, viewer, "code")
    page.locator(".step summary").first.click()
    expect(page.locator(".token.comment")).to_have_text("# one")


def test_a_long_result_is_folded_and_what_was_cut_out_of_it_is_marked(visitor: Visitor, viewer: Viewer) -> None:
    page = opened(visitor, viewer, "towers")
    step = page.locator(".step[data-step='4']")
    expect(step.locator(".badge.warn")).to_have_text("shortened")
    step.locator("summary").first.click()
    expect(step.locator("pre").last).not_to_contain_text("Line 399")
    step.locator(".rest > summary").click()
    expect(step.locator("pre").last).to_contain_text("Line 399")
    expect(step.locator(".omitted")).to_have_text(re.compile(r"[\d,]+ characters cut out here"))


def test_repairs_violations_notes_and_given_text_are_where_they_happened(visitor: Visitor, viewer: Viewer) -> None:
    page = opened(visitor, viewer, "towers")
    repaired = page.locator(".step[data-step='2']")
    expect(repaired.locator(".remark[data-kind=repair]")).to_have_text("Repaired: loose tag <WEB_SEARCH>")
    expect(repaired.locator(".remark[data-kind=violation]")).to_contain_text("Missing thought.")
    expect(page.locator(".note[data-step='8']")).to_contain_text("note: little time is left")
    expect(page.locator(".step[data-step='6'] .badge.bad").first).to_have_text("failed: not found")
    expect(page.locator(".step[data-step='9'] .remark[data-kind=given]")).to_contain_text("<answer>")


def test_a_failed_run_says_why(visitor: Visitor, viewer: Viewer) -> None:
    page = opened(visitor, viewer, "failed")
    expect(page.locator(".outcome")).to_contain_text("The server went away.")
    expect(page.locator(".at-end")).to_contain_text("the run ends without an answer")


def test_the_strip_has_a_segment_for_each_step_as_wide_as_its_tokens_or_its_time(
    visitor: Visitor, viewer: Viewer
) -> None:
    page = opened(visitor, viewer, "towers")
    widths = "all => all.map((one) => one.getBoundingClientRect().width)"
    strip = ".strip span"
    expect(page.locator(strip)).to_have_count(6)
    tokens = page.eval_on_selector_all(strip, widths)
    assert tokens[1] > 2.5 * tokens[0]  # 9 and 3 tokens
    page.click(".segmented >> text=Time")
    time = page.eval_on_selector_all(strip, widths)
    assert time[3] > time[2] > time[0]  # 5, 2 and 1 seconds
    table = page.locator(".agent-bars")
    expect(table.locator("tbody tr", has_text="Crawl page").locator("td").first).to_have_text("2")
    page.locator(strip).nth(3).click()
    expect(page.locator(".step[data-step='4']")).to_be_focused()
    expect(page.locator(".strip [data-current]")).to_have_count(1)


def test_other_attempts_and_the_same_task_elsewhere_are_a_click_away(visitor: Visitor, viewer: Viewer) -> None:
    page = opened(visitor, viewer, "towers")
    expect(page.locator(".panel", has_text="elsewhere").locator("li")).to_have_count(1)
    page.locator(".panel", has_text="Other attempts").locator("a").click()
    expect(page.locator(".verdict")).to_contain_text("Nobody")
    page.locator(".panel", has_text="elsewhere").locator("a").click()
    page.locator("summary", has_text="Earlier in this conversation").click()
    expect(page.locator(".folded").first).to_contain_text("A high house.")
    page.locator("summary", has_text="Prompt").click()
    expect(page.locator(".folded.prompt")).to_contain_text("You solve the user's question as a chain of agents.")


# ---- hostile and large texts


def test_hostile_text_runs_nothing_and_control_characters_are_visible(visitor: Visitor, viewer: Viewer) -> None:
    page = opened(visitor, viewer, "hostile")
    page.keyboard.press("o")
    page.keyboard.press("m")
    page.wait_for_selector(".tk")
    page.keyboard.press("m")
    result = page.locator(".result pre")
    assert [mark.inner_text() for mark in result.locator(".control").all()] == ["ESC", "RLO", "PDF", "NUL×3"]
    assert not set(page.locator("body").inner_text()) & set("\x1b\u202e\u202c\x00")
    assert page.evaluate("window.hurt") is None
    assert page.locator("main img, main script, main svg[onload], a[href^=javascript]").count() == 0


def test_a_line_of_ten_million_characters_breaks_nothing(visitor: Visitor, viewer: Viewer) -> None:
    page = opened(visitor, viewer, "line")
    page.locator(".step summary").first.click()
    assert page.evaluate("document.body.textContent.length") < 100_000
    page.locator(".result .rest > summary").click()
    assert page.evaluate("document.body.textContent.length") < 1_000_000
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_five_megabytes_of_results_are_on_the_page_only_when_they_are_wanted(visitor: Visitor, viewer: Viewer) -> None:
    page = opened(visitor, viewer, "long")
    assert page.evaluate("document.body.textContent.length") < 400_000
    page.keyboard.press("o")
    last = page.locator(".step[data-step='148']")
    last.scroll_into_view_if_needed()
    expect(last.locator("pre").last).to_contain_text("Result 49")
    region = last.locator("pre").last
    region.evaluate("(pre) => pre.scrollTo(0, pre.scrollHeight)")
    expect(page.locator(".answer")).to_have_text("Vell")
    page.keyboard.press("o")
    expect(page.locator(".step-body > details[open]")).to_have_count(0)


# ---- addresses and keys


def test_a_link_to_a_step_scrolls_to_it_and_marks_it(visitor: Visitor, viewer: Viewer) -> None:
    page = opened(visitor, viewer, "long", "?step=145")
    step = page.locator(".step[data-step='145']")
    expect(step).to_be_focused()
    expect(step).to_have_attribute("data-target", "")
    expect(step).to_be_in_viewport()
    page = opened(visitor, viewer, "towers", "?step=5")
    expect(page.locator(".result[data-target]")).to_be_in_viewport()
    expect(page.locator(".step[data-step='4'] .step-body > details")).to_have_attribute("open", "")


def test_the_link_to_a_step_is_copied(visitor: Visitor, viewer: Viewer) -> None:
    page = opened(visitor, viewer, "towers", permissions=["clipboard-read", "clipboard-write"])
    page.get_by_label("Copy the link to step 4").click()
    expect(page.locator("[data-copied]")).to_have_count(1)
    address = page.evaluate("navigator.clipboard.readText()")
    assert address.endswith("?step=4") and address == page.url
    assert visitor.open(address).locator(".step[data-step='4'][data-target]").count() == 1


def test_keys_move_fold_and_leave(visitor: Visitor, viewer: Viewer) -> None:
    page = opened(visitor, viewer, "towers")
    keys, steps = page.keyboard, page.locator(".step, .note")
    for key, place in (("j", 0), ("j", 1), ("j", 2), ("k", 1), ("j", 2)):
        keys.press(key)
        expect(steps.nth(place)).to_be_focused()
    assert page.url.endswith("?step=2")
    fold = page.locator(".step[data-step='2'] .step-body > details")
    keys.press("Space")
    expect(fold).to_have_attribute("open", "")
    keys.press("Space")
    expect(fold).not_to_have_attribute("open", "")
    keys.press("o")
    expect(page.locator(".step-body > details[open]")).to_have_count(3)
    keys.press("o")
    expect(page.locator(".step-body > details[open]")).to_have_count(0)
    keys.press("?")
    expect(page.locator("dialog")).to_contain_text("Training mask")
    keys.press("Escape")
    keys.press("r")
    expect(page.locator(".raw")).to_contain_text("<plan>1. Search. 2. Read. 3. Answer.</plan>")
    expect(page.locator(".raw")).to_contain_text('"profile_hash"')
    keys.press("r")
    expect(page.locator(".raw")).to_be_hidden()
    keys.press("Escape")
    expect(page.locator(".runs")).to_be_visible()


def test_brackets_go_through_the_list_one_came_from(visitor: Visitor, viewer: Viewer) -> None:
    page = visitor.open(f"{viewer.url}/#/runs?sort=-steps")
    tasks = [row["task"] for row in asked(viewer, "api/runs.json?sort=-steps")["rows"]]
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    crumbs = page.locator(".crumbs")
    expect(crumbs).to_contain_text(f"1 of {len(tasks)}")
    for key, place in (("]", 1), ("]", 2), ("[", 1), ("]", 2)):
        page.keyboard.press(key)
        expect(crumbs).to_contain_text(f"{place + 1} of {len(tasks)}")
        expect(crumbs).to_contain_text(tasks[place])
    page.get_by_label("Previous run").click()
    expect(crumbs).to_contain_text(f"2 of {len(tasks)}")
    page.keyboard.press("u")
    expect(page.locator("a.run-link").nth(1)).to_be_focused()


def test_a_run_that_is_not_there_is_said_to_be_missing(visitor: Visitor, viewer: Viewer) -> None:
    visitor.expected = ("status of 404",)
    page = visitor.open(f"{viewer.url}/#/run/0000000000000000")
    expect(page.locator("h1")).to_have_text("There is nothing here.")
    page.click("text=All runs")
    expect(page.locator(".runs")).to_be_visible()


def test_an_address_that_no_view_has_shows_nothing(visitor: Visitor, viewer: Viewer) -> None:
    page = visitor.open(f"{viewer.url}/#/nonsense")
    expect(page.locator("h1")).to_have_text("There is nothing here.")
    page.click("text=All runs")
    expect(page.locator(".runs")).to_be_visible()


def refreshed(page: Page, folder: Path) -> None:
    """Another run is added, and the page has looked at its own again."""
    with page.expect_response(lambda answer: "api/runs.json" in answer.url):
        write(folder / "trajectories.jsonl", [towers(1)])
    page.evaluate("fetch('api/index.json').then((answer) => answer.json())")


def test_a_run_whose_file_is_deleted_stays_with_one_notice(visitor: Visitor, tmp_path: Path) -> None:
    visitor.expected = ("status of 404",)
    root, notice = tmp_path / "runs", "The file of this run was deleted or changed."
    write(root / "one" / "trajectories.jsonl", [towers()])
    with viewed(visitor, root, cache=tmp_path / "cache") as viewer:
        page = opened(visitor, viewer, "towers")
        steps = page.locator(".step").count()
        refreshed(page, root / "two")
        expect(page.locator(".stale-notice")).to_have_count(0)
        (root / "one" / "trajectories.jsonl").unlink()
        expect(page.locator(".stale-notice")).to_have_text(notice)
        expect(page.locator(".run-view[data-stale] .step")).to_have_count(steps)
        refreshed(page, root / "three")
        expect(page.get_by_text(notice)).to_have_count(1)
        expect(page.locator(".notice")).to_have_count(0)
        write(root / "one" / "trajectories.jsonl", [towers()])
        expect(page.locator(".stale-notice")).to_have_count(0)


# ---- tokens


def test_the_mask_shows_what_is_trained(visitor: Visitor, viewer: Viewer) -> None:
    page = opened(visitor, viewer, "sampled")
    page.keyboard.press("m")
    tokens = asked(viewer, f"api/runs/{run_id(viewer, 'sampled')}/tokens.json")
    expect(page.locator(".overlay-legend strong")).to_contain_text(
        f"{tokens['total']:,} tokens, {tokens['trained']:,} trained"
    )
    plan = page.locator(".step[data-step='0'] .tk")
    expect(plan.first).to_be_visible()  # tokens are drawn when their step comes into view
    assert "".join(plan.all_text_contents()) == "<plan>Say it.</plan>"
    assert set(plan.evaluate_all("all => all.map((one) => one.dataset.trained)")) == {"1"}
    searched = page.locator(".step[data-step='1'] .tokens").last.locator(".tk")
    expect(searched.first).to_be_visible()
    assert set(searched.evaluate_all("all => all.map((one) => one.dataset.trained)")) == {"0"}
    assert page.url.endswith("?overlay=mask")
    backgrounds = plan.evaluate_all("all => all.map((one) => getComputedStyle(one).backgroundColor)")
    assert backgrounds[0] != backgrounds[1]
    page.keyboard.press("m")
    expect(page.locator(".run .tk")).to_have_count(0)
    expect(page.locator(".step[data-step='0'] .prose")).to_be_visible()


def test_logprobs_colour_the_tokens_and_tell_their_probability(visitor: Visitor, viewer: Viewer) -> None:
    page = opened(visitor, viewer, "sampled", "?overlay=logprobs")
    tokens = page.locator(".step[data-step='0'] .tk")
    expect(page.locator(".overlay-legend .key")).to_have_count(6)
    expect(tokens.first).to_be_visible()
    assert tokens.evaluate_all("all => all.slice(0, 3).map((one) => one.dataset.level)") == ["0", "2", "5"]
    tokens.nth(1).hover()
    tip = page.locator(".token-tip")
    expect(tip).to_contain_text("logprob -1.0000")
    expect(tip).to_contain_text("p 36.8 %")
    ids = asked(viewer, f"api/runs/{run_id(viewer, 'sampled')}/tokens.json")["spans"][1]["tokens"]
    expect(tip).to_contain_text(f"id {ids[1][1]}")
    page.locator(".step[data-step='0'] .token-run").focus()
    page.keyboard.press("ArrowRight")
    expect(tip).to_contain_text("logprob -6.0000")
    expect(page.locator("#announcer")).to_contain_text("logprob -6.0000")
    page.keyboard.press("l")
    expect(tip).to_have_count(0)


def test_a_long_text_that_is_not_trained_is_folded_in_the_overlay(visitor: Visitor, viewer: Viewer) -> None:
    page = opened(visitor, viewer, "sampled", "?overlay=mask")
    box = page.locator(".step[data-step='1'] .tokens").last
    expect(box.locator(".tk").first).to_be_visible()
    assert box.locator(".tk").count() < 200
    box.locator(".rest > summary").click()
    text = asked(viewer, f"api/runs/{run_id(viewer, 'sampled')}/tokens.json")["spans"]
    observed = next(span for span in text if span["agent"] == "observation")
    expect(box.locator(".tk")).to_have_count(len(observed["tokens"]))


# ---- one file, paper, phone, live


def test_the_page_is_saved_as_one_file_that_runs_nothing(visitor: Visitor, viewer: Viewer, tmp_path: Path) -> None:
    page = opened(visitor, viewer, "hostile")
    with page.expect_download() as download:
        page.keyboard.press("s")
    saved = tmp_path / "saved.html"
    download.value.save_as(saved)
    assert download.value.suggested_filename.startswith("hostile-")
    text = saved.read_text()
    assert "default-src 'none'; style-src 'unsafe-inline'" in text
    assert not re.search(r"<(script|img|iframe|object|link|button|input)|\son\w+=\"|javascript:[^<]*\"", text)
    page = visitor.open(saved.as_uri(), ready=False, java_script_enabled=False)
    expect(page.locator("h1")).to_contain_text("<script>window.hurt=2</script>")
    fold = page.locator(".step-body > details").first
    fold.locator("summary").first.click()
    expect(fold.locator("pre").first).to_be_visible()
    ground = page.locator("body").evaluate("one => getComputedStyle(one).backgroundColor")
    assert ground == "rgb(250, 249, 247)"


def test_a_saved_page_has_everything_that_was_folded(visitor: Visitor, viewer: Viewer, tmp_path: Path) -> None:
    page = opened(visitor, viewer, "towers")
    with page.expect_download() as download:
        page.click("text=Save as HTML")
    download.value.save_as(tmp_path / "saved.html")
    text = (tmp_path / "saved.html").read_text()
    assert "Line 399 of a page" in text and "characters cut out here" in text
    assert "https://towers.example/vell" in text


def test_paper_has_everything_unfolded_and_no_controls(visitor: Visitor, viewer: Viewer) -> None:
    page = opened(visitor, viewer, "towers")
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    expect(page.locator(".view-bar")).to_be_hidden()
    expect(page.locator(".run-buttons")).to_be_hidden()
    expect(page.locator(".step[data-step='4'] pre").last).to_contain_text("Line 399")
    expect(page.locator(".step[data-step='4'] pre").last).to_be_visible()
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    expect(page.locator(".step-body > details[open]")).to_have_count(0)


@pytest.mark.parametrize("more", ["", "?overlay=mask", "?step=5"])
def test_a_phone_shows_a_run_without_scrolling_sideways(visitor: Visitor, viewer: Viewer, more: str) -> None:
    for task in ("towers", "hostile", "sampled"):
        page = opened(visitor, viewer, task, more, viewport={"width": 390, "height": 800}, is_mobile=True)
        page.evaluate("for (const fold of document.querySelectorAll('main details')) fold.open = true")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), task


def test_a_running_chain_is_drawn_step_by_step(visitor: Visitor, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    write(root / "trajectories.jsonl", [towers()])
    feed = LiveFeed(root)
    with viewed(visitor, root, cache=tmp_path / "cache") as viewer:
        live = feed.begin(Task(id="live", question="What now?"), WEB, 0, model="tiny")
        live.step(Step(agent="plan", text="1. Look. 2. Say."), Usage(completion_tokens=5))
        page = visitor.open(viewer.url)
        row = page.locator(".runs tbody").first
        expect(row.locator(".outcome-badge")).to_have_text("running")
        row.locator("a.run-link").click()
        expect(page.locator(".step")).to_have_count(1)
        live.step(Step(agent="web_search", text="tower"), Usage(completion_tokens=9))
        live.step(observation("Vell"), Usage(completion_tokens=9))
        expect(page.locator(".step")).to_have_count(2)
        expect(page.locator(".step .peek")).to_have_text("Vell")
        expect(page.locator(".verdict .outcome-badge")).to_have_text("running")
    feed.close()
