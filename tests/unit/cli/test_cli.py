"""The command line: quick to answer, clear when misused, for people and for machines."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import unicodedata
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coa.cli import app
from coa.errors import CoaError
from coa.trajectory import Failure, FailureSite, Score, Step, Stop, Task, Trajectory, read, write
from support.builders import make_trajectory, web_run

ROOT = Path(__file__).parents[3]
run = CliRunner().invoke


def coa(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "coa.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=60)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    path = tmp_path / "runs.jsonl"
    write(path, [web_run(), make_trajectory(("think", "x"), sample=1)])
    return path


def test_help_loads_nothing_heavy() -> None:
    """What makes help quick, asserted by what is imported and not by a clock."""
    code = (
        "import sys\nfrom coa.cli import app\n"
        "heavy = {'torch', 'transformers', 'pydantic', 'pyarrow', 'tokenizers', 'aiohttp', 'jinja2'}\n"
        "try: app(['--help'])\nexcept SystemExit: pass\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr.strip() == "[]"
    for command in ("inspect", "export", "profile", "doctor"):
        assert command in done.stdout


def test_showing_our_own_runs_loads_no_reader_of_other_formats(runs: Path) -> None:
    code = (
        "import sys\nfrom coa.cli import app\n"
        f"try: app(['inspect', {str(runs)!r}])\nexcept SystemExit: pass\n"
        "loaded = {name for name in sys.modules if name.startswith('coa.distill.importers')}\n"
        "print(sorted(loaded | {'pyarrow', 'numpy', 'torch'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr.strip() == "[]" and "I need a plan." in done.stdout


def test_a_mistake_is_told_in_one_line_with_exit_1_and_misuse_with_exit_2(tmp_path: Path) -> None:
    failed = coa("inspect", str(tmp_path / "none.jsonl"))
    assert failed.returncode == 1 and failed.stderr.startswith("error: there is no file") and not failed.stdout
    assert coa("inspect").returncode == 2
    assert coa("export", "x", "--to", "nonsense").returncode == 2


def test_output_may_be_cut_off_by_its_reader(runs: Path) -> None:
    write(runs, [web_run(sample=n) for n in range(2, 600)])
    done = subprocess.run(
        f"{sys.executable} -m coa.cli inspect {runs} | head -1", shell=True, capture_output=True, text=True, timeout=60
    )
    assert "task t1" in done.stdout and "Traceback" not in done.stderr


def test_inspect_shows_steps_repairs_and_violations(runs: Path) -> None:
    shown = run(app, ["inspect", str(runs), "--no-pager"]).stdout
    assert "first programmer" in shown and "Ada Lovelace" in shown
    assert "no_answer" in shown, "the second run has no answer"
    assert "11 steps" in shown


def test_inspect_folds_long_observations_unless_asked(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    write(path, [make_trajectory(("observation", "\n".join(f"line {n}" for n in range(50))))])
    folded = run(app, ["inspect", str(path), "--no-pager"]).stdout
    assert "line 5" in folded and "line 40" not in folded and "38 more lines" in folded
    assert "line 40" in run(app, ["inspect", str(path), "--full"]).stdout


def test_inspect_selects(runs: Path) -> None:
    assert run(app, ["inspect", str(runs), "--skip", "1", "--json"]).stdout.count("\n") == 1
    assert run(app, ["inspect", str(runs), "--limit", "1", "--json"]).stdout.count("\n") == 1
    missing = run(app, ["inspect", str(runs), "--task", "zz"])
    assert isinstance(missing.exception, CoaError) and "no task 'zz'" in str(missing.exception)


def test_inspect_mask_marks_exactly_the_models_tokens(runs: Path) -> None:
    shown = run(app, ["inspect", str(runs), "--mask", "--json", "--limit", "1"]).stdout
    tokens = json.loads(shown)["tokens"]
    trained = "".join(token["text"] for token in tokens if token["trained"])
    assert "Ada Lovelace" not in trained and trained.endswith("<answer>Ada</answer><|im_end|>")
    assert {token["agent"] for token in tokens if token["trained"]} >= {"think", "plan", "web_search", "answer"}
    plain = run(app, ["inspect", str(runs), "--mask", "--limit", "1"]).stdout
    assert "«answer»" in plain and "«Lov" not in plain


def test_inspect_mask_cuts_and_drops_as_training_would(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    write(path, [make_trajectory(("think", "x"), ("observation", "many words " * 2000), ("answer", "a")),
                 make_trajectory(("think", "many words " * 2000))])  # fmt: skip
    shown = run(app, ["inspect", str(path), "--mask", "--max-tokens", "1200"])
    assert "characters omitted ...]" in shown.stdout and "dropped: 1 too_long" in shown.stdout


def test_inspect_shows_tasks_too(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"id": "a", "question": "Who?", "answer": ["Ada", "Lovelace"]}\n')
    assert "answer: Ada | Lovelace" in run(app, ["inspect", str(path)]).stdout


@pytest.mark.parametrize("name", ["web", "mhqa", "code", "math", "all", "nano"])
def test_profiles_are_shown_as_table_and_graph(name: str) -> None:
    shown = run(app, ["profile", "show", name])
    assert shown.exit_code == 0
    assert "Who may follow whom" in shown.stdout and "answer -> (end)" in shown.stdout
    assert "digraph" in run(app, ["profile", "show", name, "--dot"]).stdout
    assert json.loads(run(app, ["profile", "show", name, "--json"]).stdout)["name"] == name
    assert name in run(app, ["profile", "list"]).stdout


def test_a_profile_of_ones_own_works_in_every_command(tmp_path: Path) -> None:
    profile = tmp_path / "mine.toml"
    shipped = run(app, ["profile", "show", "mhqa", "--toml"]).stdout
    profile.write_text(shipped.replace("wiki_search", "archive").replace('name = "mhqa"', 'name = "mine"'))
    assert "archive ~>" in run(app, ["profile", "show", str(profile)]).stdout
    rows = tmp_path / "rows.jsonl"
    text = "<think>a</think>\n<archive>q</archive>\n<observation>r</observation>\n<think>b</think>\n<answer>c</answer>"
    rows.write_text(json.dumps({"instruction": "i", "input": "q", "output": text}) + "\n")
    out = tmp_path / "t.jsonl"
    assert (
        run(app, ["export", str(rows), "--to", "trajectories", "--out", str(out), "--profile", str(profile)]).exit_code
        == 0
    )
    for given in ([], ["--profile", str(profile)]):
        shown = run(app, ["inspect", str(out), *given])
        assert "0 violations" in shown.stdout and "1 tool call " in shown.stdout


def test_an_old_file_that_only_names_a_profile_of_ones_own_is_given_it_once(tmp_path: Path) -> None:
    profile, old, new = tmp_path / "mine.toml", tmp_path / "old.jsonl", tmp_path / "new.jsonl"
    profile.write_text('extends = "web"\nname = "mine"\n')
    write(old, [make_trajectory(("think", "a"), ("answer", "b"), profile="mine")])
    refused = run(app, ["inspect", str(old)])
    assert "--profile FILE.toml" in str(refused.exception)
    given = ["--profile", str(profile), "--to", "trajectories", "--out", str(new)]
    assert run(app, ["export", str(old), *given]).exit_code == 0
    profile.unlink()
    assert "mine  answered" in run(app, ["inspect", str(new)]).stdout


TARGETS = ["messages", "alpaca", "sharegpt", "verl", "atif", "trajectories", "tasks"]


# ATIF documents differ in their fields from one to the next; they are JSON, never a table.
EXPORTS = [(to, end) for to in TARGETS for end in ("jsonl", "json", "parquet") if (to, end) != ("atif", "parquet")]


@pytest.mark.parametrize(("target", "ending"), EXPORTS)
def test_everything_is_exported_to_every_container(target: str, ending: str, runs: Path, tmp_path: Path) -> None:
    out = tmp_path / f"out.{ending}"
    done = run(app, ["export", str(runs), "--to", target, "--out", str(out)])
    assert done.exit_code == 0, done.exception
    assert out.stat().st_size > 30
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    if target == "trajectories" and ending != "json":
        assert list(read(out)) == list(read(runs))


def test_export_replaces_only_when_told(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("precious")
    refused = run(app, ["export", str(runs), "--to", "alpaca", "--out", str(out)])
    assert "exists already" in str(refused.exception) and out.read_text() == "precious"
    assert run(app, ["export", str(runs), "--to", "alpaca", "--out", str(out), "--force"]).exit_code == 0
    assert out.read_text().count("\n") == 2


def test_export_makes_missing_folders_and_names_wrong_endings(runs: Path, tmp_path: Path) -> None:
    assert run(app, ["export", str(runs), "--to", "alpaca", "--out", str(tmp_path / "a" / "b.jsonl")]).exit_code == 0
    for target, name in (("alpaca", "x.csv"), ("atif", "x.parquet"), ("alpaca", "folder")):
        refused = run(app, ["export", str(runs), "--to", target, "--out", str(tmp_path / name)])
        assert f"cannot be written to '{name}'" in str(refused.exception)


def test_escape_sequences_in_pages_do_not_reach_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    write(path, [make_trajectory(("observation", "\x1b]0;owned\x07\x1b[2J"), ("answer", "a"))])
    for option in ("--no-pager", "--mask"):
        assert "\x1b" not in run(app, ["inspect", str(path), option]).stdout


HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eeman\u2066"


def test_nothing_in_a_file_reaches_the_terminal_as_an_escape_sequence(tmp_path: Path) -> None:
    """Nor do marks that turn text. Ids, answers, names, failures and violations too, on a terminal with colours."""
    import pty

    failed = Trajectory(
        task=Task(id=f"id{HOSTILE}", question=f"question{HOSTILE}", answer=f"answer{HOSTILE}"),
        profile="web",
        steps=(Step(agent=f"agent{HOSTILE}", text=HOSTILE), Step(agent="think", text="x")),
        stop=Stop.FAILED,
        failure=Failure(site=FailureSite.MODEL, message=f"message{HOSTILE}"),
        scores={f"score{HOSTILE}": Score(value=1.0)},
    )
    write(tmp_path / "tree" / f"part{HOSTILE.replace('/', '')}" / "runs.jsonl", [failed])
    write(tmp_path / "tree" / "b.jsonl", [failed])
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"id": f"id{HOSTILE}", "question": "q", "answer": HOSTILE}))
    for data in ("tree", "tasks.jsonl"):
        master, slave = pty.openpty()
        command = [sys.executable, "-m", "coa", "inspect", str(tmp_path / data), "--no-pager"]
        environment = os.environ | {"TERM": "xterm-256color"}
        with subprocess.Popen(command, stdout=slave, stderr=slave, env=environment) as process:
            os.close(slave)
            shown = b""
            with suppress(OSError):  # the terminal is closed at the end
                while piece := os.read(master, 1 << 16):
                    shown += piece
        os.close(master)
        text = re.sub(r"\x1b\[[0-9;]*m", "", shown.decode())  # colours are rich's
        assert process.returncode == 0 and "answer" in text, text
        found = {char for char in text if unicodedata.category(char) in ("Cc", "Cf")} - {"\r", "\n"}
        assert not found, (found, text)


def test_an_error_inside_the_pager_ends_it(runs: Path) -> None:
    """On a pseudo-terminal, where the pager really runs."""
    import pty

    master, slave = pty.openpty()
    command = [sys.executable, "-m", "coa.cli", "inspect", str(runs), "--task", "zz"]
    environment = os.environ | {"PAGER": "cat", "TERM": "xterm"}
    done = subprocess.run(command, stdout=slave, stderr=subprocess.PIPE, text=True, timeout=60, env=environment)
    os.close(slave)
    os.close(master)
    assert done.returncode == 1 and "no task 'zz'" in done.stderr


def test_export_writes_atif_documents_into_a_folder(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "atif"
    assert run(app, ["export", str(runs), "--to", "atif", "--out", str(folder)]).exit_code == 0
    assert sorted(path.name for path in folder.iterdir()) == ["000001-t1_0.json", "000002-t1_1.json"]


def test_an_export_that_fails_leaves_nothing(tmp_path: Path) -> None:
    source = tmp_path / "t.jsonl"
    write(source, [web_run()])
    with source.open("a") as file:
        file.write("{}\n")
    done = run(app, ["export", str(source), "--to", "alpaca", "--out", str(tmp_path / "out.jsonl")])
    assert "line 2" in str(done.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["t.jsonl"]


def test_doctor_says_what_works_and_how_to_repair_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    healthy = run(app, ["doctor"])
    assert healthy.exit_code == 0 and "49152 tokens" in healthy.stdout
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr("coa.installing._PACKAGE", "not_installed_here")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PAGER", "no-such-pager")
    checks = {check["what"]: check for check in json.loads(run(app, ["doctor", "--json"]).stdout)}
    weights = checks["tokenizer of the embedded model (smollm2)"]
    assert not weights["works"] and weights["hint"].endswith("coa setup weights")
    nano = checks["nano and the world that it knows"]
    assert not nano["works"] and nano["hint"].endswith("coa setup nano") and "SmolLM2" in nano["detail"]
    assert not checks["paging in the terminal"]["works"]


def test_doctor_fails_where_nothing_can_be_written() -> None:
    done = coa("doctor", cwd=Path("/proc"))  # not even root can make a folder there
    assert done.returncode == 1 and "cd to a folder" in done.stdout, done.stderr


def test_the_version_is_told() -> None:
    from coa import __version__

    assert run(app, ["--version"]).stdout == f"coa {__version__}\n"
    assert f'version = "{__version__}"' in (ROOT / "pyproject.toml").read_text()


def test_every_public_name_can_be_imported() -> None:
    import coa as package

    for name in package.__all__:
        assert getattr(package, name) is not None
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError):
        _ = package.nonsense


def test_rows_with_a_profile_of_their_own_have_its_tools() -> None:
    from coa.runtime.opening import _profiles_of
    from coa.trajectory import Task, load_profile

    rows = [Task(id=str(at), question="?", profile=name) for at, name in enumerate([None, "mhqa", "mhqa", "no-such"])]
    assert [profile.name for profile in _profiles_of(load_profile("web"), rows)] == ["web", "mhqa"]


def test_distill_never_takes_its_own_output_for_traces(tmp_path: Path, runs: Path) -> None:
    for out in (tmp_path, tmp_path / "data"):
        done = run(app, ["distill", str(tmp_path), "--out", str(out)])
        assert isinstance(done.exception, CoaError) and "own output" in str(done.exception)
    done = run(app, ["distill", str(runs), "--out", str(runs)])
    assert isinstance(done.exception, CoaError) and "is a file" in str(done.exception)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs.jsonl"]


def test_cost_names_what_it_could_not_count(tmp_path: Path, runs: Path) -> None:
    (tmp_path / "odd.jsonl").write_text('{"some": "thing"}\n')
    done = run(app, ["cost", str(tmp_path), "--json"])
    assert done.exit_code == 0 and json.loads(done.stdout)[0]["runs"] == 2 and "odd.jsonl" in done.stderr
    none = run(app, ["cost", str(tmp_path / "odd.jsonl")])
    assert isinstance(none.exception, CoaError) and "no run to count" in str(none.exception)


def test_tasks_of_two_sets_that_share_an_id_are_both_exported(tmp_path: Path) -> None:
    one = web_run()
    other = one.model_copy(update={"task": one.task.model_copy(update={"question": "Another one?"})})
    write(tmp_path / "runs.jsonl", [one, other, one.model_copy(update={"sample": 1})])
    done = run(app, ["export", str(tmp_path / "runs.jsonl"), "--to", "tasks"])
    assert [json.loads(line)["question"] for line in done.stdout.splitlines()] == [one.task.question, "Another one?"]


def published(folder: Path) -> Path:
    """AFM's rows as the hub gives them: a README, parts in folders, one row without a trajectory."""
    row = {"instruction": "Use tools.", "input": "Who?", "output": "<think>hm</think><answer>Ada</answer>"}
    (folder / "data").mkdir(parents=True)
    (folder / "README.md").write_text("about")
    (folder / "data" / "a.json").write_text(json.dumps([row]))
    (folder / "data" / "b.jsonl").write_text(json.dumps(row | {"output": None}) + "\n" + json.dumps(row))
    return folder


