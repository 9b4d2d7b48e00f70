"""A browser for tests: where it is, how it is started, and somebody who uses it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pytest

from coa.models.base import Model
from support.served import ServedAgent, served

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page, Request

FLAGS: Final = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
REQUIRED: Final = "COA_REQUIRE_BROWSER"
"""If it is set, a missing browser fails the tests."""
TIMEOUT_MS: Final = 20_000


def executable() -> str:
    """The browser. Without one, tests are skipped, or fail where a browser is required."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if (found := shutil.which(name)) and subprocess.run([found, "--version"], capture_output=True).returncode == 0:
            return found
    reason = "there is no Chromium; install it with: sudo apt-get install chromium"
    if os.environ.get(REQUIRED):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@dataclass
class Visitor:
    """Somebody with a browser. What the page complains about is collected, and must be nothing at the end."""

    browser: Browser
    contexts: list[BrowserContext] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    expected: tuple[str, ...] = ()
    """Parts of complaints that belong to what a test does."""

    def open(self, url: str, *, ready: bool = True, **options: Any) -> Page:
        """A page in a new window; `ready` waits until it has its data."""
        context = self.browser.new_context(**{"viewport": {"width": 1200, "height": 800}, **options})
        context.set_default_timeout(TIMEOUT_MS)
        self.contexts.append(context)
        page = context.new_page()
        page.on("console", lambda said: self._complain(f"{said.type}: {said.text}"))
        page.on("pageerror", lambda error: self._complain(f"error: {error}"))
        page.on("requestfailed", self._request_failed)
        page.goto(url)
        if ready:
            page.wait_for_selector("body[data-ready]")
        return page

    def _request_failed(self, request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # the page was left or loaded again
            self._complain(f"failed: {request.method} {request.url} {request.failure}")

    def _complain(self, text: str) -> None:
        if not any(part in text for part in self.expected):
            self.complaints.append(text)

    def leave(self) -> None:
        while self.contexts:
            self.contexts.pop().close()


@contextmanager
def visited(visitor: Visitor, model: Model, **settings: Any) -> Iterator[ServedAgent]:
    """A server that the visitor leaves before it stops; a page that is still open would complain about that."""
    with served(model=model, **settings) as server:
        yield server
        visitor.leave()
