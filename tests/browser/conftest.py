"""One Chromium for all browser tests of a process. It is the system's: `make setup` installs it where it may.

Playwright's plain (not asynchronous) interface keeps an event loop running in its thread, where no other test could
then start one. So the browser lives in a thread of its own, and the tests of this folder run there.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from support.browsing import FLAGS, TIMEOUT_MS, Visitor, executable

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Playwright


@pytest.fixture(scope="session")
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1, thread_name_prefix="browser") as found:
        yield found


@pytest.fixture(scope="session")
def browser(thread: ThreadPoolExecutor) -> Iterator[Browser]:
    from playwright.sync_api import expect, sync_playwright

    path = executable()
    expect.set_options(timeout=TIMEOUT_MS)

    def launch() -> tuple[Playwright, Browser]:
        playwright = sync_playwright().start()
        return playwright, playwright.chromium.launch(executable_path=path, args=list(FLAGS))

    def end() -> None:
        found.close()
        playwright.stop()

    playwright, found = thread.submit(launch).result()
    yield found
    thread.submit(end).result()


@pytest.fixture
def visitor(browser: Browser, thread: ThreadPoolExecutor) -> Iterator[Visitor]:
    found = Visitor(browser)
    yield found
    thread.submit(found.leave).result()
    assert found.complaints == []


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs the tests that have a browser in the thread of the browser."""
    if "visitor" not in pyfuncitem.funcargs:
        return None
    wanted = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    found: ThreadPoolExecutor = pyfuncitem._request.getfixturevalue("thread")
    found.submit(pyfuncitem.obj, **wanted).result()
    return True