def test_a_folder_of_published_rows_is_inspected_and_exported_as_training_takes_it(tmp_path: Path) -> None:
    folder = str(published(tmp_path / "afm"))
    shown = run(app, ["inspect", folder, "--mask", "--json"])
    assert shown.exit_code == 0 and shown.stdout.count('"task"') == 2
    assert "1 row left out: no output 1" in coa("inspect", folder, "--json").stderr
    done = run(app, ["export", folder, "--to", "trajectories", "--out", str(tmp_path / "own.jsonl")])
    assert done.exit_code == 0 and [t.answer for t in read(tmp_path / "own.jsonl")] == ["Ada", "Ada"]
    assert run(app, ["export", folder, "--to", "tasks"]).stdout.count("\n") == 1


def test_a_folder_of_tasks_is_inspected_and_exported(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"question": f"{name}?"}))
    for command in (["inspect", str(tmp_path), "--json"], ["export", str(tmp_path), "--to", "tasks"]):
        assert [json.loads(line)["question"] for line in run(app, command).stdout.splitlines()] == ["a?", "b?"]


def test_a_tree_of_runs_is_shown_part_by_part_and_what_else_lies_there_is_passed_over(tmp_path: Path) -> None:
    """As a demo or a training run leaves it: trajectories, groups of attempts, tasks, reports, a model."""
    write(tmp_path / "data" / "trajectories.jsonl", [_answered("a")])
    write(tmp_path / "rl" / "groups" / "step-0001.jsonl", [_answered("b")])
    (tmp_path / "demo.json").write_text('{\n  "seed": 7\n}')
    for folder, name, text in (
        ("world/tasks", "train.jsonl", json.dumps({"question": "a?"})),
        ("sft", "metrics.jsonl", '{"step": 1}'),
        ("sft/model", "tokenizer.json", "{not"),
    ):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / name).write_text(text)
    (tmp_path / "sft" / "model" / "model.safetensors").write_text("")
    shown = coa("inspect", str(tmp_path), "--no-pager")
    assert shown.returncode == 0 and not shown.stderr, shown.stderr
    places = [shown.stdout.index(f" {name} ") for name in ("data/trajectories.jsonl", "rl/groups/step-0001.jsonl")]
    assert places == sorted(places) and "task a" in shown.stdout and "task b" in shown.stdout
    assert f"{tmp_path / 'data' / 'trajectories.jsonl'}\n" in shown.stdout, "where to look at one alone"
    one = run(app, ["inspect", str(tmp_path), "--task", "b", "--no-pager"]).stdout
    assert " rl/groups/step-0001.jsonl " in one and " data/trajectories.jsonl " not in one
    assert run(app, ["inspect", str(tmp_path), "--json"]).stdout.count("\n") == 2


def _answered(task: str) -> Trajectory:
    return Trajectory(
        task=Task(id=task, question="Who?", answer="Ada"), profile="web", steps=(Step(agent="answer", text="Ada"),)
    )


def test_a_folder_without_data_is_told_so(tmp_path: Path) -> None:
    for command in (["inspect", str(tmp_path)], ["export", str(tmp_path), "--to", "tasks"]):
        refused = run(app, command)
        assert isinstance(refused.exception, CoaError) and "holds no .jsonl" in str(refused.exception)
