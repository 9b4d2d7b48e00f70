"""One policy for requests that fail: what may pass is tried again, what will not is said at once, keys stay unsaid."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from aiohttp import web

from coa.addresses import public
from coa.errors import ModelError
from coa.http import Client, Patience, Spent, Transient, Unserved, retried
from coa.models.server import ModelServer, ModelUnserved
from support.search_servers import Handler, SearchServer, answered

QUICK = Patience(attempts=3, timeout_s=60, backoff_s=0.001)
KEY = "sk-0123456789"


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between attempts, none of which is waited for."""
    seen: list[float] = []

    async def sleep(seconds: float) -> None:
        seen.append(seconds)

    monkeypatch.setattr("asyncio.sleep", sleep)
    monkeypatch.setattr("random.uniform", lambda low, high: 1.0)
    return seen


def failing(*waits: float | None) -> Callable[[], object]:
    """An attempt that fails once for each of these, with the pause that the service asks for, and then passes."""
    left = list(waits)

    async def attempt() -> str:
        if left:
            raise Transient("busy", left.pop(0))
        return "done"

    return attempt


def run(attempt: object, patience: Patience) -> object:
    return asyncio.run(retried("it", attempt, patience))  # type: ignore[arg-type]


def test_pauses_double_up_to_half_a_minute(pauses: list[float]) -> None:
    assert run(failing(*[None] * 8), Patience(attempts=9, backoff_s=0.5)) == "done"
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_a_pause_that_the_service_asks_for_is_kept(pauses: list[float]) -> None:
    assert run(failing(7.0, 0.1), Patience(backoff_s=0.5)) == "done"
    assert pauses == [7.0, 1.0]


def test_a_pause_that_is_too_long_ends_the_attempts_or_is_cut_short(pauses: list[float]) -> None:
    with pytest.raises(Unserved, match="asks to wait 31 seconds: busy") as raised:
        run(failing(31.0), Patience())
    assert raised.value.error == "quota" and pauses == []
    assert run(failing(3600.0), Patience(max_wait_s=60.0, waits_out=True)) == "done"
    assert pauses == [60.0]


def test_an_attempt_without_an_answer_ends_in_time() -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Unserved, match=r"it did not answer in 2 attempts: no answer within 0\.01 seconds"):
        run(never, Patience(attempts=2, timeout_s=0.01, backoff_s=0.001))


def ask(client: Callable[[str], Client], *answers: Handler) -> tuple[object, Spent, SearchServer]:
    """What a GET gives or raises, what it cost, and the server."""
    spent = Spent()

    async def go() -> tuple[object, Spent, SearchServer]:
        server = SearchServer(*answers)
        async with server.running() as url:
            asked = client(url)
            try:
                return await asked.get("/it", {"q": "a b"}, spent), spent, server
            except Unserved as error:
                return error, spent, server
            finally:
                await asked.close()

    return asyncio.run(go())


def test_calls_bytes_and_attempts_are_counted() -> None:
    found, spent, server = ask(lambda url: Client("it", url, patience=QUICK), answered({}, 503), answered({"a": 1}))
    assert found == {"a": 1} and spent.calls == 2 and len(server.asked) == 2
    assert spent.bytes == len('{}{"a": 1}') and dict(server.asked[1].query) == {"q": "a b"}
    assert spent.meta() == {"calls": 2, "bytes": spent.bytes, "service_seconds": round(spent.seconds, 4)}


@pytest.mark.parametrize(("status", "calls"), [(400, 1), (401, 1), (404, 1), (409, 3), (429, 3), (500, 3), (529, 3)])
def test_only_what_may_pass_is_asked_again(status: int, calls: int) -> None:
    found, spent, _ = ask(lambda url: Client("it", url, patience=QUICK), answered({"detail": "no"}, status))
    assert isinstance(found, Unserved) and f"it answers {status}: no" in found.message and spent.calls == calls
    assert found.status == (status if calls == 1 else None)
    assert found.error == {400: "request", 401: "key", 404: "request"}.get(status, "service")


def test_a_model_servers_failure_is_a_model_error_with_a_hint() -> None:
    refused, _, server = ask(
        lambda url: ModelServer(f"{url}/v1", key=KEY, patience=QUICK), answered({"error": KEY}, 401)
    )
    assert isinstance(refused, ModelError) and isinstance(refused, ModelUnserved)
    assert "answers 401: [key] (asked for /it)" in refused.message and "--set api_key_env=" in str(refused.hint)
    assert server.asked[0].path == "/it" and server.asked[0].headers["Authorization"] == f"Bearer {KEY}"
    absent, _, _ = ask(lambda url: ModelServer(url, patience=QUICK), answered({}, 503))
    assert isinstance(absent, ModelUnserved) and "in 3 attempts" in absent.message
    assert "the model server runs" in str(absent.hint)


def moved(request: web.Request) -> web.StreamResponse:
    return web.Response(status=307, headers={"Location": f"/there?key={KEY}"})


def test_a_redirect_is_followed_to_a_model_only() -> None:
    found, _, _ = ask(lambda url: Client("it", url, secrets=[KEY], patience=QUICK), moved)
    assert isinstance(found, Unserved) and found.message == "it has moved to /there?key=[key]"
    assert ask(lambda url: ModelServer(url, patience=QUICK), moved, answered({"a": 1}))[0] == {"a": 1}


def test_an_address_is_shown_without_its_password() -> None:
    assert public("https://me:secret@host:81/path?a=b") == "https://host:81/path?a=b"
    server = ModelServer("http://me:secret@host/v1/")
    assert server.url == server.name == "http://host"
