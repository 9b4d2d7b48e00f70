"""Makes the pictures of the web page in docs/images/ from a real server with `nano`.

    .venv/bin/python scripts/screenshots.py

It needs Chromium (`sudo apt-get install chromium`). The pictures depend on the fonts of the machine.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from PIL import Image
from playwright.sync_api import sync_playwright

import coa

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.browsing import FLAGS, executable  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

IMAGES: Final = ROOT / "docs" / "images"
DESK: Final = {"viewport": {"width": 1180, "height": 860}, "device_scale_factor": 1.5}
PHONE: Final = {
    "viewport": {"width": 390, "height": 800},
    "device_scale_factor": 2,
    "is_mobile": True,
    "has_touch": True,
}
FIRST: Final = "Look up the profit of the firm called Berros."
SECOND: Final = "Tell me the birth year of the cook Terwick."
MOST_BYTES: Final = 300_000


def main() -> None:
    with tempfile.TemporaryDirectory() as state, sync_playwright() as playwright:
        run = coa.RunConfig(model="nano", temperature=0)
        browser = playwright.chromium.launch(executable_path=executable(), args=list(FLAGS))
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
        browser.close()


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
