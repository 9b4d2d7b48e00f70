"""Ledger tokens/s (render, tokenise span by span, mask, sample) compared with one call of the tokenizer on all text."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from benchmarks.corpus import WEB, ordinary_runs
from benchmarks.results import Figure, save
from benchmarks.timing import best_seconds

GOAL = "at least 0.8"


def main() -> None:
    figures = list[Figure]()
    for parallel in ("true", "false"):
        # The tokenizers library reads this once, so each setting gets a process of its own.
        environment = os.environ | {"TOKENIZERS_PARALLELISM": parallel}
        command = [sys.executable, "-m", "benchmarks.ledger", parallel]
        done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
        found = json.loads(done.stdout)
        threads = f"tokenizer threads {'on' if parallel == 'true' else 'off'}"
        once, batch, ledger = found["once"], found["batch"], found["ledger"]
        print(f"{found['tokens']:,} SmolLM2 tokens, {threads}: tokens/s")
        print(f"  tokenizer, one call a text  {once:12,.0f}   1.00")
        print(f"  tokenizer, one batch        {batch:12,.0f}   {batch / once:.2f}")
        print(f"  ledger, samples with masks  {ledger:12,.0f}   {ledger / once:.2f}   ({GOAL})")
        figures += [
            Figure(f"ledger, {threads}", ledger, "tokens/s"),
            Figure(f"ledger, {threads}: tokens/s", ledger / once, beside="tokenizer, one call a text", goal=GOAL),
            Figure(f"ledger, {threads}: tokens/s", ledger / batch, beside="tokenizer, one batch"),
        ]
    save("ledger", "python -m benchmarks.ledger", figures)


def measure() -> None:
    from coa.models.tokenizer import load_tokenizer
    from coa.trajectory import ledger_of, render, to_samples

    tokenizer = load_tokenizer("smollm2")
    runs = ordinary_runs(256)
    texts = [tokenizer.encode_prompt(WEB.messages(run.task))[0] + render(run.steps, WEB) for run in runs]
    whole = tokenizer._whole
    count = sum(len(ledger_of(run, tokenizer, WEB)) for run in runs)
    once = best_seconds(lambda: [whole.encode(text, add_special_tokens=False).ids for text in texts])
    batch = best_seconds(lambda: [e.ids for e in whole.encode_batch(texts, add_special_tokens=False)])
    ledger = best_seconds(lambda: list(to_samples(runs, tokenizer, WEB)))
    print(json.dumps({"tokens": count, "once": count / once, "batch": count / batch, "ledger": count / ledger}))


if __name__ == "__main__":
    measure() if len(sys.argv) > 1 else main()
