"""`wiki_search`: passages for a query, from a local index or a `/retrieve` server in the style of Search-R1."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from pydantic import JsonValue

from coa.addresses import public
from coa.errors import ToolError
from coa.http import Client, Patience, Spent, Unserved
from coa.tools.base import Observation, ToolContext
from coa.tools.index.documents import IndexedDocument
from coa.tools.registry import BUILD_INDEX
from coa.tools.results import MAX_QUERIES, Found, parse_setting, queries_of, show, whole_number
from coa.trajectory import Form, Shape

log = logging.getLogger(__name__)

PASSAGES: Final = 5
_OPTIONS: Final = {
    "k": "passages of a query",
    "rerank": "address of an OpenAI-compatible server with /embeddings",
    "model": "its model",
    "candidates": "passages to rank again",
    "query_prefix": "put before a query",
    "passage_prefix": "put before a passage",
}


class Retriever(Protocol):
    source: str
    """Its name in an observation."""
    settings: JsonValue

    async def retrieve(self, queries: Sequence[str], k: int, spent: Spent) -> list[list[IndexedDocument]]:
        """The best passages of each query, best first."""

    async def close(self) -> None: ...


class WikiSearch:
    about = "looks queries up in the encyclopedia and gets passages."
    shape = Shape(form=Form.LIST)
    uses = ()

    def __init__(self, retriever: Retriever, *, k: int = PASSAGES, timeout_s: float = 75.0) -> None:
        self.retriever, self.k, self.timeout_s = retriever, k, timeout_s
        self.settings: JsonValue = {"retriever": retriever.settings, "k": k}

    async def call(self, arguments: Mapping[str, JsonValue], context: ToolContext) -> Observation:
        queries = queries_of(arguments)
        if not queries:
            return Observation("error: there is no query", ok=False, meta={"error": "request"})
        asked = queries[:MAX_QUERIES]
        spent = Spent()
        try:
            found = await self.retriever.retrieve(asked, self.k, spent)
        except Unserved as error:
            meta = {"source": self.retriever.source, "error": error.error, **spent.meta()}
            return Observation(f"error: no passages: {error}", ok=False, meta=meta)
        blocks = [
            show(self.retriever.source, query, [Found(one.title, one.url, one.text, one.date) for one in passages])
            for query, passages in zip(asked, found, strict=True)
        ]
        if len(queries) > MAX_QUERIES:
            blocks.append(f"note: only the first {MAX_QUERIES} of {len(queries)} queries were looked up.")
        meta = {"source": self.retriever.source, "queries": len(asked), **spent.meta()}
        return Observation("\n\n".join(blocks), meta=meta)

    async def close(self) -> None:
        await self.retriever.close()


class LocalRetriever:
    def __init__(self, folder: str) -> None:
        from coa.tools.index import Index

        self._index = Index(folder)
        self.source = f"index {self._index.folder.name}"
        self.settings: JsonValue = {"index": self._index.manifest.hash}

    async def retrieve(self, queries: Sequence[str], k: int, spent: Spent) -> list[list[IndexedDocument]]:
        start = time.monotonic()
        # One thread per query: the engine works without the interpreter's lock.
        found = await asyncio.gather(*(asyncio.to_thread(self._index.search, query, k) for query in queries))
        spent.calls += len(queries)
        spent.seconds += time.monotonic() - start
        return [[hit.passage for hit in hits] for hits in found]

    async def close(self) -> None:
        pass


class RetrieveServer(Client):
    """`POST /retrieve {queries, topk, return_scores}` -> `{result: [[{document, score}, ...], ...]}`."""

    def __init__(self, url: str, *, patience: Patience | None = None) -> None:
        url = url.rstrip("/").removesuffix("/retrieve")
        super().__init__(f"the retrieval server {public(url)}", url, patience=patience)
        self.source = "retrieval server"
        self.settings: JsonValue = {"retrieve": public(url)}

    async def retrieve(self, queries: Sequence[str], k: int, spent: Spent) -> list[list[IndexedDocument]]:
        body: dict[str, JsonValue] = {"queries": list(queries), "topk": k, "return_scores": True}
        data = await self.post("/retrieve", body, spent)
        result = data.get("result") if isinstance(data, dict) else None
        if not isinstance(result, list) or [list] * len(queries) != [type(entries) for entries in result]:
            raise Unserved("the retrieval server answers in an unknown shape", error="shape")
        return [[_document(entry) for entry in entries][:k] for entries in result]


def _document(entry: Any) -> IndexedDocument:
    """`{document: ..., score: ...}`, or the document alone from servers that ignore `return_scores`."""
    from coa.tools.index.sources import Unusable, document_of

    row = entry.get("document", entry) if isinstance(entry, dict) else entry
    try:
        return document_of(row if isinstance(row, dict) else {"contents": row}, "")
    except Unusable as error:
        raise Unserved(f"the retrieval server gave a document that cannot be used: {error}", error="shape") from error


class Reranked:
    """Candidates of another retriever, ordered by the similarity of their embeddings to the query's embedding.

    If the embedding server does not answer, the candidates keep their order.
    """

    KEPT: Final = 10_000
    """The number of embeddings of passages that are kept in memory, the latest ones."""

    def __init__(
        self,
        retriever: Retriever,
        url: str,
        model: str,
        *,
        key: str = "",
        candidates: int = 50,
        prefixes: tuple[str, str] = ("", ""),
        patience: Patience | None = None,
    ) -> None:
        """`prefixes` are put before a query and before a passage, as some embedding models need it."""
        self.source = retriever.source
        ranked: JsonValue = [retriever.settings, candidates]
        self.settings: JsonValue = {"candidates": ranked, "model": model, "prefixes": list(prefixes)}
        self._retriever, self._model, self._candidates = retriever, model, candidates
        self._query_prefix, self._passage_prefix = prefixes
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = Client("the embedding server", url, headers=headers, secrets=[key], patience=patience)
        self._known: OrderedDict[str, list[float]] = OrderedDict()

    async def retrieve(self, queries: Sequence[str], k: int, spent: Spent) -> list[list[IndexedDocument]]:
        found = await self._retriever.retrieve(queries, max(k, self._candidates), spent)
        try:
            pairs = zip(queries, found, strict=True)
            return [(await self._ranked(query, passages, spent))[:k] for query, passages in pairs]
        except Unserved as error:
            log.warning("not ranked again: %s", error)
            return [passages[:k] for passages in found]

    async def close(self) -> None:
        await self._client.close()
        await self._retriever.close()

    async def _ranked(self, query: str, passages: Sequence[IndexedDocument], spent: Spent) -> list[IndexedDocument]:
        if len(passages) < 2:
            return list(passages)
        texts = [f"{self._passage_prefix}{one.title}\n{one.text}" for one in passages]
        asked = self._query_prefix + query
        new = list(dict.fromkeys(text for text in texts if text not in self._known))
        vectors = await self._embed([asked, *new], spent)
        fresh = dict(zip(new, vectors[1:], strict=True))
        known = {text: fresh[text] if text in fresh else self._known[text] for text in texts}
        for text, vector in known.items():
            self._known[text] = vector
            self._known.move_to_end(text)
        while len(self._known) > self.KEPT:
            self._known.popitem(last=False)
        scores = [sum(a * b for a, b in zip(vectors[0], known[text], strict=True)) for text in texts]
        order = sorted(range(len(passages)), key=lambda place: -scores[place])
        return [passages[place] for place in order]

    async def _embed(self, texts: Sequence[str], spent: Spent) -> list[list[float]]:
        """Vectors of length 1, in the order of the texts."""
        data = await self._client.post("/embeddings", {"model": self._model, "input": list(texts)}, spent)
        try:
            rows = sorted(data["data"], key=lambda row: row["index"])
            vectors = [[float(number) for number in row["embedding"]] for row in rows]
            if len(vectors) != len(texts) or len({len(vector) for vector in vectors}) != 1:
                raise ValueError(f"{len(vectors)} embeddings for {len(texts)} texts")
        except (KeyError, TypeError, ValueError) as error:
            raise Unserved(f"the embedding server answers in an unknown shape: {error}", error="shape") from error
        lengths = [math.hypot(*vector) or 1.0 for vector in vectors]
        return [[number / length for number in vector] for vector, length in zip(vectors, lengths, strict=True)]


def open_wiki_search(setting: str | None, environment: Mapping[str, str]) -> WikiSearch:
    target, options = parse_setting("wiki_search", setting or "", _OPTIONS)
    target = target or environment.get("COA_WIKI_INDEX", "")
    if not target:
        raise ToolError("wiki_search has nothing to search", hint=BUILD_INDEX)
    k = whole_number("wiki_search", options, "k", PASSAGES)
    remote = target.startswith(("http://", "https://"))
    retriever: Retriever = RetrieveServer(target) if remote else LocalRetriever(target)
    if "rerank" in options:
        if "model" not in options:
            raise ToolError("--tool wiki_search: rerank needs a model", hint="add ,model=NAME")
        retriever = Reranked(
            retriever,
            options["rerank"],
            options["model"],
            key=environment.get("COA_EMBEDDINGS_API_KEY", ""),
            candidates=whole_number("wiki_search", options, "candidates", 50),
            prefixes=(options.get("query_prefix", ""), options.get("passage_prefix", "")),
        )
    return WikiSearch(retriever, k=k)
