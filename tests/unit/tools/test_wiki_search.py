"""wiki_search over an index, over a /retrieve server, and ranked again by embeddings."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from coa.errors import ToolError
from coa.http import Patience, Spent
from coa.tools import Observation, ToolContext
from coa.tools.index import IndexedDocument, build
from coa.tools.registry import open_tool
from coa.tools.wiki_search import LocalRetriever, Reranked, RetrieveServer, WikiSearch, open_wiki_search
from coa.trajectory import Task
from support.search_servers import KEY, Handler, SearchServer, answered, hanging

CONTEXT = ToolContext(Task(id="1", question="who?"))
QUICK = Patience(attempts=2, timeout_s=60, backoff_s=0.001)
DOCUMENTS = [
    IndexedDocument(
        "1", "Ada Lovelace", "She wrote the first program, for the Analytical Engine.", "https://w.example/Ada"
    ),
    IndexedDocument("2", "Charles Babbage", "He designed the Analytical Engine."),
    IndexedDocument("3", "Lighthouse", "A tower with a lamp."),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    build(DOCUMENTS, tmp_path / "wiki")
    return tmp_path / "wiki"


def call(tool: WikiSearch, text: str) -> Observation:
    async def go() -> Observation:
        try:
            return await tool.call({"text": text}, CONTEXT)
        finally:
            await tool.close()

    return asyncio.run(go())


def test_passages_come_with_title_address_and_source(folder: Path) -> None:
    seen = call(open_wiki_search(f"{folder},k=1", {}), "who wrote the first program?")
    assert seen.text == (
        'index wiki, results for "who wrote the first program?":\n'
        "1. Ada Lovelace - https://w.example/Ada\n"
        "   She wrote the first program, for the Analytical Engine."
    )
    assert seen.meta == {"source": "index wiki", "queries": 1, "calls": 1, "bytes": 0,
                         "service_seconds": seen.meta["service_seconds"]}  # fmt: skip


def test_several_queries_are_answered_in_their_order(folder: Path) -> None:
    seen = call(open_wiki_search(str(folder), {}), "tower lamp | designed the engine | zebra")
    blocks = seen.text.split("\n\n")
    assert "1. Lighthouse" in blocks[0] and "1. Charles Babbage" in blocks[1]
    assert blocks[2] == 'index wiki found nothing for "zebra".'
    assert call(open_wiki_search(str(folder), {}), " | ").text == "error: there is no query"


def test_the_environment_may_name_the_index(folder: Path) -> None:
    tool = open_tool("wiki_search", None, {"COA_WIKI_INDEX": str(folder)})
    assert isinstance(tool, WikiSearch) and tool.retriever.source == "index wiki"
    with pytest.raises(ToolError, match="rerank needs a model"):
        open_wiki_search(f"{folder},rerank=http://x/v1", {})


def ask_server(*answers: Handler, patience: Patience = QUICK) -> tuple[Observation, SearchServer]:
    async def go() -> tuple[Observation, SearchServer]:
        server = SearchServer(*answers)
        async with server.running() as url:
            tool = WikiSearch(RetrieveServer(f"{url}/retrieve", patience=patience), k=2)
            try:
                return await tool.call({"text": "first program | lamp"}, CONTEXT), server
            finally:
                await tool.close()

    return asyncio.run(go())


ADA = {"id": "1", "contents": '"Ada Lovelace"\nShe wrote the first program.'}
LAMP = {"id": "3", "title": "Lighthouse", "text": "A tower.", "contents": "unused"}


@pytest.mark.parametrize(
    "result",
    [
        [[{"document": ADA, "score": 9.5}], [{"document": LAMP, "score": 0.1}]],
        [[ADA], [LAMP]],
        [['"Ada Lovelace"\nShe wrote the first program.'], [LAMP]],
    ],
)
def test_a_retrieve_server_is_asked_once_for_all_queries(result: object) -> None:
    seen, server = ask_server(answered({"result": result}))
    assert server.asked[0].path == "/retrieve"
    assert server.bodies == [{"queries": ["first program", "lamp"], "topk": 2, "return_scores": True}]
    assert "1. Ada Lovelace\n   She wrote the first program." in seen.text and "1. Lighthouse\n   A tower." in seen.text


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (answered({"result": [[ADA]]}), "unknown shape"),
        (answered({"detail": "no"}), "unknown shape"),
        (answered({"result": [None, None]}), "unknown shape"),
        (answered({"result": [[{"document": {"id": 1}}], []]}), "cannot be used"),
        (answered({"detail": "queries missing"}, 422), "answers 422: queries missing"),
        (hanging, "did not answer in 2 attempts"),
    ],
)
def test_a_retrieve_server_that_fails_is_told(answer: Handler, said: str) -> None:
    impatient = Patience(attempts=2, timeout_s=0.3, backoff_s=0.001)
    seen, _ = ask_server(answer, patience=impatient if answer is hanging else QUICK)
    assert not seen.ok and said in seen.text and seen.text.startswith("error: no passages")


class Embeddings(SearchServer):
    """Two numbers a text: how much it speaks of towers, and of anything else. Out of order, as servers may."""

    def __init__(self) -> None:
        super().__init__(self.embed)
        self.texts: list[Sequence[str]] = []

    def embed(self, request: web.Request) -> web.Response:
        assert request.path == "/v1/embeddings" and request.headers["Authorization"] == f"Bearer {KEY}"
        body = self.bodies[-1]
        self.texts.append(body["input"])
        rows: list[dict[str, Any]] = [
            {"object": "embedding", "index": index, "embedding": [5.0, 0.0] if "tower" in text.lower() else [1.0, 3.0]}
            for index, text in enumerate(body["input"])
        ]
        return web.json_response({"object": "list", "data": rows[::-1], "model": body["model"]})


def test_embeddings_decide_the_order_of_the_candidates(tmp_path: Path) -> None:
    documents = [
        IndexedDocument("a", "Engine", "engine engine engine"),
        IndexedDocument("b", "Keep", "A tower. An engine."),
    ]
    build(documents, tmp_path / "i")

    async def go(server: SearchServer) -> list[list[str]]:
        async with server.running() as url:
            tool = Reranked(
                LocalRetriever(str(tmp_path / "i")),
                f"{url}/v1",
                "e5",
                key=KEY,
                candidates=2,
                prefixes=("query: ", "passage: "),
                patience=QUICK,
            )
            try:
                return [
                    [one.id for one in (await tool.retrieve([query], 2, Spent()))[0]]
                    for query in ("engine", "tower engine", "tower engine")
                ]
            finally:
                await tool.close()

    server = Embeddings()
    assert asyncio.run(go(server)) == [["a", "b"], ["b", "a"], ["b", "a"]]
    assert server.texts[0] == [
        "query: engine",
        "passage: Engine\nengine engine engine",
        "passage: Keep\nA tower. An engine.",
    ]
    assert server.texts[1:] == [["query: tower engine"]] * 2, "passages are embedded once"
    for broken in (answered({"data": []}), answered({}, 500), answered({"data": [{"index": 0, "embedding": "x"}]})):
        assert asyncio.run(go(SearchServer(broken)))[0] == ["a", "b"], "the order of BM25 stays"
