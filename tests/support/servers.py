"""Model servers on loopback for tests: one that behaves, and one that misbehaves on purpose."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from aiohttp import web

from coa.models.tokenizer import TextTokenizer

Handler = Callable[[web.Request], Any]
Script = Callable[[dict[str, Any]], "str | tuple[str, str]"]
"""Text, or text and why it ends there."""


class FakeServer:
    """Speaks like vLLM, SGLang, llama.cpp or a plain chat API; counts and keeps what it was asked."""

    def __init__(self, script: Script, *, owner: str = "vllm", tokenizer: TextTokenizer | None = None) -> None:
        self.script = script
        self.owner = owner
        self.tokenizer = tokenizer
        self.asked: list[dict[str, Any]] = []
        self.trouble: list[Handler] = []
        """What to do instead of answering, one entry a request."""
        self.incremental = False
        """SGLang's setting: events hold new tokens only."""
        self.breaks_after = 0
        """End one stream early, after so many events."""
        self.most_stops: int | None = None
        """Refuse requests with more stop strings, in the words of vLLM 0.28."""

    def routes(self) -> list[web.RouteDef]:
        """What else a kind of server has."""
        return []

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "tiny", "owned_by": self.owner}]})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        if isinstance(body, web.StreamResponse):
            return body
        text, finish = self._say(body)
        ids = self.tokenizer.encode([text])[0] if self.tokenizer else []
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(ids)}
        if not body.get("stream"):
            logprobs = {"token_logprobs": [-0.5] * len(ids)}
            choice = {"text": text, "token_ids": ids, "logprobs": logprobs, "finish_reason": finish}
            return web.json_response({"choices": [choice], "usage": usage})
        if self.owner == "vllm":
            made = [{"token_ids": [token], "logprobs": {"token_logprobs": [-0.5]}} for token in ids]
            end: dict[str, Any] = {"token_ids": []}
        else:
            made = [{"logprobs": {"content": [{"id": token, "logprob": -0.5}]}} for token in ids]
            end = {"logprobs": None}
        events = [{"choices": [{"text": "", "finish_reason": None, **event}]} for event in made]
        events.append({"choices": [{"text": "", "finish_reason": finish, **end}]})
        return await self._stream(request, [*events, {"choices": [], "usage": usage}])

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        if isinstance(body, web.StreamResponse):
            return body
        text, finish = self._say({**body["sampling_params"], "prompt": body["input_ids"]})
        assert self.tokenizer
        ids = self.tokenizer.encode([text])[0]
        matched = next(
            (stop for stop in body["sampling_params"]["stop"] if text.endswith(stop)), self.tokenizer.end_of_turn
        )
        ended = {"type": "stop", "matched": matched} if finish == "stop" else {"type": finish}

        def event(begin: int, end: int) -> dict[str, Any]:
            meta = {
                "output_token_logprobs": [[-0.5, token, None] for token in ids[begin:end]],
                "finish_reason": ended if end == len(ids) else None,
                "prompt_tokens": len(body["input_ids"]),
                "completion_tokens": end,
                "cached_tokens": 3,
            }
            return {"text": text, "meta_info": meta}

        if not body.get("stream"):
            return web.json_response(event(0, len(ids)))
        begin = (lambda end: end - 1) if self.incremental else (lambda end: 0)
        return await self._stream(request, [event(begin(end), end) for end in range(1, len(ids) + 1)])

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        if isinstance(body, web.StreamResponse):
            return body
        text, finish = self._say(body)
        for stop in body.get("stop", []):
            text = text.removesuffix(stop)  # as OpenAI does
        usage = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
        if body.get("stream"):
            deltas = [{"role": "assistant", "content": ""}, *({"content": letter} for letter in text), {}]
            events: list[Any] = [{"choices": [{"delta": delta, "finish_reason": None}]} for delta in deltas]
            events[-1]["choices"][0]["finish_reason"] = finish
            return await self._stream(request, [{"choices": []}, *events, {"choices": [], "usage": usage}])
        return web.json_response({"choices": [{"message": {"content": text}, "finish_reason": finish}], "usage": usage})

    async def _stream(self, request: web.Request, events: list[dict[str, Any]]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
            await asyncio.sleep(0)
            if self.breaks_after:
                self.breaks_after -= 1
                if not self.breaks_after:
                    return response
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _body(self, request: web.Request) -> Any:
        if self.trouble:
            answer = self.trouble.pop(0)(request)
            if asyncio.iscoroutine(answer):
                answer = await answer
            if answer is not None:
                return answer
        body = await request.json()
        self.asked.append(body)
        stop = body.get("stop", [])
        if self.most_stops is not None and len(stop) > self.most_stops:
            place = {"type": "string_type", "loc": ("body", "stop", "str"), "msg": "Input should be a valid string"}
            error = {
                "message": f"2 validation errors:\n  {place | {'input': stop}}",
                "type": "Bad Request",
                "code": 400,
            }
            return web.json_response({"error": error | {"param": "body.stop"}}, status=400)
        return body

    def _say(self, body: dict[str, Any]) -> tuple[str, str]:
        text = self.script(body)
        if isinstance(text, tuple):
            return text
        ends = [text.find(stop) + len(stop) for stop in body.get("stop", []) if stop in text]
        return (text[: min(ends)], "stop") if ends else (text, "stop")

    @asynccontextmanager
    async def running(self, port: int = 0) -> AsyncIterator[str]:
        """Its address. With `port`, a server that was stopped can come back where it was."""
        app = web.Application(client_max_size=1 << 26)
        app.router.add_get("/v1/models", self.models)
        app.router.add_post("/v1/completions", self.completions)
        app.router.add_post("/generate", self.generate)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_routes(self.routes())
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port, reuse_address=True)
        await site.start()
        self._site = site
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        finally:
            await runner.cleanup()

    async def stop(self) -> None:
        """Refuse connections from now on and drop those that are there, as a server that is killed does."""
        runner = self._site._runner
        await self._site.stop()
        for connection in runner.server.connections if runner.server is not None else ():
            if connection.transport is not None:
                connection.transport.abort()


def status(code: int, body: str = '{"error": {"message": "busy"}}', **headers: str) -> Handler:
    return lambda request: web.Response(status=code, text=body, headers=headers)


def drop(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


async def hang(request: web.Request) -> web.Response:
    await asyncio.sleep(30)
    return web.Response()


def truncated(request: web.Request) -> web.Response:
    return web.Response(text='{"choices": [{"text": "<ans', content_type="application/json")


def wrong_type(request: web.Request) -> web.Response:
    return web.Response(text="<html>502 upstream</html>", content_type="text/html")


async def slow_bytes(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(1000):
        await response.write(b" ")
        await asyncio.sleep(0.05)
    return response


async def dies_in_the_middle(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"choices"')
    assert request.transport is not None
    request.transport.close()
    return response


@contextmanager
def in_thread(server: FakeServer) -> Iterator[str]:
    """The server beside the test, so that a command can be called in this process."""
    loop, ready, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    found: list[str] = []

    async def serve() -> None:
        async with server.running() as url:
            found.append(url)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield found[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()
