"""Query sampling with models of known pass rates: which tasks are kept, why the others are not, and going on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from coa.errors import FolderError, StoreError
from coa.models.base import Sampling
from coa.models.scripted import ScriptedModel
from coa.progress import Silent
from coa.runtime import BatchProgress, Setting
from coa.sampling.attempts import Attempts
from coa.sampling.difficulty import Fate, Rate, Rules
from coa.sampling.outcomes import Sampled, agent_runs, closed_book_runs, sample_tasks, without_tools
from coa.sampling.report import folder_beside, hold_settings, report, write_report, write_tasks
from coa.scoring import PureScorer, Scorer, Verdict, scorer_for
from coa.trajectory import Stop, Task, load_profile, read
from coa.trajectory.formats.tasks import read_tasks
from support.pass_rates import GOLD, RatedModel

WEB = load_profile("web")
RULES = Rules(samples=4, no_tools_samples=4)
#        without  with
TABLE = {
    "mixed": ("----", "+-+-"),
    "once": ("+---", "---+"),  # 0.25 without tools is not more than 0.3
    "known": ("++--", "+-+-"),
    "easy": ("----", "++++"),
    "hard": ("----", "----"),
    "broken": ("----", "!!!+"),
    "unknown": ("!!!-", "+-+-"),
    "halting": ("----", "!+-!"),
}  # fmt: skip
FATES = {
    "mixed": Fate.KEPT,
    "once": Fate.KEPT,
    "known": Fate.TOOLS_NOT_NEEDED,
    "easy": Fate.ALWAYS_SOLVED,
    "hard": Fate.NEVER_SOLVED,
    "broken": Fate.UNSCORED,
    "unknown": Fate.UNSCORED,
    "halting": Fate.KEPT,
}


def tasks(*names: str) -> list[Task]:
    return [Task(id=name, question=f"Solve {name}", answer=GOLD) for name in names or TABLE]


class Try:
    """One start of the command: fresh models on what the folder holds."""

    def __init__(self, folder: Path, *, scorer: Scorer | None = None, concurrency: int = 3) -> None:
        self.plain = RatedModel({name: row[0] for name, row in TABLE.items()}, name="plain")
        self.agent = RatedModel({name: row[1] for name, row in TABLE.items()}, name="agent")
        self.folder, self.concurrency = folder, concurrency
        self.scorer = scorer or scorer_for("exact")
        self.before, self.after = (
            Attempts(folder / name / "trajectories.jsonl", self.scorer, self.scorer.name) for name in ("plain", "agent")
        )

    def __call__(self, given: list[Task], rules: Rules = RULES, **options: object) -> list[Sampled]:
        sides = (
            (closed_book_runs(self._setting(self.plain)), self.before),
            (agent_runs(self._setting(self.agent)), self.after),
        )
        return asyncio.run(sample_tasks(given, rules, *sides, progress=Silent(), **options))  # type: ignore[arg-type]

    def _setting(self, model: ScriptedModel) -> Setting:
        return Setting(model, {}, WEB, Sampling(seed=0), concurrency=self.concurrency)

    @property
    def calls(self) -> int:
        return len(self.plain.made) + len(self.agent.made)


def fates(found: list[Sampled]) -> dict[str, Fate]:
    return {item.task.id: item.fate for item in found}


def test_known_pass_rates_give_exactly_these_tasks_with_these_reasons(tmp_path: Path) -> None:
    found = Try(tmp_path)(tasks())
    assert fates(found) == FATES
    reasons = {item.task.id: item.reason for item in found}
    assert reasons["known"] == "solved without tools 2 of 4"
    assert reasons["easy"] == "solved with tools 4 of 4" and reasons["hard"] == "solved with tools 0 of 4"
    assert reasons["broken"] == "too few attempts with tools could be scored: solved 1 of 1, 3 unscored"
    assert reasons["unknown"] == "too few attempts without tools could be scored: solved 0 of 1, 3 unscored"
    assert {item.task.id: item.with_tools for item in found}["halting"] == Rate(1, 1, 2)


def test_what_needs_no_tools_is_not_run_with_them(tmp_path: Path) -> None:
    started = Try(tmp_path)
    started(tasks())
    assert {key for key, _ in started.agent.made} == set(TABLE) - {"known", "unknown"}
    assert {number for _, number in started.agent.made} == {0, 1, 2, 3}


def test_unsolved_tasks_are_kept_on_request_and_a_higher_bound_lets_more_in(tmp_path: Path) -> None:
    Try(tmp_path)(tasks())
    again = Try(tmp_path)
    changed = RULES.model_copy(update={"keep_unsolved": True, "max_without_tools": 0.5})
    found = fates(again(tasks(), changed))
    assert found == FATES | {"hard": Fate.KEPT, "known": Fate.KEPT}
    assert again.plain.made == [] and {key for key, _ in again.agent.made} == {"known"}, "other rules cost no attempt"


def test_without_the_question_whether_tools_are_needed(tmp_path: Path) -> None:
    started = Try(tmp_path)
    found = started(tasks("known", "easy"), RULES.model_copy(update={"no_tools_samples": 0}))
    assert fates(found) == {"known": Fate.KEPT, "easy": Fate.ALWAYS_SOLVED} and started.plain.made == []


def test_a_second_start_makes_no_attempt_and_finds_the_same(tmp_path: Path) -> None:
    first = Try(tmp_path)(tasks())
    again = Try(tmp_path)
    assert again(tasks()) == first and again.calls == 0


def test_more_attempts_go_on_from_those_there_are(tmp_path: Path) -> None:
    Try(tmp_path)(tasks("mixed"), RULES.model_copy(update={"samples": 2, "no_tools_samples": 2}))
    again = Try(tmp_path)
    (found,) = again(tasks("mixed"))
    assert found.with_tools == Rate(2, 2)
    assert sorted(again.plain.made + again.agent.made) == [("mixed", 2), ("mixed", 2), ("mixed", 3), ("mixed", 3)]
    (fewer,) = Try(tmp_path)(tasks("mixed"), RULES.model_copy(update={"samples": 1}))
    assert fewer.with_tools == Rate(1, 0), "asked for one attempt, the first one counts"


def test_broken_attempts_are_made_again_on_request(tmp_path: Path) -> None:
    Try(tmp_path)(tasks("broken"))
    again = Try(tmp_path)
    again.agent._rates = {"broken": "+-++"}
    again.after.retry_failed()
    (found,) = again(tasks("broken"))
    assert found.fate is Fate.KEPT and found.with_tools == Rate(3, 1) and len(again.agent.made) == 3


def test_enough_makes_no_attempt_once_the_fate_is_certain(tmp_path: Path) -> None:
    """By hand, with two wrong answers of four the bound of 0.3 x 4 = 1.2 is out of reach only at three.

    Without tools: mixed, easy, hard, broken, halting fail 3 times, then 1 of 4 could still be solved and 1 <= 1.2;
    once: + - - - needs all four, for after three 2 of 4 is possible; known: certain at the second +; unknown: all four.
    With tools: mixed is certain after + -; once after - - - +; easy, hard and broken need four; halting ! + - three.
    """
    started = Try(tmp_path)
    assert fates(started(tasks(), early_stop=True)) == FATES
    made = {name: sum(key == name for key, _ in started.plain.made) for name in TABLE}
    assert made == {"mixed": 3, "once": 4, "known": 2, "easy": 3, "hard": 3, "broken": 3, "unknown": 4, "halting": 3}
    acted = {name: sum(key == name for key, _ in started.agent.made) for name in TABLE}
    assert acted == {"mixed": 2, "once": 4, "known": 0, "easy": 4, "hard": 4, "broken": 4, "unknown": 0, "halting": 3}
    again = Try(tmp_path)
    assert fates(again(tasks(), early_stop=True)) == FATES and again.calls == 0


@pytest.mark.parametrize("enough", [True, False])
def test_which_attempts_are_made_does_not_depend_on_the_concurrency(tmp_path: Path, enough: bool) -> None:
    found = []
    for concurrency in (1, 16):
        started = Try(tmp_path / str(concurrency), concurrency=concurrency)
        found.append((started(tasks(), early_stop=enough), sorted(started.plain.made), sorted(started.agent.made)))
    assert found[0] == found[1]


def test_a_stopped_sampling_keeps_what_was_finished_and_goes_on(tmp_path: Path) -> None:
    """Stopped in the middle of an attempt, and again while one is being scored: no finished run is made twice."""

    class Slow:
        name = "exact"

        async def score(self, task: Task, answer: str | None) -> Verdict:
            await asyncio.sleep(60)
            raise AssertionError

        async def close(self) -> None:
            pass

    async def stopped(start: Try) -> None:
        side = (closed_book_runs(start._setting(start.plain)), start.before)
        idle = (agent_runs(start._setting(start.agent)), start.after)
        working = asyncio.create_task(sample_tasks(tasks("mixed"), RULES, side, idle, progress=Silent()))
        while not start.plain.made:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)

    first = Try(tmp_path, scorer=Slow(), concurrency=1)
    asyncio.run(stopped(first))
    (kept,) = read(first.before.file)
    assert kept.stop is Stop.ANSWERED and not kept.scores
    again = Try(tmp_path)
    assert fates(again(tasks("mixed"))) == {"mixed": Fate.KEPT}
    assert sorted(again.plain.made) == [("mixed", 1), ("mixed", 2), ("mixed", 3)]
    assert sorted(t.sample for t in read(first.before.file)) == [0, 1, 2, 3]


def test_what_nobody_could_score_is_scored_again_when_it_is_read(tmp_path: Path) -> None:
    down = PureScorer("exact", lambda task, answer: Verdict(None, "the judge is down", "exact", broken=True))
    first = Try(tmp_path, scorer=down)
    assert fates(first(tasks("mixed"))) == {"mixed": Fate.UNSCORED}
    again = Try(tmp_path)
    assert fates(again(tasks("mixed"))) == {"mixed": Fate.KEPT} and again.plain.made == []


def test_another_scorer_or_another_right_answer_judges_the_same_attempts_anew(tmp_path: Path) -> None:
    Try(tmp_path)(tasks("easy"))
    harsh = PureScorer("harsh", lambda task, answer: Verdict(0.0, "no", "harsh"))
    other = Try(tmp_path, scorer=harsh)
    assert fates(other(tasks("easy"))) == {"easy": Fate.NEVER_SOLVED} and other.calls == 0
    corrected = [Task(id="easy", question="Solve easy", answer="something else")]
    again = Try(tmp_path)
    assert fates(again(corrected)) == {"easy": Fate.NEVER_SOLVED} and again.calls == 0


def test_attempts_at_another_question_are_refused(tmp_path: Path) -> None:
    Try(tmp_path)(tasks("easy"))
    with pytest.raises(StoreError, match="another task under the id 'easy'"):
        Try(tmp_path)([Task(id="easy", question="Solve mixed", answer=GOLD)])


def test_questions_of_the_fine_tuning_are_not_tried(tmp_path: Path) -> None:
    started = Try(tmp_path)
    found = started(tasks("mixed", "once"), trained_on=["  solve MIXED!"])
    assert fates(found) == {"mixed": Fate.IN_SFT_DATA, "once": Fate.KEPT}
    assert {key for key, _ in started.plain.made} == {"once"}


@pytest.mark.parametrize("ending", ["jsonl", "json", "parquet"])
def test_kept_tasks_carry_their_rates_and_dropped_ones_their_reason(tmp_path: Path, ending: str) -> None:
    out = tmp_path / f"rl.{ending}"
    folder = folder_beside(out)
    found = Try(folder)(tasks())
    assert write_tasks(out, found, model="agent", no_tools_model="plain") == 3
    kept = list(read_tasks(out))
    assert [task.id for task in kept] == ["mixed", "once", "halting"] and kept[0].answer == (GOLD,)
    measured: Any = kept[1].meta["sampling"]
    assert measured["with_tools"] == {"solved": 1, "scored": 4, "unscored": 0, "rate": 0.25}
    assert measured["without_tools"]["rate"] == 0.25 and measured["model"] == "agent"
    dropped = (folder / "dropped.jsonl").read_text().splitlines()
    assert len(dropped) == 5 and '"dropped":"tools_not_needed","reason":"solved without tools 2 of 4"' in dropped[0]


def test_the_report_counts_every_task_once_and_unscored_attempts_apart(tmp_path: Path) -> None:
    found = Try(tmp_path)(tasks())
    settings = {"model": "<agent>", "tool": ["code"], "mcp": [], "seed": None}
    data = write_report(tmp_path, found, RULES, settings)
    assert data == report(found, RULES, settings)
    assert data["tasks"] == 8 and data["kept"] == 3
    assert data["dropped"] == {"tools_not_needed": 1, "unscored": 2, "always_solved": 1, "never_solved": 1}
    # Without tools: mixed, easy, hard, broken and halting 0 of 4, once 1, known 2; unknown has no rate.
    assert data["solved_without_tools"] == [5, 1, 1, 0, 0]
    # With tools: hard 0, once 1, mixed and halting (1 of 2) 2, easy 4; broken has no rate.
    assert data["solved_with_tools"] == [1, 1, 2, 0, 1]
    assert data["unscored_attempts"] == 3 + 3 + 2 and data["attempts"] == 8 * 4 + 6 * 4
    page = (tmp_path / "report.html").read_text()
    assert page.count('class="bars"') == 3 and "&lt;agent&gt;" in page and "unscored, 2" in page
    assert "<td>tool</td><td>code</td>" in page and "<td>mcp</td><td>none</td>" in page and "<td>None</td>" not in page


def test_nothing_kept_leaves_no_older_selection(tmp_path: Path) -> None:
    out = tmp_path / "rl.jsonl"
    out.write_text('{"id": "old", "question": "?"}\n')
    assert write_tasks(out, Try(folder_beside(out))(tasks("hard")), model="agent") == 0 and not out.exists()


def test_attempts_made_in_another_way_are_not_mixed(tmp_path: Path) -> None:
    hold_settings(tmp_path, {"model": "a", "seed": None, "tool": ("x",)}, RULES)
    hold_settings(tmp_path, {"model": "a", "seed": None, "tool": ["x"]}, RULES.model_copy(update={"samples": 9}))
    with pytest.raises(FolderError, match="model was 'a' and is now 'b'"):
        hold_settings(tmp_path, {"model": "b", "seed": None, "tool": ["x"]}, RULES)


@pytest.mark.parametrize("name", ["web", "mhqa", "code", "math", "all", "nano"])
def test_without_tools_the_model_is_offered_none(name: str) -> None:
    bare = without_tools(load_profile(name))
    assert bare.tools == () and bare.tags == {"think", "answer", "observation"}
    assert bare.shape("answer") == load_profile(name).shape("answer")
    prompt = bare.system_prompt
    assert "web_search" not in prompt and "<code>" not in prompt and "<answer>" in prompt


def test_a_model_that_knows_no_tags_is_heard_all_the_same(tmp_path: Path) -> None:
    """Plain chat models answer in plain text first; told about the form, they answer in it."""
    replies = iter(["It is right.", "<answer>right</answer>"])
    model = ScriptedModel(lambda context: next(replies))
    setting = Setting(model, {}, WEB, Sampling(), None, None, lambda task: None)
    attempts = Attempts(tmp_path / "t.jsonl", scorer_for("exact"), "exact")

    async def go() -> list[float | None]:
        made = closed_book_runs(setting)(tasks("easy"), [0], attempts, BatchProgress())
        return [trajectory.scores["success"].value async for trajectory in made]

    assert asyncio.run(go()) == [1.0]
