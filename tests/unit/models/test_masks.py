"""Which tokens a grammar lets through, for every kind of tokenizer, and what that does to the logprobs."""

from __future__ import annotations

import asyncio
import math

import pytest
import torch

from coa.models.base import Sampling
from coa.models.local.engine import LENGTH_STEP, Engine
from coa.models.local.masks import Masks
from coa.models.local.request import Decoded, Request
from coa.models.local.sampling import choose
from coa.trajectory import load_profile
from coa.trajectory.grammar import Move, language
from coa.trajectory.grammar.language import FAR
from support.tiny import tiny_model
from support.tokenizers import KINDS, tokenizer

TEXT = "<think>so it goes: naïve 思考 🧪</think>\n<code>\n```py\nprint('a\\tb')\n```\n</code> <answer>  Ada</answer>"


@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_of_the_ids_are_the_bytes_of_the_text(kind: str) -> None:
    tok = tokenizer(kind)
    spellings = tok.spellings()
    assert spellings is not None
    spelled = [spellings[token] for token in tok.encode([TEXT])[0]]
    assert b"".join(piece or b"?" for piece in spelled) == TEXT.encode()
    assert tok.end_of_turn is not None and spellings[tok.end_of_turn] is None


def test_a_token_may_come_if_the_step_can_still_end_in_time() -> None:
    tok = tokenizer("byte_bpe")
    spellings = tok.spellings()
    assert spellings is not None
    lang = language(load_profile("nano"))
    made = lang.grammar([Move("think"), Move("answer")], ends_line=True)
    assert made is not None
    masks = Masks(spellings, len(spellings) + 5, torch.device("cpu"))
    for text in ("", "<think>", "<think>so </thi", "<answer>Ada</answe"):
        state = lang.walk(made.start, text.encode())
        reached = [lang.walk(state, spelled) if spelled else 0 for spelled in spellings]
        needs = [lang.distance[after] + 1 for after in reached if lang.distance[after] < FAR]
        for token, spelled in enumerate(spellings):
            if spelled:
                assert masks.after(lang, state, token) == reached[token]
        row = torch.ones(len(spellings) + 5, dtype=torch.bool)
        assert not masks.allow(lang, state, min(needs) - 1, row) and row.all()
        for left in (min(needs), min(needs) + 1, max(needs) - 1, max(needs), FAR - 1):
            if left >= min(needs):
                assert masks.allow(lang, state, left, row)
                assert row.tolist() == [lang.distance[after] + 1 <= left for after in reached] + [False] * 5


def test_masked_choices_keep_the_logprob_of_the_whole_distribution() -> None:
    # probabilities 0.5, 0.3, 0.2, of which the first is not allowed: the second has 0.6 of what is left
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log()
    plain = Sampling(temperature=1.0, top_p=1.0, top_k=0)
    allowed = torch.tensor([[False, True, True]])
    for draw, token, probability in ((0.0, 1, 0.3), (0.59, 1, 0.3), (0.61, 2, 0.2), (1 - 1e-12, 2, 0.2)):
        tokens, logprobs, kept = choose(logits, [plain], [draw], allowed)
        assert tokens == [token] and logprobs == pytest.approx([math.log(probability)])
        assert kept == pytest.approx([math.log(0.5)])


def test_a_draw_that_rounds_to_one_does_not_reach_a_forbidden_token() -> None:
    logits = torch.zeros(1, 50)
    allowed = torch.zeros(1, 50, dtype=torch.bool)
    allowed[0, :3] = True
    tokens, _, _ = choose(logits, [Sampling(top_p=1.0, top_k=10)], [1 - 1e-12], allowed)
    assert tokens[0] < 3


def test_an_engine_that_idles_gives_the_memory_of_long_rows_back() -> None:
    model, tok = tiny_model()

    async def go() -> tuple[int, int]:
        engine = Engine(model, tok, max_rows=2, idle_s=0.01)
        loop = asyncio.get_running_loop()

        async def ask(length: int) -> None:
            done: asyncio.Future[Decoded | Exception] = loop.create_future()

            def settle(result: Decoded | Exception) -> None:
                loop.call_soon_threadsafe(done.set_result, result)

            request = Request([5] * length, (), Sampling(max_tokens=2), settle)
            engine.submit(request)
            assert isinstance(await asyncio.wait_for(done, 60), Decoded)

        await ask(3 * LENGTH_STEP)
        grown = engine._slots.length
        for _ in range(2000):
            if engine._slots.length == LENGTH_STEP:
                break
            await asyncio.sleep(0.01)
        shrunk = engine._slots.length
        await ask(2 * LENGTH_STEP)  # and goes on as before
        engine.close()
        return grown, shrunk

    grown, shrunk = asyncio.run(go())
    assert grown > 3 * LENGTH_STEP - 1 and shrunk == LENGTH_STEP
