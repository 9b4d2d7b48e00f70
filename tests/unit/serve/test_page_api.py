"""The API behind the page: start, watch, stop, list, delete; and what the pages send along."""

from __future__ import annotations

import http.client
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest

from support.gated import GATE, GatedModel
from support.served import ANSWER, SEARCH, ServedAgent, served


class Caller:
    """Somebody who calls one server."""

    def __init__(self, server: ServedAgent, key: str = "") -> None:
        self.address = urlsplit(server.url).netloc
        self.key = key

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        status, _, text = self.raw(method, path, body, headers)
        return status, orjson.loads(text) if text else None

    def raw(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        connection = http.client.HTTPConnection(self.address, timeout=20)
        try:
            sent = {"Authorization": f"Bearer {self.key}"} if self.key else {}
            raw = body if isinstance(body, bytes) else None if body is None else orjson.dumps(body)
            connection.request(method, path, raw, {**sent, **(headers or {})})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def start(self, question: str = "Which tower?", previous: str | None = None) -> dict[str, Any]:
        status, record = self.ask("POST", "/page/runs", {"agent": "agent", "question": question, "previous": previous})
        assert status == 201, record
        run: dict[str, Any] = record["run"]
        return run

    def events(self, run: str, start: int = 0) -> list[dict[str, Any]]:
        status, _, text = self.raw("GET", f"/page/runs/{run}/events?start={start}")
        assert status == 200
        batches = [orjson.loads(part[6:]) for part in text.split(b"\n\n") if part.startswith(b"data: ")]
        return [event for batch in batches for event in batch["events"]]


@contextmanager
def server_and_caller(*lines: str, **config: Any) -> Iterator[tuple[Caller, GatedModel]]:
    model = GatedModel(lines or (SEARCH, ANSWER))
    with served(model=model, config=config) as server:
        yield Caller(server), model


def joined(events: list[dict[str, Any]]) -> dict[int, str]:
    """The text of each item, from its pieces if it did not end."""
    texts: dict[int, str] = {}
    for event in events:
        if event["type"] == "text":
            texts[event["item"]] = texts.get(event["item"], "") + event["text"]
        elif event["type"] == "done":
            texts[event["item"]] = event["text"]
    return texts


def test_a_run_is_the_same_live_and_from_the_store() -> None:
    with server_and_caller() as (caller, _):
        run = caller.start()
        live = caller.events(run["id"])
        assert live[-1]["type"] == "ended" and live[-1]["answer"] == "The Vell tower."
        status, kept = caller.ask("GET", f"/page/conversations/{run['conversation']}")
        assert status == 200
        (record,) = kept["runs"]
        assert record["run"]["question"] == "Which tower?"
        assert unnumbered(record["events"]) == unnumbered(event for event in live if event["type"] != "text")


def unnumbered(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without the number of each step in the trajectory, which is known only when the run is over."""
    return [{name: value for name, value in event.items() if name != "step"} for event in events]


def test_events_can_be_had_from_any_number_on() -> None:
    with server_and_caller() as (caller, _):
        run = caller.start()["id"]
        whole = caller.events(run)
        status, record = caller.ask("GET", f"/page/runs/{run}")
        assert status == 200
        for start in range(record["next"]):
            rest = caller.events(run, start)
            assert rest[-1] == whole[-1]
            texts = joined(rest)
            assert all(joined(whole)[item].endswith(text) for item, text in texts.items())
        for wrong in ("x", "-1", "99999", "9" * 5000):
            assert caller.ask("GET", f"/page/runs/{run}/events?start={wrong}")[0] == 400


def test_a_conversation_is_listed_by_its_first_question_and_deleted_whole() -> None:
    with server_and_caller() as (caller, _):
        first = caller.start("First?")
        caller.events(first["id"])
        second = caller.start("Second?", previous=first["id"])
        caller.events(second["id"])
        assert second["conversation"] == first["conversation"]
        _, listed = caller.ask("GET", "/page/conversations")
        assert [(row["question"], row["running"]) for row in listed["conversations"]] == [("First?", False)]
        path = f"/page/conversations/{first['conversation']}"
        assert [record["run"]["question"] for record in caller.ask("GET", path)[1]["runs"]] == ["First?", "Second?"]
        assert caller.ask("DELETE", path)[0] == 204
        assert caller.ask("GET", path)[0] == caller.ask("DELETE", path)[0] == 404
        assert caller.ask("GET", f"/page/runs/{second['id']}")[0] == 404
        assert caller.ask("GET", "/page/conversations")[1]["conversations"] == []


def test_a_running_conversation_is_listed_stopped_and_deleted() -> None:
    with server_and_caller(f"<think>I wonder{GATE}</think>") as (caller, _):
        run = caller.start()
        _, listed = caller.ask("GET", "/page/conversations")
        assert [row["running"] for row in listed["conversations"]] == [True]
        assert caller.ask("DELETE", f"/page/conversations/{run['conversation']}")[0] == 204
        assert caller.ask("GET", "/page/conversations")[1]["conversations"] == []
        assert caller.ask("GET", "/ready")[1]["active"] == 0


def test_a_question_cannot_follow_a_run_that_is_not_over_or_not_there() -> None:
    with server_and_caller(f"<think>I wonder{GATE}</think><answer>yes</answer>") as (caller, model):
        run = caller.start()
        for previous in (run["id"], "nothing"):
            body = {"agent": "agent", "question": "And?", "previous": previous}
            status, error = caller.ask("POST", "/page/runs", body)
            assert (status, error["error"]["param"]) == (409, "previous")
        model.open_gate()
        caller.events(run["id"])


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b"{", 400, None),
        ({"agent": "agent"}, 400, "question"),
        ({"agent": "agent", "question": ""}, 400, "question"),
        ({"agent": "agent", "question": 3}, 400, "question"),
        ({"agent": "agent", "question": "?", "more": 1}, 400, "more"),
        ({"agent": "nobody", "question": "?"}, 404, "model"),
    ],
)
def test_a_bad_question_is_refused_by_the_name_of_its_field(body: Any, status: int, param: str | None) -> None:
    with server_and_caller() as (caller, _):
        found, error = caller.ask("POST", "/page/runs", body)
        assert (found, error["error"]["param"]) == (status, param)


def test_runs_of_another_key_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COA_SERVE_KEYS", "first-key-first-key,second-key-second-key")
    with served() as server:
        one, two = Caller(server, "first-key-first-key"), Caller(server, "second-key-second-key")
        run = one.start()
        one.events(run["id"])
        assert two.ask("GET", "/page/conversations")[1]["conversations"] == []
        for method, path in (
            ("GET", f"/page/runs/{run['id']}"),
            ("GET", f"/page/runs/{run['id']}/events"),
            ("POST", f"/page/runs/{run['id']}/cancel"),
            ("GET", f"/page/conversations/{run['conversation']}"),
            ("DELETE", f"/page/conversations/{run['conversation']}"),
        ):
            assert two.ask(method, path)[0] == 404, path
            assert Caller(server).ask(method, path)[0] == 401, path
        assert one.ask("GET", f"/page/runs/{run['id']}")[0] == 200


def test_pages_and_files_come_with_strict_headers_and_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COA_SERVE_KEYS", "first-key-first-key")
    with served() as server:
        caller = Caller(server)
        for path in ("/", "/c/x", "/runs/x", "/static/ask.js", "/static/base.css", "/static/icon.svg"):
            status, headers, _ = caller.raw("GET", path)
            policy = headers["content-security-policy"]
            assert status == 200, path
            assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy and headers["referrer-policy"] == "no-referrer"
            assert headers.get_all("x-content-type-options") == ["nosniff"]
        assert caller.raw("GET", "/static/ask.js")[1]["content-type"].startswith("text/javascript")
        for path in ("/static/nothing.js", "/static/..%2f__init__.py", "/static/../pages.py"):
            assert caller.raw("GET", path)[0] == 404


def test_a_file_that_the_browser_has_is_not_sent_again() -> None:
    with served() as server:
        caller = Caller(server)
        tag = caller.raw("GET", "/static/ask.js")[1]["etag"]
        status, _, body = caller.raw("GET", "/static/ask.js", headers={"If-None-Match": tag})
        assert (status, body) == (304, b"")


def test_a_foreign_page_cannot_ask() -> None:
    with server_and_caller() as (caller, model):
        body = {"agent": "agent", "question": "?"}
        assert caller.ask("POST", "/page/runs", body, {"Origin": "https://evil.example"})[0] == 403
        assert model.calls == []


def test_a_server_without_a_page_has_none() -> None:
    with server_and_caller(page=False) as (caller, _):
        assert caller.ask("GET", "/")[0] == caller.ask("GET", "/page/agents")[0] == 404


def test_agents_are_offered_with_their_profile_and_examples() -> None:
    with server_and_caller() as (caller, _):
        (offer,) = caller.ask("GET", "/page/agents")[1]["agents"]
        assert offer["name"] == "agent" and offer["examples"] == [] and offer["note"] == ""
        assert offer["profile"]["agents"]["web_search"]["kind"] == "tool"
