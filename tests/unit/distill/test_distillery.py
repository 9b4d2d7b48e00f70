"""The whole of it: funnel, files, and the promise that order and repetition change nothing."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from coa.distill.config import Complexity, Contamination, DistillConfig, Duplicates, Reflection
from coa.distill.filters.contamination import BenchmarkQuestions
from coa.distill.filters.questions import DUPLICATES
from coa.distill.funnel import Funnel
from coa.distill.known_tasks import KnownTasks
from coa.distill.pipeline import Distillery, Item
from coa.distill.report import write_report
from coa.distill.team_run import Skipped, TeamRun
from coa.scoring import scorer_for
from coa.trajectory import Message, Task, Trajectory, load_profile, read
from support.distilled import good, replaced, second_thoughts
from support.told_teams import tower

WEB = load_profile("web")
SETTINGS = {"profile": "web", "scorer": "rules", "fill": None, "config": DistillConfig().filter_settings()}


def distil(items: Iterable[Item], out: Path, config: DistillConfig | None = None, **rest: Any) -> Funnel:
    async def go() -> Funnel:
        scorer = scorer_for("exact")
        return await Distillery(WEB, config or DistillConfig(), scorer, **rest).run(items, out)

    return asyncio.run(go())


def many() -> list[Item]:
    """Runs that are kept, dropped for several reasons, alike, and unreadable."""
    places = ["northern", "southern", "eastern", "western", "outer", "inner"]
    kept = [
        good(task_id=f"t{n}", question=f"Who kept the light on the {place} isle?") for n, place in enumerate(places)
    ]
    dropped = [good(task_id=f"w{n}", question=f"Wrong question number {n * 7919}?", answer="no") for n in range(4)]
    wrong = [run.model_copy(update={"task": run.task.model_copy(update={"answer": ("yes",)})}) for run in dropped]
    plain = [good(task_id=f"p{n}", question=f"Plain {n * 104729} one?", reflects=False) for n in range(12)]
    again = [good(task_id="t0", question=f"Who kept the light on the {places[0]} isle?")]
    alike = [good(task_id="alike", question="Who kept the light on the northern isle ?!")]
    teams = [renamed(tower(), f"team{n}", f"How tall is tower number {n * 15485863}?") for n in range(3)]
    return [*kept, *wrong, *plain, *again, *alike, *teams, Skipped(file="x.json", reason="no JSON")]


def renamed(run: TeamRun, identity: str, question: str) -> TeamRun:
    return run.model_copy(update={"task": Task(id=identity, question=question, answer="330 m")})


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def test_order_of_input_changes_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    items, found = many(), []
    for seed in range(4):
        shuffled = items[:]
        random.Random(seed).shuffle(shuffled)
        out = tmp_path / str(seed) / "data"
        write_report(out, distil(shuffled, out, DistillConfig(concurrency=1 + 7 * seed)), SETTINGS, [])
        found.append(contents(out))
    assert found[0] == found[1] == found[2] == found[3]
    assert set(found[0]) == {"README.md", "report.html", "report.json", "trajectories.jsonl", "trajectories.parquet"}


def test_a_second_run_into_the_same_folder_gives_the_same_bytes(tmp_path: Path) -> None:
    distil(many(), tmp_path)
    first = contents(tmp_path)
    distil(many(), tmp_path)
    assert contents(tmp_path) == first


def test_another_seed_keeps_others_by_lot(tmp_path: Path) -> None:
    kept = []
    for seed in (0, 1):
        distil(many(), tmp_path / str(seed), DistillConfig(seed=seed))
        kept.append({run.task.id for run in read(tmp_path / str(seed))})
    assert kept[0] != kept[1]


def test_the_funnel_adds_up_and_gives_reasons_with_examples(tmp_path: Path) -> None:
    found = distil(many(), tmp_path)
    told = found.to_json()
    stages = {row["stage"]: row for row in told["stages"]}
    assert found.entered == len(many()) - 1 and told["read"]["unreadable_places"][0]["file"] == "x.json"
    assert all(row["in"] - row["dropped"] == row["kept"] for row in told["stages"])
    assert [a["kept"] for a in told["stages"]][:-1] == [b["in"] for b in told["stages"]][1:]
    assert stages["duplicates"]["kept"] == found.kept == len({run.task.id for run in read(tmp_path)})
    wrong = stages["quality"]["reasons"]["wrong_answer"]
    assert wrong["count"] == 4 and len(wrong["examples"]) == 3
    assert stages["reflection"]["reasons"]["no_reflection"]["count"] > 0
    assert stages["duplicates"]["reasons"]["same_trajectory"]["count"] == 1
    assert told["roles"]["checker"] == {"verify by name": 3}


def test_both_files_hold_the_same_rows(tmp_path: Path) -> None:
    distil(many(), tmp_path)
    rows = list(read(tmp_path / "trajectories.jsonl"))
    assert rows == list(read(tmp_path / "trajectories.parquet")) and rows
    assert all(row.scores["answer"].value == 1.0 for row in rows)


def test_near_duplicates_with_the_same_answer_go_and_templates_with_others_stay(tmp_path: Path) -> None:
    def run(name: str, question: str, answer: str) -> Item:
        return good(task_id=name, question=question, answer=answer)

    items = [
        run("a", "Which river runs through the old market town of Brannock in the north?", "Sill"),
        run("b", "Which river runs through the old market town of Brannock in the North ?", "Sill"),
        run("c", "Which river runs through the old market town of Brannock, in the north", "the Sill"),
        run("d", "Which river runs through the old market town of Brammock in the north?", "Corran"),
        run("e", "Which river runs through the old market town of Brannocks in the north?", "Sill"),
    ]
    found = distil(items, tmp_path)
    kept = {item.task.id for item in read(tmp_path)}
    assert "d" in kept and len(kept) == 2
    assert sum(found.dropped[DUPLICATES].values()) == 3


def after(run: Trajectory, said: str) -> Trajectory:
    """The run as one that follows an earlier question and answer."""
    earlier = (Message(role="user", content="Which town do you mean?"), Message(role="assistant", content=said))
    task = run.task.model_copy(update={"id": said, "conversation": earlier})
    return run.model_copy(update={"task": task})


def test_one_question_in_two_conversations_is_no_duplicate(tmp_path: Path) -> None:
    distil([after(good(), said) for said in ("Brannock, where the river bends", "Oslo")], tmp_path)
    assert [run.task.id for run in read(tmp_path)] == ["Brannock, where the river bends", "Oslo"]


def test_right_answers_come_from_the_task_with_the_same_conversation() -> None:
    tasks = [after(good(answer=answer), answer).task for answer in ("1897", "1902")]
    known = KnownTasks(tasks)
    asked = tasks[1].model_copy(update={"id": "trace-3", "answer": ()})
    assert known.find(asked).answer == ("1902",)
    alone = Task(id="trace-4", question=asked.question)
    assert known.find(alone) is alone


def test_several_attempts_at_one_task_are_kept_on_request_and_numbered(tmp_path: Path) -> None:
    items = [replaced(good(), 0, f"Thought {n}.") for n in range(4)]
    config = DistillConfig(duplicates=Duplicates(per_question=3))
    assert distil(items, tmp_path, config).kept == 3
    assert [run.key for run in read(tmp_path)] == [("t1", 0), ("t1", 1), ("t1", 2)]


def test_self_corrections_are_written_twice(tmp_path: Path) -> None:
    found = distil([second_thoughts()], tmp_path)
    assert (found.kept, found.rows, found.corrected) == (1, 2, 1)
    assert [run.meta.get("copy") for run in read(tmp_path)] == [None, 1]


def test_benchmark_questions_stay_out(tmp_path: Path) -> None:
    benchmarks = BenchmarkQuestions(8)
    benchmarks.add([good().task.question])
    found = distil([good()], tmp_path, DistillConfig(contamination=Contamination(words=8)), benchmarks=benchmarks)
    assert found.kept == 0 and list(read(tmp_path)) == []


def test_right_answers_come_from_a_task_file_by_question(tmp_path: Path) -> None:
    run = tower()
    unknown = run.model_copy(update={"task": Task(id="trace-77", question=run.task.question)})
    assert distil([unknown], tmp_path / "a").kept == 0
    known = KnownTasks([Task(id="tower", question="How tall is the tower?", answer="330 m")])
    config = DistillConfig(complexity=Complexity(fewest_calls=1), reflection=Reflection(kept_without=1))
    assert distil([unknown], tmp_path / "b", config, tasks=known).kept == 1


def test_an_id_alone_does_not_bring_a_foreign_answer() -> None:
    known = KnownTasks([Task(id="1", question="Who?", answer="Ada")])
    stranger = Task(id="1", question="Where is it?")
    assert known.find(stranger) is stranger


def test_a_list_of_questions_takes_no_answer_away() -> None:
    told = Task(id="t", question="Who?", answer="Ada")
    assert KnownTasks([Task(id="1", question="who")]).find(told).answer == ("Ada",)
    assert KnownTasks([Task(id="1", question="who", answer="Eve")]).find(told).answer == ("Eve",)


def test_the_report_opens_offline_and_shows_text_as_text(tmp_path: Path) -> None:
    evil = good(task_id="<script>alert(1)</script>", answer="no")
    evil = evil.model_copy(update={"task": evil.task.model_copy(update={"answer": ("yes",)})})
    found = distil([evil], tmp_path)
    write_report(tmp_path, found, SETTINGS, ["Length was not measured."])
    page = (tmp_path / "report.html").read_text()
    assert "<script" not in page and "&lt;script&gt;" in page
    assert (
        'class="bars"' in page
        and page.count("http") == page.count("http://127.0.0.1:8090/#/folder/") + page.count("http-equiv")
        and "src=" not in page
    )
    assert json.loads((tmp_path / "report.json").read_text())["notes"] == ["Length was not measured."]
    assert (tmp_path / "README.md").read_text().startswith("---\nconfigs:")


def test_an_interrupted_run_leaves_what_was_there(tmp_path: Path) -> None:
    distil(many(), tmp_path)
    before = contents(tmp_path)

    def broken() -> Iterable[Item]:
        yield good(task_id="new")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        distil(broken(), tmp_path)
    assert contents(tmp_path) == before
