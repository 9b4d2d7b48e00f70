"""The groups of a step: what attempts were worth, why, and what was cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from coa.trajectory import RepairKind, Score, Step, Stop, Task, Trajectory, Usage, load_profile, observation, write
from coa.trajectory.identity import run_id
from coa.trajectory.shorten import shorten
from coa.trajectory.types import FrozenDict, Repair, Tokens
from coa.view.folders import rl_step
from coa.view.folders.rl_groups import GroupView, cuts_of

WEB = load_profile("web")


def attempt(
    sample: int, reward: float, *, group: int = 0, success: float | None = None, learnt: bool = True, step: int = 1,
    note: str = "", **rest: Any,
) -> Trajectory:  # fmt: skip
    value = reward if success is None else success
    scores = {"success": Score(value=value, reason="exact"), "counted": Score(value=value, reason=note),
              "reward": Score(value=reward)}  # fmt: skip
    told = {"step": step, "group": group, "reward": reward, "advantage": reward - 0.5, "learnt": learnt}
    steps = rest.pop("steps", (Step(agent="answer", text="Ada", tokens=Tokens(ids=(1, 2, 3))),))
    return Trajectory(
        task=Task(id=f"t{group}", question="Who?", answer="Ada", meta={"family": "one_hop"}), profile="web",
        profile_hash=WEB.hash, steps=steps, sample=sample, scores=scores, meta=FrozenDict({"rl": told}),
        usage=Usage(tool_calls=2), **rest,
    )  # fmt: skip


def groups(folder: Path, *runs: Trajectory, step: int = 1, **config: Any) -> list[GroupView]:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"stage": "rl", "config": {"num_generations": 2, **config}}))
    write(folder / "groups" / f"step-{step:04}.jsonl", runs)
    found = rl_step(folder, step)
    assert found is not None and found["problems"] == []
    return found["groups"]


def test_the_attempts_of_a_group_are_side_by_side(tmp_path: Path) -> None:
    (group,) = groups(tmp_path, attempt(0, 1.0), attempt(1, 0.0))
    assert (group["task"], group["family"], group["expected"], group["learnt"]) == ("t0", "one_hop", ["Ada"], True)
    assert (group["mean"], group["spread"], group["missing"], group["why"]) == (0.5, 0.5, 0, "")
    first, second = group["attempts"]
    assert (first["outcome"], first["score"], first["reward"], first["advantage"]) == ("right", 1.0, 1.0, 0.5)
    assert (second["outcome"], second["advantage"], second["reason"]) == ("wrong", -0.5, "exact")
    assert first["id"] == run_id(tmp_path / "groups" / "step-0001.jsonl", 0)
    assert first["tokens"] == 3
    (piece,) = first["ribbon"]
    assert (piece["agent"], piece["kind"], piece["size"]) == ("Answer", "answer", 3)


def test_a_group_that_was_not_learnt_from_says_why(tmp_path: Path) -> None:
    def pair(group: int, *rewards: float, **rest: Any) -> list[Trajectory]:
        return [attempt(n, reward, group=group, learnt=False, **rest) for n, reward in enumerate(rewards)]

    found = groups(
        tmp_path, *pair(0, 1.0, 1.0), *pair(1, 0.0, 0.0), *pair(2, 0.1, 0.2, success=0.0), *pair(3, 0.0, 1.0),
        *pair(4, 1.0), attempt(0, 1.0, group=5, step=1), attempt(1, 0.0, group=5, step=1), step=2,
    )  # fmt: skip
    # The groups that say they are of step 1 were sampled then.
    assert [group["why"] for group in found] == [
        "Not learnt from, no contrast: all attempts are right, so every advantage is zero.",
        "Not learnt from, no contrast: all attempts are wrong, so every advantage is zero.",
        "Not learnt from, no contrast: only small terms of the reward differ, not the score.",
        "Not learnt from in this step, surplus: it is kept for the next steps.",
        "Not learnt from: there is nothing to compare a single attempt with.",
        "Sampled in step 1 and kept as surplus until now.",
    ]
    assert found[4]["missing"] == 1


def test_the_reward_is_taken_apart(tmp_path: Path) -> None:
    weights = {"format_weight": 0.1, "tool_call_weight": -0.05}
    (group,) = groups(tmp_path, attempt(0, 0.75, success=1.0), attempt(1, -0.1, success=0.0, note="not well-formed"),
                      reward=weights)  # fmt: skip
    first, second = group["attempts"]
    # 1 + 0.1 for the format - 2 x 0.05 for the calls leaves 0.25 that only overlong shaping can have taken.
    assert [(term["name"], round(term["value"], 6)) for term in first["terms"]] == [
        ("score", 1.0), ("format", 0.1), ("tool calls", -0.1), ("overlong shaping", -0.25),
    ]  # fmt: skip
    assert first["cuts"] == ["overlong: -0.25 reward"]
    assert [(term["name"], term["value"], term["note"]) for term in second["terms"]][1] == (
        "format",
        0.0,
        "not well-formed",
    )
    assert second["cuts"] == []


def test_what_was_cut_is_listed() -> None:
    long, repairs = shorten("x" * 500, 100), (Repair(kind=RepairKind.DISCARDED), Repair(kind=RepairKind.CRLF))
    run = attempt(
        0, 0.0, stop=Stop.TOKENS,
        steps=(
            Step(agent="web_search", text="a", repairs=repairs),
            observation(long, meta={"ok": True}),
            observation("Answer now.", meta={"concluding": True}),
        ),
    )  # fmt: skip
    assert cuts_of(run) == [
        "stopped: out of tokens",
        "1 text written behind a tool call discarded",
        "format repaired: crlf",
        "1 observation shortened by 434 characters",
        "made to answer when the budget ran out",
    ]


def test_steps_know_their_neighbours_and_their_place_on_the_curve(tmp_path: Path) -> None:
    for step in (1, 2, 10):
        groups(tmp_path, attempt(0, 1.0, step=step), step=step)
    rows = [{"step": step, "reward": 0.1, "entropy": 0.25} for step in range(1, 12)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    view = rl_step(tmp_path, 2)
    assert view is not None
    assert (view["previous"], view["next"], view["first"], view["last"]) == (1, 10, 1, 10)
    assert view["at"] == 0.1
    assert {fact["label"]: fact["value"] for fact in view["facts"]}["Entropy"] == "0.25"
    assert rl_step(tmp_path, 3) is None


def test_a_damaged_record_is_left_out_and_named(tmp_path: Path) -> None:
    groups(tmp_path, attempt(0, 1.0), attempt(1, 0.0))
    file = tmp_path / "groups" / "step-0001.jsonl"
    first, second = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(first + b'{"task": 1, "steps": [3]}\n' + second + b'{"torn')
    view = rl_step(tmp_path, 1)
    assert view is not None
    assert view["problems"] == ["step-0001.jsonl: 2 damaged records left out."]
    assert [one["id"] for one in view["groups"][0]["attempts"]] == [run_id(file, 0), run_id(file, 2)]


def test_records_without_what_rl_wrote_are_shown_all_the_same(tmp_path: Path) -> None:
    run = attempt(0, 1.0)
    (group,) = groups(tmp_path, run.model_copy(update={"meta": FrozenDict({"rl": "odd"}), "scores": FrozenDict({})}))
    (shown,) = group["attempts"]
    assert (shown["reward"], shown["advantage"], shown["terms"], shown["outcome"]) == (None, None, [], "unscored")
