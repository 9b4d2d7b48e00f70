"""Right answers for traces that do not carry them: tasks of a file, found by id or by question."""

from __future__ import annotations

from collections.abc import Iterable

from coa.distill.filters.questions import plain
from coa.trajectory import Task


class KnownTasks:
    def __init__(self, tasks: Iterable[Task] = ()) -> None:
        self._by_id: dict[str, Task] = {}
        self._by_question: dict[str, Task] = {}
        for task in tasks:
            self._by_id[task.id] = task
            self._by_question.setdefault(plain(task.question_in_context), task)

    def find(self, task: Task) -> Task:
        """The known task with the same question, or the same id and a question that contains it; else `task`."""
        if not self._by_id:
            return task
        asked = plain(task.question_in_context)
        known = self._by_question.get(asked)
        if known is None:
            named = self._by_id.get(task.id)
            # Ids such as "1" occur in every set; the question must agree.
            known = named if named is not None and plain(named.question) in asked else None
        if known is None:
            return task
        if not known.answer and known.tests is None:
            # A file of questions without answers: the right answer of the trace is kept.
            return known.model_copy(update={"answer": task.answer, "tests": task.tests})
        return known
