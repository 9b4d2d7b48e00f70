"""The atlas: one seed gives one world, splits share nothing, and nothing gives an answer away."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from coa.errors import TokenizerError, WorldError
from coa.models.tokenizer import load_tokenizer
from coa.tools.index import Index as SearchIndex
from coa.worlds.atlas import Atlas, Sizes
from coa.worlds.atlas.entities import INDEXED, OUTDATED, PAPER, REPORT, RESULTS, Split
from coa.worlds.atlas.names import FIRST, LAST, names
from coa.worlds.atlas.questions import Family, answer_of, follow, walk
from coa.worlds.atlas.wordings import (
    APART,
    ASK,
    ASK_ALSO,
    COMPARE,
    HOPS,
    MORE,
    NOUNS,
    SUMS,
    TOGETHER,
    WHO,
    Wordings,
)
from coa.worlds.folder import build, locate, read
from coa.worlds.team.phrases import done, plan, stages
from support.worlds import SMALL

ATLAS = Atlas()


def _files(folder: Path) -> dict[str, bytes]:
    kept = [path for part in ("pages", "tasks") for path in (folder / part).rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in [*kept, folder / "world.json"]}


def test_the_same_seed_gives_the_same_world_byte_for_byte(tmp_path: Path) -> None:
    build(Atlas(3, SMALL), tmp_path / "a")
    # Another process with another order of hashes.
    code = (
        "from pathlib import Path; from coa.worlds.atlas import Atlas, Sizes; from coa.worlds.folder import build;"
        f"build(Atlas(3, Sizes(40, 60, 20, 40, 20, 40)), Path({str(tmp_path / 'b')!r}))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONHASHSEED": "77"})
    assert _files(tmp_path / "a") == _files(tmp_path / "b")
    build(Atlas(4, SMALL), tmp_path / "c")
    assert _files(tmp_path / "a") != _files(tmp_path / "c")


def test_splits_share_no_name_and_link_to_themselves_only() -> None:
    names = {split: {page.name for page in ATLAS.pages.values() if page.split is split} for split in Split}
    assert not (names[Split.TRAIN] & names[Split.TEST] or names[Split.RL] & names[Split.TEST])
    assert not names[Split.TRAIN] & names[Split.RL]
    for page in ATLAS.pages.values():
        for value in page.facts.values():
            assert value not in ATLAS.pages or ATLAS.pages[value].split is page.split
    for split in (Split.TRAIN, Split.RL):
        for task in ATLAS.tasks(split):
            words = set(re.findall(r"\w+", f"{task.question} {task.answer[0]}"))
            assert not words & names[Split.TEST]


@pytest.mark.parametrize("seed", range(4))
def test_what_a_search_is_filled_up_with_is_of_the_training_split(seed: int, tmp_path: Path) -> None:
    """Of equal results the first addresses are shown, whatever name was asked for and however the index was built."""
    atlas = Atlas(seed)
    build(atlas, tmp_path / "world")
    index = SearchIndex(tmp_path / "world" / "index")
    for kind in INDEXED:
        shown = [hit.passage.id.partition("#")[0] for hit in index.search(f"{kind} Nobody", RESULTS)]
        assert [atlas.pages[address].split for address in shown] == [Split.TRAIN] * RESULTS, kind


def _patterns(wordings: Wordings) -> list[re.Pattern[str]]:
    """Test-only wordings as they would look in a question."""
    return [
        re.compile(r"(?i)\b" + re.sub(r"\\\{\w+\\\}", ".+", re.escape(text)).rstrip("?.\\") if "{" in text else text)
        for text in wordings.unseen
    ]


def test_wordings_of_the_test_alone_are_in_no_training_question() -> None:
    frames = [
        ASK,
        COMPARE,
        TOGETHER,
        APART,
        *(one.wordings for one in SUMS),
        *(Wordings((), texts) for texts in ASK_ALSO.values()),
    ]
    parts = [*WHO.values(), *HOPS.values(), *NOUNS.values(), *MORE.values()]
    patterns = [pattern for wordings in (*frames, *parts) for pattern in _patterns(wordings)]
    trained = [task.question for split in (Split.TRAIN, Split.RL) for task in ATLAS.tasks(split)]
    for pattern in patterns:
        assert not [question for question in trained if pattern.search(question)], pattern.pattern
    unseen = [task.question for task in ATLAS.tasks(Split.TEST) if task.meta["wording"] == "unseen"]
    assert len(unseen) == len(ATLAS.tasks(Split.TEST)) / 2
    assert all(any(pattern.search(question) for pattern in patterns) for question in unseen)
    seen = [task.question for task in ATLAS.tasks(Split.TEST) if task.meta["wording"] == "seen"]
    assert not any(pattern.search(question) for question in seen for pattern in patterns)


def test_what_the_expert_says_after_a_page_stands_in_its_plan() -> None:
    """A small model goes on by copying; see `phrases.done`."""
    lengths = set()
    for question in ATLAS.questions[Split.TRAIN]:
        for page in range(len(stages(question.solution)) - 1):
            lengths.add(page)
            assert done(question.solution, page).removeprefix("Read ").rstrip(".") in plan(question.solution)
    assert lengths == {0, 1, 2}


def test_every_family_is_asked_in_several_ways() -> None:
    assert min(len(ASK.seen), len(COMPARE.seen), len(TOGETHER.seen), len(APART.seen)) >= 4
    assert sum(len(one.wordings.seen) for one in SUMS) >= 8
    for split in Split:
        questions = [task.question for task in ATLAS.tasks(split)]
        assert len(set(questions)) == len(questions)
        assert {task.meta["family"] for task in ATLAS.tasks(split)} == set(Family)


def test_tasks_say_what_they_are_and_answers_follow_from_the_pages() -> None:
    for split in Split:
        for question in ATLAS.questions[split]:
            task, solution = question.task, question.solution
            assert task.meta.keys() == {"family", "split", "wording", "hops"} and task.profile == "atlas"
            for lookup in solution.lookups:
                assert len(set(walk(lookup, ATLAS.pages))) == len(lookup.fields) + 1
            values = [follow(lookup, ATLAS.pages) for lookup in solution.lookups]
            if solution.family in (Family.ONE_HOP, Family.TWO_HOP, Family.THREE_HOP, Family.PAGE_ONLY):
                assert task.answer == (answer_of(values[0]),)
                assert task.answer[0] not in task.question
            assert task.meta["hops"] == sum(len(lookup.fields) for lookup in solution.lookups)


def test_an_old_newspaper_contradicts_the_city_and_says_which_counts() -> None:
    papers = [page for page in ATLAS.pages.values() if page.kind == PAPER]
    assert len(papers) > 40
    for paper in papers:
        city = ATLAS.pages[paper.facts[OUTDATED]]
        assert city.name == paper.name and city.facts["population"] != paper.facts["population"]


def test_what_page_only_questions_ask_for_is_on_no_page_that_search_finds() -> None:
    for split in Split:
        for question in ATLAS.questions[split]:
            if question.solution.family is Family.PAGE_ONLY:
                firm = ATLAS.pages[question.solution.lookups[0].start]
                report = ATLAS.pages[firm.facts["report"]]
                assert report.kind == REPORT and not report.indexed
                assert question.task.answer[0] not in firm.facts.values()


def test_names_are_two_pieces_of_the_small_models_vocabulary_wherever_they_stand() -> None:
    try:
        tokenizer = load_tokenizer("smollm2")
    except TokenizerError as error:
        pytest.skip(error.message)
    for name in (first + last for first in FIRST for last in LAST):
        around = tokenizer.encode([name, f" {name}", f"k/{name}", f"\n{name}"])
        assert [len(ids) for ids in around] == [2, 2, 4, 3], name


def test_larger_worlds_get_longer_names_and_too_large_ones_a_reason() -> None:
    made = names(2000, random.Random(0))
    assert len(set(made)) == 2000
    with pytest.raises(WorldError, match="make it smaller"):
        names(100_000, random.Random(0))
    assert len(Atlas(1, Sizes(cities=900, people=900, firms=300, train=10, rl=10, test=10)).pages) > 2400


def test_a_world_is_found_by_name_or_folder_and_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COA_CACHE", str(tmp_path))
    folder = locate("atlas:11")
    stamp = (folder / "world.json").stat().st_mtime_ns
    assert locate("atlas:11") == folder and (folder / "world.json").stat().st_mtime_ns == stamp
    assert read(folder).atlas().hash == read(folder).hash
    assert locate(folder) == folder
    for wrong in ("mars", "atlas:x", str(tmp_path)):
        with pytest.raises(WorldError):
            locate(wrong)


def test_a_folder_that_is_another_world_or_none_is_not_overwritten(tmp_path: Path) -> None:
    build(Atlas(1, SMALL), tmp_path / "w")
    build(Atlas(1, SMALL), tmp_path / "w")  # the same: nothing to do
    with pytest.raises(WorldError, match="another world"):
        build(Atlas(2, SMALL), tmp_path / "w")
    assert build(Atlas(2, SMALL), tmp_path / "w", force=True).seed == 2
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(WorldError, match="not a world"):
        build(Atlas(1, SMALL), tmp_path / "mine", force=True)
    assert (tmp_path / "mine" / "thesis.txt").exists()
