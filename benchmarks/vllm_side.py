"""vLLM as a side of `benchmarks.decoding`: run by an interpreter that has it, with a model folder, type and threads.

Reads lines of JSON with prompts, and answers each with the ids that it wrote. Imports nothing of coa.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

SETTINGS = {
    "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_LOGGING_LEVEL": "ERROR",
}  # fmt: skip


def main(folder: Path, dtype: str, rows: int) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever vLLM prints
    from vllm import LLM, SamplingParams

    model = LLM(model=str(folder), dtype=dtype, max_model_len=1024, max_num_seqs=rows, enforce_eager=True)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        # The log-probability of each token, as token mode asks for it.
        greedy = SamplingParams(temperature=0.0, max_tokens=asked["new"], ignore_eos=True, logprobs=0)
        prompts = [{"prompt_token_ids": ids} for ids in asked["prompts"]]
        start = time.perf_counter()
        made = model.generate(prompts, greedy, use_tqdm=False)
        spent = time.perf_counter() - start
        answer = {"seconds": spent, "ids": [list(one.outputs[0].token_ids) for one in made]}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    os.environ.update(SETTINGS)
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
