"""Local engine: 32 three-turn runs with tools, compared with `transformers.generate`, turn by turn on padded batches.

Then decoding alone on one core, at 1, 4, 16 and 64 rows, compared with what the core can do at best: a pass cannot
take less time than reading all weights, nor less than its multiplications. Both limits are measured in the same run. In
bf16 as well where the CPU has units for it. `python -m benchmarks.engine decode` measures only this part.
"""

from __future__ import annotations

import asyncio
import gc
import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import torch
from transformers import PreTrainedModel

from benchmarks.limits import GEMM, MEMORY, measure_limits
from benchmarks.results import SHARE, Figure, save
from coa.models.base import Context, Sampling
from coa.models.local import LocalModel
from coa.models.local.model import load_weights
from coa.models.precision import cpu_has_bf16
from coa.models.tokenizer import TextTokenizer
from coa.trajectory import Message, load_profile
from coa.trajectory.grammar import Grammar, Move, language

ROWS, TURNS, NEW = 32, 3, 24
ROUNDS = 3
OBSERVATION = (
    "\n<observation>Brannock Head: the north light was first lit in 1871, the south light in 1885.</observation>\n"
)
SAMPLING = Sampling(temperature=1.0, top_p=0.9, top_k=20, max_tokens=NEW)


def main() -> None:
    model, tokenizer = load_weights("smollm2")
    if "decode" in sys.argv[1:]:
        question = [Message(role="user", content="Tell me about the places on the coast.")]
        figures = list[Figure]()
        for some in _decoding(model, tokenizer, tokenizer.encode_prompt(question)[1]):
            figures += some
            save("engine", "python -m benchmarks.engine decode", figures)
        return
    prompts = [
        tokenizer.encode_prompt([Message(role="user", content=f"Tell me about place number {row} on the coast.")])[1]
        for row in range(ROWS)
    ]
    observed = tokenizer.encode([OBSERVATION])[0]
    made = ROWS * TURNS * NEW
    padded = with_tools = plain = held = float("inf")
    lang = language(load_profile("nano"))
    grammar = lang.grammar([Move("think"), Move("plan"), Move("code")], ends_line=True)
    for _ in range(3):  # in turns, the best of each: a shared machine is not equally busy all the time
        model.set_attn_implementation("sdpa")
        padded = min(padded, _padded(model, prompts, observed))
        local = LocalModel(model, tokenizer, name="smollm2", max_rows=ROWS)
        with_tools = min(with_tools, asyncio.run(_runs(local, prompts, observed, turns=TURNS, new=NEW)))
        plain = min(plain, asyncio.run(_runs(local, prompts, observed, turns=1, new=TURNS * NEW)))
        made_held, seconds = asyncio.run(_held(local, prompts, grammar))
        held = min(held, seconds / made_held)
        asyncio.run(local.close())
    print(f"{ROWS} runs of {TURNS} turns of {NEW} tokens, observations of {len(observed)} tokens, SmolLM2-135M, fp32")
    print(f"  transformers.generate, padded, turn by turn  {made / padded:7.1f} tokens/s   1.00")
    print(
        f"  engine, with tools                           {made / with_tools:7.1f} tokens/s   {padded / with_tools:.2f}"
    )
    print(f"  engine, no tools at all                      {made / plain:7.1f} tokens/s")
    print(
        f"  engine, no tools, held to a grammar          {1 / held:7.1f} tokens/s   {plain / made / held:.2f} of that"
    )
    print(f"  with tools / without: {plain / with_tools:.2f} (goal: at least 0.8);  against generate: at least 2")
    figures = [
        Figure("32 runs with tools: tokens/s", padded / with_tools, beside="transformers.generate", goal="at least 2"),
        Figure("32 runs: tokens/s with tools", plain / with_tools, beside="without tools", goal="at least 0.8"),
    ]
    save("engine", "python -m benchmarks.engine", [*figures, *chain(*_decoding(model, tokenizer, prompts[0]))])


