"""Wrong calls of every command: each ends in an error that says what to do, never in a traceback.

The calls run in this process, through the same `main` as the program, because a process each would take minutes. What
only a process of its own can show (a full device, Ctrl-C, closed pipes) is in `test_border.py`.
"""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest

from coa.cli import main
from coa.trajectory import write
from support.builders import make_trajectory, web_run
from support.commands import save_tiny_model

CALLS = r"""
inspect
inspect none.jsonl
inspect corrupt.parquet
inspect cut.parquet
inspect text.parquet
inspect empty.jsonl
inspect broken.jsonl
inspect deep.jsonl
inspect latin.jsonl
inspect text.txt
inspect emptydir
inspect /proc/1
inspect good.jsonl --task nobody
inspect good.jsonl --mask --tokenizer ./none
inspect good.jsonl --mask --tokenizer text.txt
inspect good.jsonl --mask --tokenizer cut.gguf
inspect good.jsonl --mask --tokenizer tiny/none
inspect good.jsonl --profile none
inspect good.jsonl --profile text.txt
inspect good.jsonl --profile emptydir
inspect good.jsonl --limit 0
inspect good.jsonl --skip many
export good.jsonl
export good.jsonl --to nonsense
export good.jsonl --to messages --out /proc/x.jsonl
export good.jsonl --to messages --out afile/x.jsonl
export good.jsonl --to messages --out emptydir
export good.jsonl --to messages --out emptydir --force
export good.jsonl --to trajectories --out /proc/x.jsonl
export good.jsonl --to trajectories --out afile/x.parquet
export good.jsonl --to alpaca --out /proc/x.parquet
export good.jsonl --to atif --out afile/x
export good.jsonl --to atif --out /proc/x
export good.jsonl --to alpaca --out x.csv
export tasks.jsonl --to alpaca --out x.jsonl
export corrupt.parquet --to alpaca --out x.jsonl
export broken.jsonl --to alpaca --out x.jsonl
export good.jsonl --to alpaca --out afile --force
distill
distill good.jsonl
distill none --out x
distill good.jsonl --out /proc/o
distill good.jsonl --out afile
distill good.jsonl --out afile/x
distill good.jsonl --out x --profile none
distill good.jsonl --out x --tasks none.jsonl
distill good.jsonl --out x --roles none.toml
distill good.jsonl --out x --student ./none
distill good.jsonl --out x --decontaminate none.jsonl
distill good.jsonl --out x --decontaminate mth500
distill good.jsonl --out x --config none.toml
distill good.jsonl --out x --config text.txt
distill good.jsonl --out x --set qualty.min=1
distill good.jsonl --out x --set quality
distill corrupt.parquet --out x
cost
cost none
cost good.jsonl --tokenizer ./none
cost corrupt.parquet
cost good.jsonl --profile none
cost good.jsonl --tasks none.jsonl
compare
compare none
compare good.jsonl --out afile
compare good.jsonl good2.jsonl --out /proc/c
compare good.jsonl --tokenizer ./none
compare good.jsonl --scorer vibes
compare corrupt.parquet good.jsonl
score
score good.jsonl
score good.jsonl --scorer vibes
score good.jsonl --scorer nowhere:function
score none --scorer exact
score corrupt.parquet --scorer exact
score good.jsonl --scorer judge
run --model
run hi --model ./nomodel
run hi --model nomodel/
run hi --model emptydir
run hi --model afile
run hi --model cut.gguf
run hi --model none.gguf
run hi --model smolm2
run hi --model http://
run hi --model "http://:80"
run hi --model nano --profile none
run hi --model nano --world none
run hi --model nano --world afile
run hi --model nano --tool nonsense
run hi --model nano --tool code=nowhere:f
run hi --model nano --mcp nosuchprogram
run hi --model nano --budget minutes
run hi --model nano --budget minutes=1
run hi --model nano --budget seconds=x
run hi --model nano --temperature -1
run hi --model nano --temperature hot
run hi --model nano --seed x
run hi --model nano --best-of 0
run hi --model nano --select vibes
run hi --model nano --out /proc/x.jsonl
run hi --model nano --out afile/x.jsonl
run hi --model nano --out x.parquet
run hi --model nano --file none.txt
run hi --model nano --config none.toml
run hi --model nano --set temprature=1
run hi --model nano --set nonsense
run hi --model nano --tasks tasks.jsonl
run --model nano --tasks none.jsonl --out x.jsonl
run --model nano --tasks tasks.jsonl
run --model nano --tasks broken.jsonl --out x.jsonl
run --model nano --tasks corrupt.parquet --out x.jsonl
run --model nano --tasks empty.jsonl --out x.jsonl
run --model nano --tasks tasks.jsonl --out afile/x
run --model nano --tasks tasks.jsonl --samples 0 --out x
run hi --nonsense
teach
teach tasks.jsonl
teach none.jsonl --team world --world atlas --out x
teach tasks.jsonl --team nowhere:team --out x
teach tasks.jsonl --team text.txt --out x
teach tasks.jsonl --team none.py:team --out x
teach tasks.jsonl --team world --world none --out x
teach tasks.jsonl --team world --world atlas --out afile
teach tasks.jsonl --team world --world atlas --out /proc/x
teach tasks.jsonl --team world --world atlas --errors 2 --out x
sample
sample tasks.jsonl --model nano
sample none.jsonl --model nano --out x.jsonl
sample tasks.jsonl --model nano --out x.csv
sample tasks.jsonl --model ./none --out x.jsonl
sample tasks.jsonl --model nano --out /proc/x.jsonl
sample tasks.jsonl --model nano --out afile/x.jsonl
sample tasks.jsonl --model nano --max-without-tools 2 --out x.jsonl
sample corrupt.parquet --model nano --out x.jsonl
eval
eval nonsense --model nano --out x
eval mth500 --model nano --out x
eval none.jsonl --model nano --out x
eval corrupt.parquet --model nano --out x
eval broken.jsonl --model nano --out x
eval tasks.jsonl --model nano
eval tasks.jsonl --model ./none --out x
eval tasks.jsonl --model nano --out afile
eval tasks.jsonl --model nano --out /proc/x
eval tasks.jsonl --model nano --set run.temprature=1 --out x
eval math500 --data none --model nano --out x
eval none.toml --out x
sft --data good.jsonl --model ./tiny
sft --data none.jsonl --model ./tiny --out x
sft --data empty.jsonl --model ./tiny --out x
sft --data corrupt.parquet --model ./tiny --out x
sft --data broken.jsonl --model ./tiny --out x
sft --data tasks.jsonl --model ./tiny --out x
sft --data good.jsonl --model ./none --out x
sft --data good.jsonl --model ./cutmodel --out x
sft --data good.jsonl --model ./nojson --out x
sft --data good.jsonl --model ./tiny --out afile
sft --data good.jsonl --model ./tiny --out /proc/x
sft --data good.jsonl --model ./tiny --out afile/x
sft --data good.jsonl --model ./tiny --out x --set learning_rate=1
sft --data good.jsonl --model ./tiny --out x --set lora.rnk=1
sft --data good.jsonl --model ./tiny --out x --set lr=fast
sft none.toml --out x
sft text.txt --out x
rl --model ./tiny --tasks none.jsonl --out x
rl --model ./tiny --tasks tasks.jsonl
rl --model ./tiny --tasks tasks.jsonl --out afile
rl --model ./tiny --tasks tasks.jsonl --out /proc/x
rl --model ./tiny --tasks corrupt.parquet --out x
rl --model ./none --tasks tasks.jsonl --out x
rl --model ./tiny --tasks tasks.jsonl --out x --set reward.scorer=vibes
rl --model ./tiny --tasks tasks.jsonl --out x --set kl_loss_coef=0
rl --model ./tiny --tasks tasks.jsonl --out x --profile none
rl none.toml --out x
judge
judge none.json none.py
judge problem.json none.py
judge text.txt text.txt
judge deep.jsonl text.txt
judge problem.json text.txt --kind nonsense
profile show none
profile show text.txt
profile show emptydir
profile shwo web
tools call nonsense x
tools call web_search
tools call code x --tool code=nowhere:f
tools list --mcp nosuchprogram
index build none --out x
index build text.txt --out /proc/x
index build text.txt --out afile
index build text.txt --out afile/x
index build text.txt --out x --language klingon
index search none words
index search emptydir words
index search afile words
sandbox show --kind nonsense
sandbox serve --token-env NO_SUCH_VARIABLE
sandbox serve --host 0.0.0.0
sandbox serve --port 99999
world build
world build --out afile
world build --out afile/x
world build --out /proc/x
world build --out emptydir --cities 1
world show none
world show afile
world tasks --out x.jsonl --source nonsense
world serve none
demo --quick --long
demo --out afile --quick
demo --out /proc/x --quick
doctor --nonsense
nonsense
--nonsense
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wrong")
    write(folder / "good.jsonl", [web_run(), make_trajectory(("think", "x"), ("answer", "y"), sample=1)])
    write(folder / "good2.jsonl", [web_run()])
    write(folder / "corrupt.parquet", [web_run(sample=number) for number in range(50)])
    whole = (folder / "corrupt.parquet").read_bytes()
    (folder / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    (folder / "corrupt.parquet").write_bytes(whole[:200] + b"\xff" * 400 + whole[600:])
    (folder / "text.parquet").write_text("no table")
    (folder / "text.txt").write_text("plain words")
    (folder / "afile").write_text("a file")
    (folder / "empty.jsonl").write_text("")
    (folder / "emptydir").mkdir()
    (folder / "cut.gguf").write_bytes(b"GGUF\x03\x00")
    (folder / "tasks.jsonl").write_text(json.dumps({"question": "1 + 1?", "answer": "2"}) + "\n")
    line = (folder / "good2.jsonl").read_text()
    (folder / "broken.jsonl").write_text(f'{line}{{"broken": \n{line}')
    (folder / "latin.jsonl").write_bytes('{"question": "é"}\n'.encode("latin1"))
    (folder / "deep.jsonl").write_text("[" * 100_000 + "\n")
    problem = {"inputs": ["1"], "outputs": ["1"]}
    (folder / "problem.json").write_text(json.dumps({"question": "echo", "input_output": json.dumps(problem)}))
    for name in ("tiny", "cutmodel", "nojson"):
        (folder / name).mkdir()
        save_tiny_model(folder / name)
    weights = folder / "cutmodel" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:2000])
    (folder / "nojson" / "config.json").write_text("{")
    return folder


@pytest.mark.parametrize("call", CALLS.strip().splitlines())
def test_a_wrong_call_ends_in_an_error_with_a_way_out(
    call: str, place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    shutil.rmtree("x", ignore_errors=True)  # of an earlier call
    with pytest.raises(SystemExit) as end:
        main(shlex.split(call))
    said = capfd.readouterr().err
    assert end.value.code in (1, 2), said
    assert "Traceback" not in said and "unexpectedly" not in said, said
    assert "error: " in said or "Error" in said or "Usage: " in said, said
    assert "hint: " in said or end.value.code == 2, said
