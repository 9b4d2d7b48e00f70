"""What nano says about itself, and what its world knows about a question."""

from __future__ import annotations

from pathlib import Path

import pytest

from coa.models.tokenizer import NANO, result_folder
from coa.runtime.nano import about_nano, outside_training
from coa.worlds.atlas.entities import Split
from coa.worlds.folder import known_answer, names_in, read, sample_task
from support.worlds import small_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(small_world(tmp_path_factory.mktemp("worlds") / "w"))


def test_it_names_the_figure_of_its_model_card() -> None:
    card = (Path(result_folder(NANO)) / "README.md").read_text()
    assert "67.0% [60.2%, 73.1%] of 200" in card
    assert "67.0% of 200 held-out questions right" in about_nano()
    assert "atlas" in about_nano() and all(len(line) <= 80 for line in about_nano().splitlines())


def test_the_world_knows_the_answers_to_its_own_questions(world: str) -> None:
    task = sample_task(world, seed=3)
    assert task == sample_task(world, seed=3) and task.answer
    assert known_answer(world, f" {task.question} ") == task.answer
    assert known_answer(world, "What is the capital of France?") == ()


def test_no_question_that_it_was_trained_on_is_called_foreign(world: str) -> None:
    atlas = read(world).atlas()
    assert [t.question for split in Split for t in atlas.tasks(split) if outside_training(t.question, world)] == []


def test_questions_about_other_things_are_called_foreign(world: str) -> None:
    for question in ("What is the capital of France?", "asdf qwer zxcv"):
        assert "not trained" in (outside_training(question, world) or "")
    assert outside_training("What is 17 * 23?", world) is None
    page = next(iter(read(world).atlas().pages.values()))
    assert page.name in names_in(world, f"What about {page.name.upper()}?")
