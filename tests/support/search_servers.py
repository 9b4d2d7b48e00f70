"""Search services on loopback for tests, in the shapes that the real ones document."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

Handler = Callable[[web.Request], Any]
KEY = "sk-very-secret-0123456789"


def answered(data: Any, status: int = 200, **headers: str) -> Handler:
    return lambda request: web.json_response(data, status=status, headers=headers)


async def hanging(request: web.Request) -> web.Response:
    await asyncio.sleep(30)
    return web.Response()


def html(request: web.Request) -> web.Response:
    return web.Response(text="<html>502 Bad Gateway</html>", content_type="text/html")


def dropped(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(1000):
        await response.write(b" " * (1 << 16))
    return response


def echoing_the_key(request: web.Request) -> web.Response:
    """Some services repeat the request in their errors."""
    return web.json_response({"error": f"bad request: {request.url} {dict(request.headers)}"}, status=400)


class SearchServer:
    """Gives the answers it was told to, the last one again and again; remembers what it was asked."""

    def __init__(self, *answers: Handler) -> None:
        self.answers = list(answers)
        self.asked: list[web.Request] = []
        self.bodies: list[Any] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request)
        self.bodies.append(await request.json() if request.method == "POST" else None)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        response = answer(request)
        if asyncio.iscoroutine(response):
            response = await response
        assert isinstance(response, web.StreamResponse)
        return response

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


SERPAPI = {
    "search_metadata": {"id": "64c1", "status": "Success", "total_time_taken": 0.9},
    "search_parameters": {"engine": "google", "q": "first programmer"},
    "answer_box": {"type": "organic_result", "title": "First programmer", "answer": "Ada Lovelace",
                   "link": "https://a.example/ada"},
    "organic_results": [
        {"position": 1, "title": "Ada Lovelace", "link": "https://a.example/ada", "displayed_link": "a.example",
         "snippet": "English mathematician, the first programmer.", "date": "Dec 10, 2023"},
        {"position": 2, "title": "Programs before computers", "link": "https://b.example/", "snippet": "Notes."},
        {"position": 3, "title": "No snippet", "link": "https://c.example/"},
    ],
}  # fmt: skip
SERPER = {
    "searchParameters": {"q": "first programmer", "type": "search", "engine": "google"},
    "answerBox": {"snippet": "Ada Lovelace wrote it.", "title": "Who?", "link": "https://a.example/who"},
    "organic": [
        {"title": "Ada Lovelace", "link": "https://a.example/ada", "snippet": "The first programmer.",
         "date": "10 Dec 2023", "position": 1},
        {"title": "Other", "link": "https://b.example/", "snippet": "Notes.", "position": 2},
    ],
    "peopleAlsoAsk": [], "relatedSearches": [], "credits": 1,
}  # fmt: skip
SEARXNG = {
    "query": "first programmer", "number_of_results": 0,
    "results": [
        {"url": "https://a.example/ada", "title": "Ada Lovelace", "content": "The first programmer.",
         "publishedDate": "2023-12-10T00:00:00", "engine": "mojeek", "score": 1.0, "category": "general"},
        {"url": "https://b.example/", "title": "Other", "content": None, "publishedDate": None},
    ],
    "answers": [], "corrections": [], "infoboxes": [], "suggestions": [], "unresponsive_engines": [],
}  # fmt: skip
