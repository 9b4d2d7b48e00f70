"""verl's token server as a model: what is asked of it, and what its answers mean."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from verl.workers.rollout.replica import TokenOutput

from coa.errors import ModelError
from coa.models.base import Context, Finish, Generation, Sampling
from coa.models.tokenizer import TextTokenizer, load_tokenizer
from coa.rl.engines.verl.loop import TokenServer
from support.newborn import CALLS, REPLIES, newborn

STOP = "</answer>"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    return load_tokenizer(newborn(tmp_path_factory.mktemp("newborn"), seed=1))


class Manager:
    """Replaces verl's client of its servers: it returns the given answer and keeps the requests."""

    def __init__(self, ids: Sequence[int], logprobs: Sequence[float] | None) -> None:
        self._said = TokenOutput(
            token_ids=list(ids), log_probs=None if logprobs is None else list(logprobs), stop_reason="completed",
            extra_fields={"min_global_steps": 3, "max_global_steps": 4},
        )  # fmt: skip
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> TokenOutput:
        self.asked.append((request_id, {"prompt_ids": prompt_ids, **sampling_params}))
        return self._said


def said(tokenizer: TextTokenizer, manager: Manager, *, seeded: bool = True) -> tuple[Generation, TokenServer]:
    server = TokenServer(manager, tokenizer, {"temperature": 1.0, "logprobs": True}, seeded=seeded)
    sampling = Sampling(1.0, 1.0, 0, 5, seed=9)
    return asyncio.run(server.generate(Context((), "", [2, 3]), stop=(STOP,), sampling=sampling)), server


def test_why_a_turn_ended_is_read_from_its_tokens(tokenizer: TextTokenizer) -> None:
    """verl says "completed" for all three."""
    (call,), (reply,) = tokenizer.encode([CALLS[0], REPLIES[0]])
    end = tokenizer.end_of_turn
    assert end is not None
    cases: list[tuple[list[int], Finish, tuple[int, ...], tuple[int, float] | None]] = [
        ([call, reply], Finish.STOP, (call, reply), None),
        ([call], Finish.LENGTH, (call,), None),
        ([call, end], Finish.END, (call,), (end, -0.2)),
        ([end], Finish.END, (), (end, -0.1)),
    ]
    for ids, finish, kept, ended in cases:
        found, server = said(tokenizer, Manager(ids, [-0.1, -0.2][: len(ids)]))
        assert found.finish is finish and found.tokens is not None
        assert (found.tokens.ids, found.ended) == (kept, ended)
        assert found.text == tokenizer.decode(list(kept)) and found.usage.completion_tokens == len(ids)
        assert server.versions == [3, 4]


def test_the_server_is_asked_to_leave_the_stop_string_in_the_text(tokenizer: TextTokenizer) -> None:
    """Otherwise the ids would lack what the model wrote, and a stop could not be told from a text that is too long."""
    manager = Manager([7], [-0.5])
    said(tokenizer, manager)
    (_, asked), server = manager.asked[0], said(tokenizer, manager, seeded=False)[1]
    assert asked == {
        "prompt_ids": [2, 3], "temperature": 1.0, "logprobs": True, "max_tokens": 5, "stop": [STOP],
        "include_stop_str_in_output": True, "seed": 9,
    }  # fmt: skip
    assert "seed" not in manager.asked[1][1], "vLLM samples more slowly with seeds"
    asyncio.run(server.generate(Context((), "", [2]), stop=(), sampling=Sampling(1.0, 1.0, 0, 5)))
    first, second, third = (request for request, _ in manager.asked)
    assert first != second == third, "all calls of an attempt go to the server that has their prefix"


@pytest.mark.parametrize("logprobs", [None, [-0.1]])
def test_tokens_without_their_logprobs_are_an_error_of_this_attempt(
    tokenizer: TextTokenizer, logprobs: list[float] | None
) -> None:
    """One row without them costs verl those of the whole batch."""
    with pytest.raises(ModelError, match="2 tokens and"):
        said(tokenizer, Manager([7, 8], logprobs))


def test_whatever_the_server_raises_is_an_error_of_this_attempt(tokenizer: TextTokenizer) -> None:
    class Broken(Manager):
        async def generate(self, *_: Any, **__: Any) -> TokenOutput:
            raise OSError("gone")

    with pytest.raises(ModelError, match="the rollout server failed: OSError: gone"):
        said(tokenizer, Broken([], []))