def _decoding(model: PreTrainedModel, tokenizer: TextTokenizer, prompt: Sequence[int]) -> Iterator[list[Figure]]:
    """The limits, then the figures of each number of rows."""
    torch.set_num_threads(1)
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    layers = [part for part in model.get_decoder().modules() if isinstance(part, torch.nn.Linear)]  # type: ignore[no-untyped-call]
    weights = sum(part.weight.numel() for part in [*layers, head])
    types = {"fp32": torch.float32} | ({"bf16": torch.bfloat16} if cpu_has_bf16() else {})
    limits = {name: measure_limits(dtype, clock=time.process_time) for name, dtype in types.items()}
    figures = []
    for name, limit in limits.items():
        print(f"one core, {name}: {limit.flops / 1e9:.0f} GFLOP/s, {limit.bytes / 1e9:.1f} GB/s at best")
        figures += [
            Figure(f"one core, {name}: {GEMM}", limit.flops / 1e9, "GFLOP/s"),
            Figure(f"one core, {name}: {MEMORY}", limit.bytes / 1e9, "GB/s"),
        ]
    for rows in (64, 16, 4, 1):
        yield figures
        gc.collect()  # engines refer to themselves, and their contexts take gigabytes
        spent, figures = _pass_seconds(model, tokenizer, types, prompt, rows), []
        for name, seconds in spent.items():
            least, limited_by = limits[name].of_pass(weights, rows, types[name].itemsize)
            share = least / seconds
            print(f"  {rows:>2} rows, {name}  {rows / seconds:7.1f} tokens per CPU second  {share:.2f} of {limited_by}")
            figures += [
                Figure(f"decode, {name}, {rows} rows", rows / seconds, "tokens per CPU second"),
                Figure(f"decode, {name}, {rows} rows{SHARE}", share, beside=limited_by),
            ]
        if "bf16" in spent:
            gain, goal = spent["fp32"] / spent["bf16"], "at least 1.45" if rows == 64 else ""
            print(f"  {rows:>2} rows, bf16 / fp32: {gain:.2f} {goal}")
            figures.append(
                Figure(f"decode, bf16, {rows} rows: tokens per CPU second", gain, beside="coa in fp32", goal=goal)
            )
    yield figures


def _pass_seconds(
    model: PreTrainedModel, tokenizer: TextTokenizer, types: Iterable[str], prompt: Sequence[int], rows: int
) -> dict[str, float]:
    """CPU seconds of a pass that decodes this number of rows: the difference between long and short answers.

    The types take turns, and the least of the rounds counts.
    """
    models = {
        name: LocalModel(model, tokenizer, name="smollm2", max_rows=64, kv_bytes=1 << 29, bf16=name == "bf16")
        for name in types
    }
    contexts = [[*prompt, 100 + row] for row in range(rows)]
    short, long = 4, 20
    least = {(name, new): math.inf for name in models for new in (short, long)}
    for _ in range(ROUNDS):
        for name, new in least:
            start = time.process_time()
            asyncio.run(_runs(models[name], contexts, [], turns=1, new=new))
            least[name, new] = min(least[name, new], time.process_time() - start)
    for local in models.values():
        asyncio.run(local.close())
    return {name: max(least[name, long] - least[name, short], 1e-9) / (long - short) for name in models}


async def _runs(
    model: LocalModel, prompts: Sequence[Sequence[int]], observed: Sequence[int], *, turns: int, new: int
) -> float:
    # No token may end a turn early, so that both sides do the same work.
    for engine in model._engines._all:
        engine._ends = frozenset()
    sampling = Sampling(SAMPLING.temperature, SAMPLING.top_p, SAMPLING.top_k, new)

    async def one(ids: Sequence[int]) -> None:
        context = list(ids)
        for _ in range(turns):
            made = await model.generate(Context([], "", context), stop=["</never>"], sampling=sampling)
            assert made.tokens is not None
            context += [*made.tokens.ids, *observed]

    start = time.perf_counter()
    await asyncio.gather(*(one(ids) for ids in prompts))
    return time.perf_counter() - start


async def _held(model: LocalModel, prompts: Sequence[Sequence[int]], grammar: Grammar | None) -> tuple[int, float]:
    """Tokens made and seconds taken; steps may end early, so the first is counted."""
    sampling = Sampling(SAMPLING.temperature, SAMPLING.top_p, SAMPLING.top_k, TURNS * NEW)
    start = time.perf_counter()
    made = await asyncio.gather(
        *(
            model.generate(Context([], "", list(ids)), stop=["</never>"], sampling=sampling, grammar=grammar)
            for ids in prompts
        )
    )
    return sum(one.usage.completion_tokens for one in made), time.perf_counter() - start


def _padded(model: PreTrainedModel, prompts: Sequence[Sequence[int]], observed: Sequence[int]) -> float:
    rows = [list(ids) for ids in prompts]
    start = time.perf_counter()
    for _ in range(TURNS):
        longest = max(map(len, rows))
        ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
        out = model.generate(  # type: ignore[operator]
            input_ids=ids,
            attention_mask=mask,
            do_sample=True,
            temperature=SAMPLING.temperature,
            top_p=SAMPLING.top_p,
            top_k=SAMPLING.top_k,
            min_new_tokens=NEW,
            max_new_tokens=NEW,
            pad_token_id=0,
        )
        rows = [row + new[longest:] + list(observed) for row, new in zip(rows, out.tolist(), strict=True)]
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
