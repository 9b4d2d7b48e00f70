"""A thousand streams at once through the gateway, each whole for its client and in the recording."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from support.upstreams import calls, recording, sse

STREAMS = 1000


@pytest.mark.slow
def test_a_thousand_streams_are_held_at_once(tmp_path: Path) -> None:
    arrived = 0
    all_here: asyncio.Event | None = None

    async def reply(request: web.Request, body: bytes) -> web.StreamResponse:
        nonlocal arrived, all_here
        all_here = all_here or asyncio.Event()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(sse({"choices": [{"index": 0, "delta": {"content": "first "}}]}, done=False)[0])
        arrived += 1
        if arrived == STREAMS:
            all_here.set()
        await asyncio.wait_for(all_here.wait(), 120)  # no stream ends before all of them are open
        await response.write(b"".join(sse({"choices": [{"index": 0, "delta": {"content": body.decode()}}]})))
        return response

    async def ask(session: aiohttp.ClientSession, url: str, number: int) -> bytes:
        async with session.post(url, data=f'"{number}"') as response:
            return await response.read()

    async def ask_all(url: str) -> list[bytes]:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            return await asyncio.gather(*(ask(session, url, number) for number in range(STREAMS)))

    with recording(reply, tmp_path) as (gateway, _):
        got = asyncio.run(ask_all(f"{gateway.base_url()}/chat/completions"))
        assert all(content.endswith(b"data: [DONE]\n\n") for content in got)
    found = calls(tmp_path)
    assert len(found) == STREAMS and all(response["complete"] for _, response in found)
    for request, response in found:
        assert response["body"]["choices"][0]["message"]["content"] == f'first "{request["body"]}"'
