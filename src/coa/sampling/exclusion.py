"""Questions that a model was fine-tuned on, from whatever its data lie in: RL must not ask them again."""

from __future__ import annotations

from collections.abc import Iterator

from coa.trajectory.formats.detect import Content, detect, read_trajectories
from coa.trajectory.formats.rows import read_rows
from coa.trajectory.formats.sources import files
from coa.trajectory.formats.tasks import question_in, tasks_of


def questions_in(source: str) -> Iterator[str]:
    """Of trajectories, AFM's SFT rows or tasks; a file, a folder or a hub id."""
    for file in files(source):
        if detect(file) is Content.TASKS:
            yield from (task.question for task in tasks_of(read_rows(file), source=str(file)))
            continue
        for trajectory in read_trajectories(file):
            question = trajectory.task.question
            yield question
            # Some rows have the instructions and the question in one text.
            if (inside := question_in(question)) != question:
                yield inside
