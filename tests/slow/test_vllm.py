"""Token mode against a real vLLM: what it writes is what the local engine writes with the same weights."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

import coa
from coa.choices import Constrain, Mode
from coa.models.base import Context, Finish, Generation, Home, Model, Sampling
from coa.models.connect import connect
from coa.models.local import load_local
from coa.models.local.model import load_weights
from coa.trajectory import Message
from support.tokenizers import tokenizer
from support.vllm import model_folder, vllm_server

pytestmark = pytest.mark.slow

MANY = (".", "\n\n", "</answer>", "<observation>", "</code>", " the ", "!", "?")
STOPS: Sequence[Sequence[str]] = ((), (".",), ("\n\n", "</answer>"), MANY)
"""The prompts take turns: without stop strings, with one, with two, and with more than vLLM takes by default."""
SUBJECTS = ("a lighthouse", "the tides", "bread", "a chess opening", "glaciers", "café menus", "雪", "the 🦊 fox")
ASKED = ("Write one sentence about {}.", "Say yes or no: is {} older than writing?", "List three facts about {}.",
         "What is {} in one word?", "Explain {} to a child.")  # fmt: skip
TASKS = 120
TIE = 1e-4
"""Kernels add in another order. Where the two likeliest tokens are closer than this, either may win."""


def prompts() -> list[list[Message]]:
    texts = [ask.format(subject) for ask in ASKED for subject in SUBJECTS]
    texts += [f"What is {n * 37 % 91} plus {n * 53 % 89}?" for n in range(60)]
    texts += [f"Repeat the word harbour {n + 1} times and stop." for n in range(50)]
    texts += [f"{'The council met and spoke of the light. ' * n}\nWhat was spoken of?" for n in range(50)]
    assert len(set(texts)) == len(texts) == 200
    return [[Message(role="user", content=text)] for text in texts]


async def written(model: Model, asked: Sequence[tuple[list[int], Sequence[str]]]) -> list[Generation]:
    async def one(ids: list[int], stop: Sequence[str]) -> Generation:
        greedy = Sampling(temperature=0.0, top_p=1.0, top_k=0, max_tokens=40)
        return await model.generate(Context([], "", ids, home=Home()), stop=stop, sampling=greedy)

    try:
        return await asyncio.gather(*(one(ids, stop) for ids, stop in asked))
    finally:
        await model.close()


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder("smollm2", tmp_path_factory.mktemp("vllm") / "smollm2")


@pytest.mark.parametrize("most_stops", [None, 64], ids=["as it is", "with VLLM_MAX_STOP_STRINGS=64"])
def test_ids_logprobs_and_reasons_to_stop_are_those_of_the_local_engine(
    most_stops: int | None, smollm2: Path, tmp_path: Path
) -> None:
    tokens = tokenizer("smollm2")
    asked = [(tokens.encode_prompt(one)[1], STOPS[index % len(STOPS)]) for index, one in enumerate(prompts())]

    async def serve(url: str) -> list[Generation]:
        return await written(await connect(url, mode=Mode.TOKENS), asked)

    with vllm_server(smollm2, tmp_path / "log", most_stops=most_stops) as url:
        served = asyncio.run(serve(url))
    local = asyncio.run(written(load_local(smollm2), asked))
    assert {one.finish for one in local} == set(Finish), "the prompts do not try every reason"
    weights = load_weights(smollm2)[0]
    ties = 0
    for (ids, stop), theirs, ours in zip(asked, served, local, strict=True):
        assert theirs.tokens is not None and ours.tokens is not None
        same = _common(theirs.tokens.ids, ours.tokens.ids)
        close = [theirs.tokens.logprobs or (), ours.tokens.logprobs or ()]
        assert close[0][:same] == pytest.approx(close[1][:same], abs=1e-3)
        if (theirs.tokens.ids, theirs.finish) == (ours.tokens.ids, ours.finish):
            assert theirs.text == ours.text and theirs.usage.prompt_tokens == ours.usage.prompt_tokens
            assert (theirs.ended is None) is (ours.ended is None) is (ours.finish is not Finish.END)
            assert theirs.ended is None or theirs.ended == pytest.approx(ours.ended, abs=1e-3)
        else:
            gap = _gap(weights, [*ids, *ours.tokens.ids[:same]])
            assert gap < TIE, (stop, theirs.text, ours.text, gap)
            ties += 1
    assert ties <= 4, "more ties than chance explains"


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Number of ids that both begin with."""
    pairs = zip(one, other, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


@torch.no_grad()
def _gap(weights: PreTrainedModel, ids: Sequence[int]) -> float:
    """How much likelier the likeliest next token is than the second, in logprobs."""
    best = torch.log_softmax(weights(torch.tensor([ids])).logits[0, -1].double(), -1).topk(2).values
    return float(best[0] - best[1])


def test_the_atlas_is_as_easy_through_vllm_as_in_this_process(tmp_path: Path) -> None:
    nano = model_folder("nano", tmp_path / "nano")

    def solved(model: str, temperature: float, **options: Any) -> dict[tuple[str, int], bool]:
        # A folder that coa did not train is constrained by default, a served model is not.
        run = coa.RunConfig(model=model, temperature=temperature, constrain=Constrain.NEVER, **options)
        out = tmp_path / f"{temperature}-{options.get('mode', 'local')}"
        coa.evaluate(coa.EvalConfig(benchmarks=["atlas"], run=run, limit=TASKS), out=out)
        return {one.key: (one.scores["exact"].value or 0.0) > 0.5 for one in coa.read(out)}

    with vllm_server(nano, tmp_path / "log") as url:
        greedy, sampled = solved(url, 0.0, mode=Mode.TOKENS), solved(url, 1.0, mode=Mode.TOKENS)
    same, other = solved(str(nano), 0.0), solved(str(nano), 1.0)
    assert len(same) == len(other) == len(greedy) == len(sampled) == TASKS
    differing = [key for key in same if same[key] != greedy[key]]
    assert len(differing) <= TASKS // 20, differing  # a tie in a hundred tokens may lead elsewhere
    # Two draws of the same distribution: the difference of two proportions, three standard errors of it.
    mean = (sum(sampled.values()) + sum(other.values())) / (2 * TASKS)
    error = math.sqrt(2 * mean * (1 - mean) / TASKS)
    assert abs(sum(sampled.values()) - sum(other.values())) / TASKS <= 3 * error
    assert sum(same.values()) > TASKS / 3, "the model does not solve enough to show anything"
