"""Text to measure on: runs of ordinary shape and size, generated, the same every time."""

from __future__ import annotations

import random

from coa.trajectory import Profile, Step, Task, Trajectory, load_profile, observation

WEB: Profile = load_profile("web")
_COMMON = "the of and to in a is that for it as was with be by on not he his but at are this have from or had an they"
_RARE = "lighthouse harbour archive railway novelist province 1871 1,204 42 Brannock Corran https://atlas.example/a-b"
_WORDS = [*_COMMON.split(), *_RARE.split()]


def ordinary_runs(count: int, *, seed: int = 0) -> list[Trajectory]:
    """Web runs of four searches: thoughts of 40 words, pages of 400."""
    rng = random.Random(seed)

    def words(number: int) -> str:
        return " ".join(rng.choice(_WORDS) for _ in range(number))

    runs = []
    for index in range(count):
        steps = [Step(agent="think", text=words(40)), Step(agent="plan", text=words(60))]
        for _ in range(4):
            steps += [
                Step(agent="think", text=words(40)),
                Step(agent="web_search", text=words(6)),
                observation(words(400)),
            ]
        steps += [Step(agent="think", text=words(40)), Step(agent="answer", text=words(4))]
        runs.append(Trajectory(task=Task(id=str(index), question=words(20)), profile="web", steps=tuple(steps)))
    return runs
