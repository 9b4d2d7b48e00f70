"""The page at / in a real browser, against a real server: ask, watch, stop, follow up, come back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from coa.errors import ModelError
from coa.models.scripted import ScriptedModel
from coa.runtime import RunConfig
from coa.tools import Observation, ToolContext
from coa.trajectory import Form, Shape
from support.browsing import Visitor, visited
from support.gated import GATE, GatedModel

if TYPE_CHECKING:
    from playwright.sync_api import Page

SEARCH = "<plan>1. Find the tower.</plan>\n<web_search>tallest tower</web_search>"
CODE = '<code>\n```py\nheight = 100  # metres\nprint(f"{height} m")\n```\n</code>'
CHECK = "<suggested_answer>The Vell tower</suggested_answer>\n<double_check>It fits.\nscore: 4</double_check>\n"
ANSWER = f"{CHECK}<answer>The Vell tower.\n\nIt is 100 m high.</answer>"
QUESTION = "Which tower is the tallest?"


class Search:
    about, shape, timeout_s = "looks a query up", Shape(form=Form.LINE), 5.0

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> Observation:
        text = 'index, results for "tallest tower":\n1. Vell tower - https://towers.example/vell\n   The tallest tower.'
        return Observation(text, meta={"pages": [{"url": "https://towers.example/vell"}]})


class Code:
    about, shape, timeout_s = "runs a program", Shape(form=Form.CODE), 5.0

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> Observation:
        return Observation("100 m\n")


TOOLS = {"web_search": Search(), "code": Code()}


def ask(page: Page, question: str = QUESTION) -> None:
    page.fill("#question", question)
    page.press("#question", "Enter")


def answered(page: Page, times: int = 1) -> None:
    expect(page.locator(".run[data-state=answered]")).to_have_count(times)


def test_an_agent_lights_up_while_it_acts_and_the_answer_ends_the_timeline(visitor: Visitor) -> None:
    model = GatedModel([f"<plan>1. Find{GATE} the tower.</plan>\n<web_search>tall{GATE}est tower</web_search>", ANSWER])
    with visited(visitor, model, tools=TOOLS) as server:
        page = visitor.open(server.url)
        ask(page)
        expect(page.locator(".chip[data-state=acting]")).to_have_text(re.compile("Plan"))
        expect(page.locator(".step .live")).to_have_text("1. Find")
        model.open_gate()
        expect(page.locator(".chip[data-state=acting]")).to_have_text(re.compile("Search"))
        expect(page.locator(".run .chip[data-state=acted]")).to_have_text(re.compile("Plan"))
        expect(page.locator("#now")).to_contain_text("Search")
        model.open_gate()
        answered(page)
        assert page.locator(".step .title").all_inner_texts()[-1] == "Answer"
        assert page.locator(".answer p").all_inner_texts() == ["The Vell tower.", "It is 100 m high."]
        expect(page.locator(".chip[data-state=acting]")).to_have_count(0)
        expect(page.locator(".badge.good")).to_have_text("passed")
        expect(page.locator(".facts")).to_contain_text("1 tool call")
        expect(page.locator("#announcer")).to_contain_text("Answer: The Vell tower.")


def test_a_tool_call_unfolds_into_arguments_and_result(visitor: Visitor) -> None:
    with visited(visitor, GatedModel([SEARCH, CODE, ANSWER]), tools=TOOLS) as server:
        page = visitor.open(server.url)
        ask(page)
        answered(page)
        search, code = page.locator(".step[data-kind=tool]").all()
        expect(search.locator(".peek")).to_have_text("1. Vell tower - https://towers.example/vell · The tallest tower.")
        search.locator("summary").first.click()
        expect(search.locator("pre").first).to_have_text("tallest tower")
        expect(search.locator(".found-title")).to_have_text("Vell tower")
        expect(search.locator(".found-text")).to_have_text("The tallest tower.")
        link = search.locator(".found a")
        assert link.get_attribute("href") == "https://towers.example/vell"
        assert "noopener" in (link.get_attribute("rel") or "")
        code.locator("summary").click()
        expect(code.locator(".token.comment")).to_have_text("# metres")
        expect(code.locator("pre").last).to_have_text("100 m")
        expect(page.locator(".sources a")).to_have_attribute("href", "https://towers.example/vell")
        expect(page.locator(".sources a")).to_have_text("Vell tower")


@pytest.mark.parametrize("how", ["button", "escape"])
def test_stopping_ends_the_run_and_keeps_what_there_is(visitor: Visitor, how: str) -> None:
    model = GatedModel([f"<plan>1. Find the tower.</plan>\n<think>I wonder{GATE} whether</think>"])
    with visited(visitor, model, tools=TOOLS) as server:
        page = visitor.open(server.url)
        ask(page)
        expect(page.locator(".step .live")).to_have_text("I wonder")
        page.click("#stop") if how == "button" else page.keyboard.press("Escape")
        expect(page.locator(".outcome")).to_have_text("The run was stopped.")
        expect(page.locator("#stop")).to_be_hidden()
        assert page.locator(".step .title").all_inner_texts() == ["Plan", "Thinking"]
        page.reload()
        expect(page.locator(".outcome")).to_have_text("The run was stopped.")


def test_a_follow_up_knows_the_conversation_before_it(visitor: Visitor) -> None:
    model = GatedModel([SEARCH, ANSWER])
    with visited(visitor, model, tools=TOOLS) as server:
        page = visitor.open(server.url)
        ask(page)
        answered(page)
        ask(page, "And the second tallest?")
        answered(page, 2)
        said = [(message.role, message.content) for message in model.calls[-1].messages if message.role != "system"]
        assert [role for role, _ in said] == ["user", "assistant", "user"]
        assert said[0][1] == QUESTION and "Vell tower" in said[1][1] and said[2][1] == "And the second tallest?"
        expect(page.locator("#conversations li")).to_have_count(1)
        first = page.locator(".run").first
        assert first.get_attribute("data-folded") is not None
        expect(first.locator(".answer")).to_be_visible()
        expect(first.locator(".step[data-kind=tool]")).to_be_hidden()
        first.locator(".fold").click()
        expect(first.locator(".step[data-kind=tool]")).to_be_visible()


def test_a_reload_in_the_middle_of_a_run_goes_on_where_it_was(visitor: Visitor) -> None:
    model = GatedModel([f"<plan>1. Find{GATE} the tower.</plan>\n<web_search>tallest tower</web_search>", ANSWER])
    with visited(visitor, model, tools=TOOLS) as server:
        page = visitor.open(server.url)
        ask(page)
        expect(page.locator(".step .live")).to_have_text("1. Find")
        page.reload()
        expect(page.locator(".step .live")).to_have_text("1. Find")
        expect(page.locator("#stop")).to_be_visible()
        model.open_gate()
        answered(page)
        assert len(model.calls) == 2
        assert page.locator(".step .title").first.inner_text() == "Plan"


def test_a_stream_that_ends_early_is_opened_again_where_it_broke_off(visitor: Visitor) -> None:
    model = GatedModel([f"<plan>1. Find{GATE} the tower.</plan>\n<web_search>tallest tower</web_search>", ANSWER])
    with visited(visitor, model, tools=TOOLS, config={"stream_timeout_s": 0.2}) as server:
        page = visitor.open(server.url)
        ask(page)
        with page.expect_request(re.compile("start=[1-9]")):
            expect(page.locator(".step .live")).to_have_text("1. Find")
        expect(page.locator(".step .live")).to_have_text("1. Find")
        model.open_gate()
        answered(page)
        expect(page.locator(".step .prose").first).to_have_text("1. Find the tower.")


def test_a_run_goes_on_when_its_tab_is_closed(visitor: Visitor) -> None:
    model = GatedModel([f"<plan>1. Find{GATE} the tower.</plan>\n<web_search>tallest tower</web_search>", ANSWER])
    with visited(visitor, model, tools=TOOLS) as server:
        page = visitor.open(server.url)
        ask(page)
        expect(page.locator(".step .live")).to_have_text("1. Find")
        page.close()
        model.open_gate()
        page = visitor.open(server.url)
        page.click("#conversations a")
        answered(page)


def test_history_opens_and_deletes_conversations(visitor: Visitor) -> None:
    with visited(visitor, GatedModel([ANSWER]), tools=TOOLS) as server:
        page = visitor.open(server.url)
        for question in ("First?", "Second?"):
            ask(page, question)
            answered(page)
            page.click("#new")
            expect(page.locator("#welcome")).to_be_visible()
        names = page.locator("#conversations .name")
        expect(names).to_have_text(["Second?", "First?"])
        page.click("#conversations a >> nth=1")
        expect(page.locator(".question")).to_have_text("First?")
        answered(page)
        page.go_back()
        expect(page.locator("#welcome")).to_be_visible()
        page.hover("#conversations li >> nth=1")
        page.click("#conversations button >> nth=1")
        page.click("dialog button.danger")
        expect(names).to_have_text(["Second?"])
        page.reload()
        expect(names).to_have_text(["Second?"])


def test_the_whole_page_works_by_keyboard(visitor: Visitor) -> None:
    with visited(visitor, GatedModel([SEARCH, ANSWER]), tools=TOOLS) as server:
        page = visitor.open(server.url)
        page.locator("main").focus()
        keys = page.keyboard
        keys.press("/")
        expect(page.locator("#question")).to_be_focused()
        keys.type("One line")
        keys.press("Shift+Enter")
        keys.type("and another")
        keys.press("Enter")
        answered(page)
        assert page.locator(".question").inner_text() == "One line\nand another"
        page.locator("main").focus()
        keys.press("j")
        expect(page.locator(".step").first).to_be_focused()
        keys.press("j")
        expect(page.locator(".step").nth(1)).to_be_focused()
        keys.press("Space")
        assert page.locator(".step-body > details").get_attribute("open") is not None
        keys.press("k")
        expect(page.locator(".step").first).to_be_focused()
        keys.press("?")
        expect(page.locator("dialog")).to_contain_text("Next step")
        keys.press("Escape")
        expect(page.locator("dialog")).to_have_count(0)
        keys.press("n")
        expect(page.locator("#welcome")).to_be_visible()


def test_a_phone_shows_everything_without_scrolling_sideways(visitor: Visitor) -> None:
    with visited(visitor, GatedModel([SEARCH, CODE, ANSWER]), tools=TOOLS) as server:
        page = visitor.open(server.url, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
        ask(page, "A question with averyveryveryveryveryveryveryveryveryveryverylongword?")
        answered(page)
        for summary in page.locator(".step-body > details > summary").all():
            summary.click()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        expect(page.locator("#history")).to_be_hidden()
        page.click("#open-history")
        expect(page.locator("#conversations a")).to_be_visible()
        page.click("#conversations a")
        expect(page.locator("#history")).to_be_hidden()
        page.click(".actions a")
        page.wait_for_selector("body[data-ready]")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_every_run_has_a_page_of_its_own(visitor: Visitor) -> None:
    with visited(visitor, GatedModel([SEARCH, ANSWER]), tools=TOOLS) as server:
        page = visitor.open(server.url)
        ask(page)
        answered(page)
        ask(page, "And the second tallest?")
        answered(page, 2)
        expect(page.locator(".actions a")).to_have_count(2)
        page.locator(".actions a").last.click()
        page.wait_for_selector("body.run-page[data-ready]")
        expect(page.locator("h1")).to_have_text("And the second tallest?")
        expect(page.locator(".step")).to_have_count(5)
        page.click("#before summary")
        expect(page.locator("#before")).to_contain_text(QUESTION)
        page.click("#back")
        expect(page.locator(".turn")).to_have_count(2)


def test_a_run_of_another_client_has_a_page_too(visitor: Visitor) -> None:
    with visited(visitor, GatedModel([SEARCH, ANSWER]), tools=TOOLS) as server:
        response = server.client.responses.create(model="agent", input=QUESTION)
        page = visitor.open(f"{server.url}/runs/{response.id.removeprefix('resp_')}")
        expect(page.locator("h1")).to_have_text(QUESTION)
        expect(page.locator(".answer")).to_contain_text("The Vell tower.")
        page.click("#back")
        expect(page.locator(".question")).to_have_text(QUESTION)


def test_the_same_question_can_be_asked_by_curl_and_from_python(visitor: Visitor) -> None:
    with visited(visitor, GatedModel([ANSWER]), tools=TOOLS) as server:
        page = visitor.open(server.url)
        ask(page, 'Who\'s "there" $HOME?')
        answered(page)
        page.click("text=Use in code")
        curl = page.locator("#program").inner_text()
        assert f"{server.url}/v1/responses" in curl and r"Who'\''s \"there\" $HOME?" in curl
        page.click("dialog [role=tab] >> nth=1")
        python = page.locator("#program").inner_text()
        compile(python, "program", "exec")
        assert f"{server.url}/v1" in python


def test_a_server_with_keys_asks_for_one_and_the_tab_keeps_it(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COA_SERVE_KEYS", "open-sesame-open-sesame")
    with visited(visitor, GatedModel([ANSWER]), tools=TOOLS) as server:
        visitor.expected = ("status of 401",)
        page = visitor.open(server.url, ready=False)
        for key in ("wrong", "open-sesame-open-sesame"):
            page.fill("#key", key)
            page.press("#key", "Enter")
        page.wait_for_selector("body[data-ready]")
        ask(page)
        answered(page)
        page.reload()
        answered(page)
        page.click("text=Use in code")
        assert "$COA_SERVE_KEY" in page.locator("#program").inner_text()
        assert "sesame" not in page.content()


def test_the_agent_is_chosen_before_the_first_question(visitor: Visitor) -> None:
    run = RunConfig(model="http://127.0.0.1:9", profile="nano")
    models = {"one": GatedModel(["<answer>from one</answer>"]), "two": GatedModel(["<answer>from two</answer>"])}
    with visited(
        visitor, models["one"], models=models, tools=TOOLS, config={"name": None, "agents": {"one": run, "two": run}}
    ) as server:
        page = visitor.open(server.url)
        page.select_option("#agent", "two")
        ask(page)
        answered(page)
        expect(page.locator(".answer")).to_have_text("from two")
        expect(page.locator("#agent")).to_be_hidden()


def test_a_chosen_theme_stays(visitor: Visitor) -> None:
    with visited(visitor, GatedModel([ANSWER]), tools=TOOLS) as server:
        page = visitor.open(server.url, color_scheme="light")
        ground = "getComputedStyle(document.body).backgroundColor"
        light = page.evaluate(ground)
        page.click("#theme")
        page.click("#theme")
        assert page.locator("#theme").get_attribute("aria-label") == "Theme: dark"
        dark = page.evaluate(ground)
        assert dark != light
        page.reload()
        page.wait_for_selector("body[data-ready]")
        assert page.evaluate(ground) == dark


def test_a_failed_run_says_why(visitor: Visitor) -> None:
    with visited(visitor, ScriptedModel([ModelError("the model server is gone")]), tools=TOOLS) as server:
        page = visitor.open(server.url)
        ask(page)
        expect(page.locator(".outcome")).to_contain_text("The model server is gone.")


def test_a_refused_question_stays_in_the_box(visitor: Visitor) -> None:
    model = GatedModel([f"<think>I wonder{GATE}</think><answer>yes</answer>"])
    with visited(visitor, model, tools=TOOLS, config={"max_runs": 1, "max_queue": 0}) as server:
        visitor.expected = ("status of 429",)
        page, other = visitor.open(server.url), visitor.open(server.url)
        ask(page)
        expect(page.locator("#stop")).to_be_visible()
        ask(other, "Me too?")
        expect(other.locator(".notice")).to_contain_text("try again later")
        expect(other.locator("#question")).to_have_value("Me too?")
        model.open_gate()
        answered(page)
