"""A trajectory that every filter keeps, and ways to break it in one place."""

from __future__ import annotations

from coa.distill.config import DistillConfig, Length
from coa.distill.filters import FILTERS
from coa.distill.filters.base import Dropped, FilterInput
from coa.distill.filters.contamination import BenchmarkQuestions
from coa.distill.filters.quality import SCORE
from coa.trajectory import Profile, Step, Task, Trajectory, load_profile, observation
from support.tokenizers import tokenizer

WEB: Profile = load_profile("web")
QUESTION = "In which year did the lighthouse keeper of the northern island publish her only novel?"
CONFIG = DistillConfig(length=Length(max_tokens=5_000))
BENCHMARK_QUESTION = (
    "What is the surname of the equine veterinarian mentioned in the chemistry exercises of last spring?"
)


def benchmarks() -> BenchmarkQuestions:
    found = BenchmarkQuestions(CONFIG.contamination.words)
    found.add([BENCHMARK_QUESTION])
    return found


def good(*, question: str = QUESTION, answer: str = "1897", task_id: str = "t1", reflects: bool = True) -> Trajectory:
    """Five calls, one of them failed and reflected upon, a check, and the right answer."""
    steps = [
        _think("I need the keeper's name first."),
        Step(agent="plan", text="1. find the keeper 2. find her novel 3. read when it came out"),
    ]
    queries = ["northern island lighthouse keeper", "keeper Corran novel", "Corran novel publication year"]
    for number, query in enumerate(queries):
        steps += [_think(f"Look up part {number}."), Step(agent="web_search", text=query)]
        steps += [observation(f"result {number} about {query}", meta={"ok": True})]
    steps += [_think("Read the archive."), Step(agent="crawl_page", text="https://atlas.example/corran")]
    steps += [observation("error: HTTP 503", meta={"ok": False})]
    if reflects:
        steps += [
            _think("That page is away."),
            Step(agent="reflection", text="The archive does not answer; a copy may.\ntool effectiveness: average"),
        ]
    steps += [_think("Read the copy."), Step(agent="crawl_page", text="https://mirror.example/corran")]
    steps += [observation("Corran published her novel in 1897.", meta={"ok": True})]
    steps += [
        _think("That settles it."),
        Step(agent="suggested_answer", text=answer),
        _think("Compare with the page."),
        Step(agent="double_check", text="The page names the year.\nscore: 4"),
        _think("Done."),
        Step(agent="answer", text=answer),
    ]
    task = Task(id=task_id, question=question, answer=answer)
    return Trajectory(task=task, profile="web", steps=tuple(steps)).scored(SCORE, 1.0)


def _think(text: str) -> Step:
    return Step(agent="think", text=text)


def replaced(trajectory: Trajectory, index: int, text: str, **rest: object) -> Trajectory:
    steps = list(trajectory.steps)
    steps[index] = steps[index].model_copy(update={"text": text, **rest})
    return trajectory.model_copy(update={"steps": tuple(steps)})


def indices(trajectory: Trajectory, agent: str) -> list[int]:
    return [index for index, step in enumerate(trajectory.steps) if step.agent == agent]


def verdicts(trajectory: Trajectory, config: DistillConfig = CONFIG) -> dict[str, Dropped]:
    """What every filter says on its own, without regard to the others."""
    given = FilterInput(WEB, config, tokenizer("byte_bpe"), benchmarks())
    said = {each.name: each(trajectory, given) for each in FILTERS}
    return {name: dropped for name, dropped in said.items() if isinstance(dropped, Dropped)}


def second_thoughts() -> Trajectory:
    """A run whose first check failed and that ended right."""
    run = good()
    at = indices(run, "suggested_answer")[0]
    low = [
        Step(agent="suggested_answer", text="1901"),
        Step(agent="think", text="Check."),
        Step(agent="double_check", text="No page says so.\nscore: 1"),
        Step(agent="think", text="Again."),
        Step(agent="plan", text="read the copy"),
        Step(agent="think", text="Now I have it."),
    ]
    return run.model_copy(update={"steps": (*run.steps[:at], *low, *run.steps[at:])})
