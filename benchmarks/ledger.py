"""Ledger tokens/s (render, tokenise span by span, mask, sample) beside one call of the tokenizer on the whole text."""

from __future__ import annotations

import os
import subprocess
import sys

from benchmarks.corpus import WEB, ordinary_runs
from benchmarks.timing import best_seconds


def main() -> None:
    for parallel in ("true", "false"):
        # The tokenizers library reads this once, so each setting gets a process of its own.
        environment = os.environ | {"TOKENIZERS_PARALLELISM": parallel}
        subprocess.run([sys.executable, "-m", "benchmarks.ledger", parallel], env=environment, check=True)


def measure(parallel: str) -> None:
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
    print(f"{count:,} SmolLM2 tokens in {len(runs)} runs, tokenizer threads {'on' if parallel == 'true' else 'off'}")
    print(f"  tokenizer, one call a text  {count / once:12,.0f} tokens/s   1.00")
    print(f"  tokenizer, one batch        {count / batch:12,.0f} tokens/s   {once / batch:.2f}")
    print(
        f"  ledger, samples with masks  {count / ledger:12,.0f} tokens/s   {once / ledger:.2f}   (goal: at least 0.8)"
    )


if __name__ == "__main__":
    measure(sys.argv[1]) if len(sys.argv) > 1 else main()
