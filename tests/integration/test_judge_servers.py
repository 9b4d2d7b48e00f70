"""The judge behind servers: those that hold it to the schema, and those that refuse to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coa.choices import Mode
from coa.http import Patience
from coa.models.connect import connect
from coa.scoring import JudgeScorer, Verdict
from coa.trajectory import Task
from support.servers import FakeServer, status
from support.tokenizers import tokenizer

TASK = Task(id="t", question="Capital of France?", answer="Paris")
RIGHT = '{"reason": "same city", "verdict": "correct"}'


async def _judge(server: FakeServer, mode: Mode, times: int = 1) -> list[Verdict]:
    async with server.running() as url:
        model = await connect(
            url, mode=mode, tokenizer="smollm2" if mode is Mode.TOKENS else None, patience=Patience(attempts=1)
        )
        scorer = JudgeScorer(model)
        try:
            return [await scorer.score(TASK, f"Paris {number}") for number in range(times)]
        finally:
            await scorer.close()
            await model.close()


def _schema(body: dict[str, Any], owner: str, mode: Mode) -> object:
    if mode is Mode.TOKENS and owner == "llamacpp":
        return body["json_schema"]
    return body["response_format"]["json_schema"]["schema"]


@pytest.mark.parametrize(
    ("owner", "mode"),
    [("vllm", Mode.TOKENS), ("llamacpp", Mode.TOKENS), ("vllm", Mode.CHAT), ("openai", Mode.CHAT)],
)
def test_servers_are_asked_for_json_of_the_schema_each_in_its_own_way(owner: str, mode: Mode) -> None:
    server = FakeServer(lambda body: RIGHT, owner=owner, tokenizer=tokenizer("smollm2"))
    (verdict,) = asyncio.run(_judge(server, mode))
    assert verdict.value == 1.0
    assert verdict.detail["calls"] == 1 and verdict.detail["prompt_tokens"] > 0  # type: ignore[operator]
    schema = _schema(server.asked[0], owner, mode)
    assert isinstance(schema, dict) and schema["required"] == ["reason", "verdict"]


def test_a_server_that_refuses_the_schema_is_asked_without_it_from_then_on() -> None:
    server = FakeServer(lambda body: RIGHT, owner="openai")
    server.trouble = [status(400, '{"error": {"message": "response_format is not supported"}}')]
    verdicts = asyncio.run(_judge(server, Mode.CHAT, times=2))
    assert [verdict.value for verdict in verdicts] == [1.0, 1.0]
    assert len(server.asked) == 2 and not any("response_format" in body for body in server.asked)


def test_a_server_that_is_down_leaves_the_answer_unscored() -> None:
    server = FakeServer(lambda body: RIGHT, owner="openai")
    server.trouble = [status(503)] * 9
    (verdict,) = asyncio.run(_judge(server, Mode.CHAT))
    assert verdict.value is None and verdict.broken and "503" in verdict.reason
