"""Makes the pictures in docs/images/: of the web page, from a real server with `nano`, of the viewer over a demo, and
of the first run of the README in the viewer.

    .venv/bin/coa demo --quick
    .venv/bin/python scripts/screenshots.py [serve] [view] [first] [--demo runs/demo-quick]

It needs Chromium (`sudo apt-get install chromium`). The pictures depend on the fonts of the machine.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.request import urlopen

from PIL import Image
from playwright.sync_api import sync_playwright

import coa

ROOT: Final = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from scripts.recording import COMMAND  # noqa: E402

from support.browsing import FLAGS, executable  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

IMAGES: Final = ROOT / "docs" / "images"
DESK: Final = {"viewport": {"width": 1180, "height": 860}, "device_scale_factor": 1.5}
PHONE: Final[dict[str, Any]] = {
    "viewport": {"width": 390, "height": 800},
    "device_scale_factor": 2,
    "is_mobile": True,
    "has_touch": True,
}
FIRST: Final = "Look up the profit of the firm called Berros."
SECOND: Final = "Tell me the birth year of the cook Terwick."
MOST_BYTES: Final = 300_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help="serve, view, first; all of them", default=["serve", "view", "first"])
    parser.add_argument("--demo", type=Path, default=ROOT / "runs" / "demo-quick", help="folder of a finished demo")
    given = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable(), args=list(FLAGS))
        if "serve" in given.what:
            of_page(browser)
        if "view" in given.what:
            of_viewer(browser, given.demo)
        if "first" in given.what:
            of_first_run(browser)
        browser.close()


def of_first_run(browser: Browser) -> None:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "first"
        command = [sys.executable, "-m", "coa.cli", *shlex.split(COMMAND)[1:], "--out", str(out)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        with coa.view([out], port=0, cache=Path(folder) / "cache") as viewer:
            while not (rows := _asked(viewer.url, "runs.json?limit=1")["rows"]):
                time.sleep(0.2)
            page = opened(browser, f"{viewer.url}/#/run/{rows[0]['id']}", **DESK, color_scheme="light")
            shoot(page, "view-first.png")
            page.close()


def _asked(url: str, path: str) -> Any:
    with urlopen(f"{url}/api/{path}") as answer:
        return json.load(answer)


def of_viewer(browser: Browser, demo: Path) -> None:
    with tempfile.TemporaryDirectory() as cache, coa.view([demo], port=0, cache=cache) as viewer:

        def asked(path: str) -> Any:
            return _asked(viewer.url, path)

        while (index := asked("index.json"))["progress"]["busy"] or index["scanned"] < index["progress"]["runs"]:
            time.sleep(0.2)
        folders = {Path(folder["path"]).relative_to(demo.resolve().name).as_posix(): folder["id"]
                   for folder in index["folders"]}  # fmt: skip

        def one(query: str) -> str:
            return str(asked(f"runs.json?limit=1&{query}")["rows"][0]["id"])

        def taken(name: str, place: str, *, press: str = "", **options: Any) -> None:
            page = opened(browser, f"{viewer.url}/{place}", **{**DESK, "color_scheme": "light", **options})
            if press:
                page.keyboard.press(press)
                page.wait_for_timeout(500)
            shoot(page, name)
            page.close()

        right = one(f"folder={folders['rl']}&outcome=right&stop=answered&sort=-tokens")
        long = one(f"folder={folders['eval/rl']}&outcome=right&stop=answered&sort=-tokens")
        taken("view-demo.png", f"#/folder/{folders['.']}")
        taken("view-list.png", "#/runs?q=workforce&sort=-tokens")
        taken("view-run.png", f"#/run/{right}?overlay=mask")
        taken("view-run-dark.png", f"#/run/{long}", color_scheme="dark")
        taken("view-rl.png", f"#/folder/{folders['rl']}/step/1")
        taken("view-team.png", f"#/run/{one('folder=' + folders['traces'])}")
        taken("view-compare.png", f"#/compare?folders={folders['eval/rl']},{folders['eval/sft']}&only=disagree")
        taken("view-phone.png", f"#/run/{right}", **PHONE)


def of_page(browser: Browser) -> None:
    with tempfile.TemporaryDirectory() as state:
        run = coa.RunConfig(model="nano", temperature=0)
        with coa.serve(coa.ServeConfig(run=run, port=0, state=Path(state))) as server:
            page = opened(browser, server.url, **DESK, color_scheme="light")
            ask(page, FIRST)
            page.wait_for_selector(".steps > :nth-child(5)[data-state=acting]")
            shoot(page, "serve-ask.png")
            answered(page)
            page.goto(f"{server.url}{page.get_attribute('.actions a', 'href')}")
            page.wait_for_selector("body[data-ready]")
            page.click(".step details >> nth=1")
            shoot(page, "serve-run.png")
            page.close()

            page = opened(browser, server.url, **DESK, color_scheme="dark")
            ask(page, SECOND)
            answered(page)
            shoot(page, "serve-ask-dark.png")
            page.close()

            page = opened(browser, server.url, **PHONE, color_scheme="light")
            ask(page, FIRST)
            answered(page)
            shoot(page, "serve-phone.png")


def opened(browser: Browser, url: str, **options: Any) -> Page:
    page = browser.new_context(**options, reduced_motion="reduce").new_page()
    page.goto(url)
    page.wait_for_selector("body[data-ready]")
    return page


def ask(page: Page, question: str) -> None:
    page.fill("#question", question)
    page.press("#question", "Enter")


def answered(page: Page) -> None:
    page.wait_for_selector(".run[data-state=answered]", timeout=120_000)
    page.wait_for_timeout(500)  # the list of conversations


def shoot(page: Page, name: str) -> None:
    path = IMAGES / name
    page.screenshot(path=path)
    with Image.open(path) as picture:
        picture.convert("RGB").save(path, optimize=True)
    size = path.stat().st_size
    print(f"{path.relative_to(ROOT)}: {size / 1000:.0f} kB")
    if size > MOST_BYTES:
        raise SystemExit(f"{name} is larger than {MOST_BYTES / 1000:.0f} kB")


if __name__ == "__main__":
    main()
