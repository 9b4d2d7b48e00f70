"""The local engine: the same tokens as transformers, the past never computed again, memory bounded, nothing lost."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from coa.errors import ModelError
from coa.models.base import Context, Finish, Generation, Sampling
from coa.models.local import LocalModel
from coa.models.local.sampling import choose
from coa.models.local.slots import EngineStep, Slots
from coa.trajectory import Limits, Task, Trajectory, ledger_of, load_profile
from support.runs import run_many
from support.tiny import tiny_model
from support.tools import searching

GREEDY = Sampling(temperature=0, max_tokens=24)


def prompts(count: int, *, shared: int = 0, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    start = [rng.randrange(10, 300) for _ in range(shared)]
    return [start + [rng.randrange(10, 300) for _ in range(rng.randrange(3, 60))] for _ in range(count)]


def reference(model: PreTrainedModel, ids: Sequence[int], tokens: int = 24) -> list[int]:
    given = torch.tensor([list(ids)])
    out = model.generate(given, max_new_tokens=tokens, do_sample=False, pad_token_id=0)  # type: ignore[operator]
    made: list[int] = out[0].tolist()[len(ids) :]
    return made


def together(
    model: PreTrainedModel, contexts: Sequence[Sequence[int]], sampling: Sampling = GREEDY, **options: Any
) -> list[Generation]:
    tok = tiny_model()[1]

    async def go() -> list[Generation]:
        local = LocalModel(model, tok, name="tiny", **options)
        try:
            calls = [local.generate(Context([], "", list(ids)), stop=[], sampling=sampling) for ids in contexts]
            return await asyncio.wait_for(asyncio.gather(*calls), 60)
        finally:
            await local.close()

    return asyncio.run(go())


@pytest.mark.parametrize("window", [None, 16])
@pytest.mark.parametrize("max_rows", [1, 3, 16])
def test_greedy_output_equals_transformers_token_for_token(max_rows: int, window: int | None) -> None:
    model, tok = tiny_model(sliding_window=window)
    plain = copy.deepcopy(model)
    contexts = prompts(12)
    made = together(model, contexts, max_rows=max_rows)
    for ids, generation in zip(contexts, made, strict=True):
        expected = reference(plain, ids)
        ended = tok.end_of_turn in expected
        assert generation.tokens is not None
        assert list(generation.tokens.ids) == [token for token in expected if token != tok.end_of_turn]
        assert generation.finish is (Finish.END if ended else Finish.LENGTH)


def test_rows_of_like_length_share_attention_and_say_the_same() -> None:
    model, tok = tiny_model(7)
    plain = copy.deepcopy(model)
    rng = random.Random(2)
    contexts = [[rng.randrange(10, 300) for _ in range(length)] for length in (600, 20, 300, 250, 1100, 30, 290, 520)]
    for ids, made in zip(contexts, together(model, contexts, max_rows=8), strict=True):
        assert made.tokens is not None
        assert list(made.tokens.ids) == [token for token in reference(plain, ids) if token != tok.end_of_turn]


def test_no_row_reads_more_than_twice_its_keys() -> None:
    lengths = [10, 200, 256, 257, 500, 600, 1024]
    slots = Slots(tiny_model()[0], count=len(lengths), length=1024)
    step = EngineStep(slots, torch.tensor(lengths) - 1, [])
    assert step.batches == [(0, 3, 256), (3, 5, 500), (5, 7, 1024)]


def test_sampled_logprobs_equal_a_full_forward_pass() -> None:
    model, _ = tiny_model(1)
    plain = copy.deepcopy(model)
    contexts = prompts(8, seed=3)
    for ids, made in zip(contexts, together(model, contexts, Sampling(max_tokens=30, seed=5)), strict=True):
        assert made.tokens is not None and made.tokens.logprobs is not None
        whole = [*ids, *made.tokens.ids]
        with torch.no_grad():
            logits = plain(torch.tensor([whole])).logits[0].log_softmax(-1)
        again = [float(logits[at - 1, whole[at]]) for at in range(len(ids), len(whole))]
        assert made.tokens.logprobs == pytest.approx(again, abs=1e-4)


def test_a_row_comes_back_with_its_observation_and_nothing_is_computed_twice() -> None:
    model, tok = tiny_model(2)
    plain = copy.deepcopy(model)

    async def go() -> None:
        local = LocalModel(model, tok, name="tiny")
        ids = prompts(1)[0]
        for _ in range(4):
            made = await local.generate(Context([], "", ids), stop=[], sampling=GREEDY)
            assert made.tokens is not None
            assert list(made.tokens.ids) == [i for i in reference(plain, ids) if i != tok.end_of_turn]
            seen, ids = len(ids), [*ids, *made.tokens.ids, 40, 41, 42, 43, 44]
            assert made.usage.cached_tokens >= seen - 6 or seen < 70
        await local.close()

    asyncio.run(go())


def test_the_prompt_of_a_group_is_computed_once() -> None:
    model, _ = tiny_model(3)
    prompt = prompts(1, shared=200)[0]
    made = together(model, [prompt] * 8, Sampling(max_tokens=5, seed=1), max_rows=8)
    computed = sorted(len(prompt) - generation.usage.cached_tokens for generation in made)
    assert computed[:7] == [1] * 7 and computed[7] == len(prompt)


def test_more_requests_than_rows_all_finish() -> None:
    model, _ = tiny_model(4)
    plain = copy.deepcopy(model)
    contexts = prompts(40, seed=9)
    made = together(model, contexts, Sampling(temperature=0, max_tokens=7), max_rows=4)
    for ids, generation in list(zip(contexts, made, strict=True))[::7]:
        assert generation.tokens is not None
        assert list(generation.tokens.ids) == reference(plain, ids, 7)[: len(generation.tokens.ids)]


def test_memory_is_bounded_and_what_does_not_fit_beside_others_waits() -> None:
    model, _ = tiny_model(5)
    plain = copy.deepcopy(model)
    per_token = 2 * 3 * 2 * 8 * 4  # two buffers, three layers, two heads of eight floats
    contexts = [ids * 12 for ids in prompts(6, seed=2)]
    made = together(model, contexts, Sampling(temperature=0, max_tokens=40), max_rows=6, kv_bytes=1600 * per_token)
    for ids, generation in zip(contexts, made, strict=True):
        assert generation.tokens is not None
        expected = [token for token in reference(plain, ids, 40)]
        assert list(generation.tokens.ids) == expected[: len(generation.tokens.ids)]


def test_what_can_never_fit_is_refused() -> None:
    model, _ = tiny_model()
    with pytest.raises(ModelError, match="do not fit"):
        together(model, [[5] * 500], kv_bytes=300 * 384)
    with pytest.raises(ModelError, match="do not fit"):
        together(model, [[]])


def test_a_stop_string_ends_a_row_in_mid_batch() -> None:
    model, tok = tiny_model(6)
    free = together(copy.deepcopy(model), [prompts(1)[0]])[0]
    stop = free.text[4:7]

    async def go() -> Generation:
        local = LocalModel(model, tok, name="tiny")
        others = [local.generate(Context([], "", ids), stop=[], sampling=GREEDY) for ids in prompts(5, seed=8)]
        tasks = [asyncio.ensure_future(call) for call in others]
        stopped = await local.generate(Context([], "", prompts(1)[0]), stop=[stop], sampling=GREEDY)
        await asyncio.gather(*tasks)
        await local.close()
        return stopped

    stopped = asyncio.run(go())
    assert stopped.finish is Finish.STOP and stop in stopped.text
    assert free.text.startswith(stopped.text) and len(stopped.text) < len(free.text)


def test_a_cancelled_call_leaves_the_others_alone() -> None:
    model, tok = tiny_model(7)
    plain = copy.deepcopy(model)

    async def go() -> None:
        local = LocalModel(model, tok, name="tiny", max_rows=2)
        long = asyncio.ensure_future(
            local.generate(Context([], "", prompts(1)[0]), stop=[], sampling=Sampling(max_tokens=100_000 // 64))
        )
        await asyncio.sleep(0.05)
        long.cancel()
        ids = prompts(2, seed=4)[1]
        made = await asyncio.wait_for(local.generate(Context([], "", ids), stop=[], sampling=GREEDY), 30)
        assert made.tokens is not None
        assert list(made.tokens.ids) == [i for i in reference(plain, ids) if i != tok.end_of_turn]
        await local.close()

    asyncio.run(go())


def test_a_closed_engine_says_so() -> None:
    model, tok = tiny_model()

    async def go() -> None:
        local = LocalModel(model, tok, name="tiny")
        await local.close()
        with pytest.raises(ModelError, match="closed"):
            await local.generate(Context([], "", [1, 2]), stop=[], sampling=GREEDY)

    asyncio.run(go())


def test_text_is_heard_as_it_comes() -> None:
    model, tok = tiny_model(8)
    heard: list[str] = []

    async def go() -> Generation:
        local = LocalModel(model, tok, name="tiny")
        made = await local.generate(Context([], "", prompts(1)[0]), stop=[], sampling=GREEDY, on_text=heard.append)
        await asyncio.sleep(0)
        await local.close()
        return made

    made = asyncio.run(go())
    assert len(heard) > 5 and heard[-1] == made.text and all(made.text.startswith(part[:1]) for part in heard)


def test_the_same_seed_gives_the_same_tokens() -> None:
    contexts = prompts(3)
    once = together(tiny_model(9)[0], contexts, Sampling(max_tokens=12, seed=3))
    again = together(tiny_model(9)[0], contexts, Sampling(max_tokens=12, seed=3))
    other = together(tiny_model(9)[0], contexts, Sampling(max_tokens=12, seed=4))
    assert [made.tokens for made in once] == [made.tokens for made in again] != [made.tokens for made in other]


def test_choosing_follows_the_distribution() -> None:
    # probabilities 0.5, 0.3, 0.2: a draw of 0.49 is the first, 0.51 the second, 0.81 the third
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log()
    plain = Sampling(temperature=1.0, top_p=1.0, top_k=0)
    assert [choose(logits, [plain], [draw])[0][0] for draw in (0.0, 0.49, 0.51, 0.79, 0.81)] == [0, 0, 1, 1, 2]
    # top_k=2 leaves 0.625 and 0.375
    two = Sampling(temperature=1.0, top_p=1.0, top_k=2)
    assert [choose(logits, [two], [draw])[0][0] for draw in (0.62, 0.63, 0.99)] == [0, 1, 1]
    # top_p=0.4: the first alone reaches it
    narrow = Sampling(temperature=1.0, top_p=0.4, top_k=0)
    assert choose(logits, [narrow], [0.99])[0] == [0]
    # temperature 0.5 squares the odds: 25 : 9 : 4 of 38
    cold = Sampling(temperature=0.5, top_p=1.0, top_k=0)
    assert [choose(logits, [cold], [draw])[0][0] for draw in (0.65, 0.67, 0.89, 0.90)] == [0, 1, 1, 2]
    tokens, logprobs, _ = choose(logits, [Sampling(temperature=0)], [0.9])
    assert tokens == [0] and logprobs == pytest.approx([torch.tensor(0.5).log().item()])


def test_many_runs_with_tools_share_the_engine() -> None:
    model, tok = tiny_model(10)
    nano = load_profile("nano")

    async def go() -> list[Trajectory]:
        local = LocalModel(model, tok, name="tiny", max_rows=8)
        limits = Limits(steps=6, model_tokens=120, context_tokens=1500, seconds=60, observation_characters=200)
        tasks = [Task(id=str(n), question=f"Who is {n}?") for n in range(24)]
        runs = run_many(tasks, local, {"web_search": searching()}, nano, concurrency=12, limits=limits)
        done = [trajectory async for trajectory in runs]
        await local.close()
        return done

    done = asyncio.run(go())
    assert len({t.task.id for t in done}) == 24 and not [t.failure for t in done if t.failure]
    for trajectory in done[:6]:
        sample = ledger_of(trajectory, tok, nano).to_sample()
        assert sample.logprobs is not None
        with torch.no_grad():
            model.set_attn_implementation("eager")
            logits = model(torch.tensor([sample.ids])).logits[0].log_softmax(-1)
        for at, trained in enumerate(sample.mask):
            if trained:
                assert sample.logprobs[at] == pytest.approx(float(logits[at - 1, sample.ids[at]]), abs=1e-4)
