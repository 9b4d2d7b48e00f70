"""Local engine: 32 three-turn runs with tools, beside `transformers.generate` called turn by turn on padded batches.

Then decoding alone on one core, at 1, 4, 16 and 64 rows, beside what the core can do at best: a pass cannot take less
time than reading all weights, nor less than its multiplications. Both limits are measured in the same run. In bf16 as
well where the CPU has units for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import torch
from transformers import PreTrainedModel

from benchmarks.limits import least_seconds, measure_limits
from benchmarks.results import Figure, save
from coa.models.base import Context, Sampling
from coa.models.local import LocalModel
from coa.models.local.model import load_weights
from coa.models.precision import cpu_has_bf16
from coa.models.tokenizer import TextTokenizer
from coa.trajectory import Message, load_profile
from coa.trajectory.grammar import Grammar, Move, language

ROWS, TURNS, NEW = 32, 3, 24
OBSERVATION = (
    "\n<observation>Brannock Head: the north light was first lit in 1871, the south light in 1885.</observation>\n"
)
SAMPLING = Sampling(temperature=1.0, top_p=0.9, top_k=20, max_tokens=NEW)


def main() -> None:
    model, tokenizer = load_weights("smollm2")
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
    save("engine", "python -m benchmarks.engine", [*figures, *_decoding(model, tokenizer, prompts[0])])


def _decoding(model: PreTrainedModel, tokenizer: TextTokenizer, prompt: Sequence[int]) -> list[Figure]:
    torch.set_num_threads(1)
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    layers = [part for part in model.get_decoder().modules() if isinstance(part, torch.nn.Linear)]  # type: ignore[no-untyped-call]
    weights = sum(part.weight.numel() for part in [*layers, head])
    figures, at_64 = [], dict[str, float]()
    for name, bf16 in (("fp32", False), ("bf16", True)):
        if bf16 and not cpu_has_bf16():
            continue
        limits = measure_limits(torch.bfloat16 if bf16 else torch.float32, clock=time.process_time)
        print(f"decoding on one core, {name}: {limits.flops / 1e9:.0f} GFLOP/s, {limits.bytes / 1e9:.1f} GB/s at best")
        figures += [
            Figure(f"one core, {name}: matrix multiplication", limits.flops / 1e9, "GFLOP/s"),
            Figure(f"one core, {name}: reading memory", limits.bytes / 1e9, "GB/s"),
        ]
        for rows in (1, 4, 16, 64):
            spent = _pass_seconds(LocalModel(model, tokenizer, name="smollm2", max_rows=64, bf16=bf16), prompt, rows)
            share = limits.pass_seconds(weights, rows, 2 if bf16 else 4) / spent
            at_64[name] = spent
            print(f"  {rows:>2} rows  {rows / spent:7.1f} tokens per CPU second   {share:.2f} of the limit")
            figures += [
                Figure(f"decode, {name}, {rows} rows", rows / spent, "tokens per CPU second"),
                Figure(f"decode, {name}, {rows} rows: share of the limit", share, beside="the larger of both limits"),
            ]
    if "bf16" in at_64:
        gain = at_64["fp32"] / at_64["bf16"]
        print(f"  64 rows, bf16 / fp32: {gain:.2f} (goal: 1.45)")
        figures.append(Figure("decode, bf16, 64 rows", gain, beside="coa in fp32", goal="at least 1.45"))
    return figures


def _pass_seconds(local: LocalModel, prompt: Sequence[int], rows: int) -> float:
    """CPU seconds of a pass that decodes this number of rows: the difference between long and short answers."""
    contexts = [[*prompt, 100 + row] for row in range(rows)]
    short, long = 4, 20

    def write(new: int) -> Callable[[], object]:
        return lambda: asyncio.run(_runs(local, contexts, [], turns=1, new=new))

    try:
        write(short)()
        return max(_least_cpu(write(long)) - _least_cpu(write(short)), 1e-9) / (long - short)
    finally:
        asyncio.run(local.close())


def _least_cpu(work: Callable[[], object]) -> float:
    return least_seconds(work, time.process_time, repeats=3)


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
