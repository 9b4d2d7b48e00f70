"""Whatever strangers write is shown and does nothing: in questions, answers, tool results, addresses and names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from playwright.sync_api import expect
from pydantic import JsonValue

from coa.runtime import RunConfig
from coa.tools import Observation, ToolContext
from coa.trajectory import Form, Shape
from coa.trajectory.profile import shipped_toml
from support.browsing import Visitor, visited
from support.gated import GatedModel

EVIL = (
    """<img src=x onerror="window.hurt=1"><script>window.hurt=2</script>"'><svg onload=window.hurt=3>"""
    """ {{7*7}} ${window.hurt=4}"""
)
LINKS = "javascript:window.hurt=5 data:text/html,<script>window.hurt=6</script> https://ok.example/a?b=<img/onerror=x>"


class EvilTool:
    about, shape, timeout_s = "looks a query up", Shape(form=Form.LINE), 5.0

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> Observation:
        pages: list[JsonValue] = [{"url": "javascript:window.hurt=7"}, {"url": "https://ok.example/page"}]
        return Observation(f"1. {EVIL} - javascript:window.hurt=8\n{LINKS}", meta={"pages": pages})


def test_hostile_text_runs_nothing(visitor: Visitor, tmp_path: Path) -> None:
    title = "<img src=x onerror=window.hurt=9>"
    profile = tmp_path / "evil.toml"
    profile.write_text(shipped_toml("nano").replace('title = "Plan"', f"title = '{title}'"))
    script = [f"<plan>{EVIL}</plan>\n<web_search>{EVIL} {LINKS}</web_search>", f"<answer>{EVIL}\n\n{LINKS}</answer>"]
    run = RunConfig(model="http://127.0.0.1:9", profile=str(profile))
    with visited(visitor, GatedModel(script), tools={"web_search": EvilTool()}, config={"run": run}) as server:
        page = visitor.open(server.url)
        page.fill("#question", EVIL + LINKS)
        page.press("#question", "Enter")
        expect(page.locator(".run[data-state=answered]")).to_have_count(1)
        page.click("summary")
        expect(page.locator(".question")).to_contain_text("<script>window.hurt=2</script>")
        expect(page.locator(".answer")).to_contain_text("<svg onload=window.hurt=3>")
        expect(page.locator(".run .chip").filter(has_text=title)).to_have_count(1)
        page.click("text=Use in code")
        page.keyboard.press("Escape")
        page.reload()
        expect(page.locator(".run[data-state=answered]")).to_have_count(1)
        for _ in range(2):
            assert page.evaluate("window.hurt") is None
            assert page.locator("main img, main script, nav script, main svg[onload]").count() == 0
            addresses = page.eval_on_selector_all("a", "all => all.map((one) => one.protocol)")
            assert set(addresses) <= {"http:", "https:"}
            page.goto(f"{server.url}{page.locator('.actions a').last.get_attribute('href')}")
            page.wait_for_selector("body[data-ready]")


def test_the_address_of_a_run_cannot_carry_markup(visitor: Visitor) -> None:
    with visited(visitor, GatedModel(["<answer>yes</answer>"])) as server:
        visitor.expected = ("status of 404",)
        page = visitor.open(f"{server.url}/runs/%22%3E%3Cimg src=x onerror=window.hurt=1%3E", ready=False)
        expect(page.locator(".notice")).to_contain_text("there is no such run", ignore_case=True)
        assert page.evaluate("window.hurt") is None


def test_the_browser_refuses_scripts_markup_and_frames(visitor: Visitor) -> None:
    with visited(visitor, GatedModel(["<answer>yes</answer>"])) as server:
        visitor.expected = ("Content Security Policy", "TrustedHTML", "violates", "requires", "failed: GET")
        page = visitor.open(server.url)
        for attack in (
            "document.body.innerHTML = '<img src=x onerror=window.hurt=1>'",
            "document.body.setAttribute('onclick', 'window.hurt=1'); document.body.click()",
            "document.body.append(Object.assign(document.createElement('script'), {text: 'window.hurt=1'}))",
        ):
            page.evaluate(f"() => {{ try {{ {attack} }} catch {{ }} }}")
        assert page.evaluate("window.hurt") is None
        page.goto("about:blank")
        page.set_content(f"<iframe src='{server.url}'></iframe>")
        page.wait_for_timeout(300)
        frame = page.frames[-1]
        assert not frame.locator("#question").count()
