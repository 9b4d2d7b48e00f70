"""Which groups are learnt from, what a reward is, and when a run is stopped."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from coa.config import describe_config, load_config
from coa.errors import ConfigError, TrainingError
from coa.rl import config as settings
from coa.rl.config import Guards, RlConfig
from coa.rl.groups import Collected, Group, RewardedAttempt, collect, keep, mean_advantages
from coa.rl.guards import LogprobDiff, Watch
from coa.rl.report import equal, left_out, of_groups
from coa.rl.reward import Rewards, is_well_formed, own_reward
from coa.rl.state import _groups
from coa.rl.tasks import Sampler, load_tasks
from coa.scoring import scorer_for
from coa.training.run_folder import figures
from coa.trajectory import Sample, Step, Task, Trajectory, load_profile, observation, read
from coa.trajectory.types import Usage

ROOT = Path(__file__).parents[3]


def attempt(reward: float, task: str = "t", counted: float | None = None) -> RewardedAttempt:
    trajectory = Trajectory(task=Task(id=task, question=task), profile="nano").scored("reward", reward)
    for name in ("success", "counted"):
        trajectory = trajectory.scored(name, reward if counted is None else counted)
    return RewardedAttempt(trajectory, reward, Sample([1, 2], [False, True], [-1, 0], [0.0, -1.0]))


def _mean_advantages(group: Group) -> list[float]:
    return mean_advantages(group, RlConfig())


def group(name: str, *rewards: float, step: int = 1) -> Group:
    return Group(Task(id=name, question=name), tuple(attempt(reward, name) for reward in rewards), step)


def collected(
    config: RlConfig, rounds: list[list[Group]], surplus: list[Group] | None = None, step: int = 1
) -> Collected:
    async def attempts(tasks: list[Task], number: int) -> list[Group]:
        return rounds[number]

    return asyncio.run(collect(list, attempts, surplus or [], config, step))


def names(groups: list[Group]) -> str:
    return "".join(group.task.id for group in groups)


FLAT, MIXED = (1.0, 1.0), (1.0, 0.0)


def test_groups_without_spread_are_replaced_until_the_batch_is_full() -> None:
    config = RlConfig(train_batch_size=3, num_generations=2, max_num_gen_batches=4)
    first, second = [group("a", *FLAT), group("b", *MIXED)], [group(n, *MIXED) for n in "cde"]
    found = collected(config, [first, second])
    assert names(found.used) == "bcd" and names(found.surplus) == "e" and names(found.drawn) == "abcde"
    assert found.gen_batches == 2


def test_groups_in_which_only_small_terms_differ_are_left_out_unless_asked_for() -> None:
    """All right, but one was long and one called a tool too often: divided by their deviation, 0.9 against 1 would move
    the model as far as wrong against right."""
    long = Group(Task(id="a", question="a"), (attempt(0.9, counted=1.0), attempt(1.0, counted=1.0)), 1)
    eaten = Group(Task(id="b", question="b"), (attempt(0.0, counted=1.0), attempt(0.0, counted=0.0)), 1)
    mixed = group("c", *MIXED)
    config = RlConfig(train_batch_size=3, num_generations=2, max_num_gen_batches=1)
    found = collected(config, [[long, eaten, mixed]])
    assert names(found.used) == "c"
    assert equal(found.drawn, config) == {"all_right": 1, "all_wrong": 0, "all_equal": 1}
    found = collected(
        RlConfig(train_batch_size=3, num_generations=2, max_num_gen_batches=1, filter_groups_metric="reward"),
        [[long, eaten, mixed]],
    )
    assert names(found.used) == "ac"
    whole = RlConfig(train_batch_size=3, num_generations=2, dynamic_sampling=False)
    assert long.teaches(whole) and names(collected(whole, [[long, eaten, mixed]]).used) == "abc"


def test_surplus_is_used_first_and_may_make_drawing_needless() -> None:
    config = RlConfig(train_batch_size=2, num_generations=2)
    found = collected(config, [], [group(n, *MIXED) for n in "xyz"])
    assert names(found.used) == "xy" and names(found.surplus) == "z" and found.gen_batches == 0
    found = collected(config, [[group("a", *MIXED), group("b", *MIXED)]], found.surplus)
    assert names(found.used) == "za" and names(found.surplus) == "b"


def test_surplus_is_dropped_and_counted_when_it_is_too_old() -> None:
    config = RlConfig(train_batch_size=2, num_generations=2, max_staleness=2)
    surplus = [group("x", *MIXED, step=2), group("y", *MIXED, step=3), group("z", *MIXED, step=4)]
    found = collected(config, [[group("a", *MIXED, step=5)]], surplus, step=5)
    assert names(found.used) == "yz" and found.stale == 1 and of_groups(found, config)["groups_stale"] == 1
    found = collected(config, [[group("a", *MIXED, step=6), group("b", *MIXED, step=6)]], surplus, step=6)
    assert names(found.used) == "za" and names(found.surplus) == "b" and found.stale == 2


def test_drawing_is_bounded_and_what_was_found_is_used() -> None:
    config = RlConfig(train_batch_size=3, num_generations=2, max_num_gen_batches=2)
    found = collected(config, [[group("a", *FLAT)], [group("b", *MIXED)]])
    assert names(found.used) == "b" and found.gen_batches == 2


def test_enough_groups_end_the_drawing_before_the_batch_is_full() -> None:
    config = RlConfig(train_batch_size=4, num_generations=2, max_num_gen_batches=5, min_groups=2)
    found = collected(config, [[group(n, *MIXED) for n in "ab"]])
    assert names(found.used) == "ab" and found.gen_batches == 1


def test_without_dynamic_sampling_all_that_is_drawn_is_used() -> None:
    config = RlConfig(train_batch_size=2, num_generations=2, dynamic_sampling=False)
    found = collected(config, [[group("a", *FLAT), group("b", *MIXED), group("c")]])
    assert names(found.used) == "ab"


def test_without_dynamic_sampling_no_more_is_drawn_than_is_used() -> None:
    """Or every second step would learn from attempts of the weights before."""
    config = RlConfig(train_batch_size=2, num_generations=2, dynamic_sampling=False)
    sampler = Sampler(tasks(9), config)
    found = collected(config, [[group(task.id, *MIXED) for task in sampler.draw()]])
    assert len(found.used) == 2 and not found.surplus


def test_kept_groups_tell_reward_and_advantage(tmp_path: Path) -> None:
    one, other = group("a", *MIXED), group("b", *FLAT)
    keep([one, other], tmp_path / "groups" / "step-0001.jsonl", _mean_advantages, used=[one])
    told = [t.meta["rl"] for t in read(tmp_path / "groups" / "step-0001.jsonl")]
    assert [(rl["reward"], round(rl["advantage"], 3), rl["learnt"]) for rl in told] == [  # type: ignore[index, call-overload, arg-type]
        (1.0, 0.707, True),
        (0.0, -0.707, True),
        (1.0, 0.0, False),
        (1.0, 0.0, False),
    ]


def test_surplus_comes_back_as_it_was_also_where_a_task_was_drawn_twice(tmp_path: Path) -> None:
    before = [group("a", *MIXED, step=3), group("a", 0.5, 0.0, step=4), group("b", *MIXED, step=4)]
    keep(before, tmp_path / "surplus.jsonl", _mean_advantages, used=())
    after = _groups(tmp_path / "surplus.jsonl", lambda trajectory, reward: attempt(reward or 0.0, trajectory.task.id))
    assert [(g.task, g.rewards, g.step) for g in after] == [(g.task, g.rewards, g.step) for g in before]


def test_a_group_on_which_the_scorer_gave_no_verdict_is_counted_and_said_though_it_has_rewards() -> None:
    def silent(reward: float) -> RewardedAttempt:
        found = attempt(reward)
        return replace(found, trajectory=found.trajectory.scored("success", None, "mine: the function returned None"))

    mute = Group(Task(id="m", question="m"), (silent(1.0), silent(0.0)), 1)
    partly = Group(Task(id="p", question="p"), (silent(1.0), attempt(0.0)), 1)
    found = of_groups(Collected([], [], [mute, partly, group("a", *MIXED)], 1), RlConfig())
    assert found["unscored"] == 3
    said = left_out([mute, partly, group("a", *MIXED)])
    assert "gave no verdict on any attempt at 1 of 3 tasks; task m: mine: the function returned None" in said
    assert left_out([partly, group("a", *MIXED)]) == ""


def test_the_card_shows_success_of_what_was_sampled_not_of_what_was_chosen(tmp_path: Path) -> None:
    rows = [
        {"step": 1, "success": 0.25, "groups_drawn": 8},
        {"step": 2, "success": 0.75, "groups_drawn": 8},
        {"step": 3, "success": 0.5, "groups_drawn": 0},  # surplus only: groups that are right and wrong
        {"step": 3, "held_out_success": 0.7},
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    formats, rate = {"success": ".1%", "held_out_success": ".1%"}, ("tokens_per_s", "sampled tokens/s")
    found = figures(tmp_path / "metrics.jsonl", formats, at="at step", rate=rate)
    assert found == {
        "success": "25.0% at step 1, 75.0% at step 2",
        "held-out-success": "70.0% at step 3, 70.0% at step 3",
    }


# ---- rewards


def rewarded(
    steps: tuple[Step, ...],
    setting: settings.Reward | None = None,
    own: Callable[..., float | None] | None = None,
    name: str = "reward",
) -> tuple[float | None, str]:
    made = Trajectory(
        task=Task(id="t", question="q", answer="Sill"), profile="nano", steps=steps, usage=Usage(tool_calls=2)
    )
    rewards = Rewards(setting or settings.Reward(), scorer_for("exact"), own)
    score = asyncio.run(rewards.of(made, load_profile("nano"))).scores[name]
    return score.value, score.reason


SEARCH = (Step(agent="web_search", text="river"), observation("the Sill"))


def test_a_right_answer_counts_only_in_a_well_formed_run() -> None:
    right, unfinished = Step(agent="answer", text="Sill"), Step(agent="suggested_answer", text="Sill")
    assert rewarded((*SEARCH, right)) == (1.0, "")
    assert rewarded((*SEARCH, Step(agent="answer", text="Inn"))) == (0.0, "")
    assert rewarded((*SEARCH, unfinished, right)) == (0.0, "not well-formed")
    assert rewarded((*SEARCH, unfinished, right), settings.Reward(require_format=False))[0] == 1.0


def test_what_counts_of_a_score_is_known_apart_from_small_terms() -> None:
    small = settings.Reward(format_weight=0.1, tool_call_weight=-0.01)
    answer, unfinished = Step(agent="answer", text="Sill"), Step(agent="suggested_answer", text="Sill")
    assert rewarded((*SEARCH, answer), small, name="counted")[0] == 1.0
    assert rewarded((*SEARCH, unfinished, answer), small, name="counted") == (0.0, "not well-formed")
    assert rewarded((*SEARCH, answer), own=lambda *_: 0.3, name="counted")[0] == 0.3
    assert rewarded((*SEARCH, answer), own=lambda *_: None, name="counted")[0] is None


def test_small_terms_are_weighed() -> None:
    wrong = (*SEARCH, Step(agent="answer", text="Inn"))
    assert rewarded(wrong, settings.Reward(format_weight=0.1, tool_call_weight=-0.01))[0] == pytest.approx(0.1 - 0.02)


def test_a_repaired_run_is_not_well_formed() -> None:
    from coa.trajectory import parse

    steps = parse("<web_search>river</web_search>\n<answer>Sill", load_profile("nano"))
    made = Trajectory(task=Task(id="t", question="q"), profile="nano", steps=tuple(steps))
    assert not is_well_formed(made, load_profile("nano"))


def test_ones_own_reward_may_leave_an_attempt_out_and_may_break() -> None:
    answered = (*SEARCH, Step(agent="answer", text="Sill"))
    assert rewarded(answered, own=lambda trajectory, score: 2 * score + len(trajectory.steps))[0] == 5.0
    assert rewarded(answered, own=lambda *_: None) == (None, "the reward function gave none")
    value, reason = rewarded(answered, own=lambda *_: 1 / 0)
    assert value is None and "ZeroDivisionError" in reason
    assert rewarded(answered, own=lambda *_: float("nan"))[0] is None
    with pytest.raises(TrainingError, match="cannot be imported"):
        own_reward("no_such_module:reward")
    with pytest.raises(TrainingError, match=r"is no.* function"):
        own_reward("math:pi")


# ---- tasks


def tasks(count: int, **meta: str) -> list[Task]:
    return [Task(id=f"{meta}{n}", question=f"{meta}{n}", answer="1", meta=meta) for n in range(count)]


def test_every_task_comes_once_before_any_comes_again_and_a_draw_repeats_none() -> None:
    sampler = Sampler(tasks(7), RlConfig(train_batch_size=3, gen_batch_size=3))
    drawn = [task.id for _ in range(7) for task in sampler.draw()]
    assert len(set(drawn[:7])) == 7 and sorted(drawn).count(drawn[0]) == 3
    assert all(len(set(drawn[at : at + 3])) == 3 for at in range(0, 21, 3))


def test_draws_go_on_where_the_state_was_kept() -> None:
    config = RlConfig(train_batch_size=3, gen_batch_size=3, task_sampling="difficulty")
    pool = [*tasks(9, family="a"), *tasks(9, family="b")]
    sampler = Sampler(pool, config)
    first = [task.id for task in sampler.draw()]
    state = json.loads(json.dumps(sampler.state()))
    expected = [task.id for task in sampler.draw()]
    again = Sampler(pool, config)
    assert [task.id for task in again.draw()] == first
    again = Sampler(pool, config)
    again.restore(state)
    assert [task.id for task in again.draw()] == expected != first


def test_families_solved_sometimes_are_drawn_more_than_those_solved_always() -> None:
    config = RlConfig(train_batch_size=10, gen_batch_size=10, task_sampling="difficulty")
    pool = [*tasks(200, family="even"), *tasks(200, family="always")]
    sampler = Sampler(pool, config)
    for _ in range(40):
        sampler.learn([Group(pool[0], tuple(attempt(r) for r in (1.0, 0.0)), 1)])
        sampler.learn([Group(pool[-1], tuple(attempt(r) for r in (1.0, 1.0)), 1)])
    assert sampler.success["even"] == pytest.approx(0.5) and sampler.success["always"] > 0.99
    drawn = [task.meta["family"] for _ in range(20) for task in sampler.draw()]
    # In proportion to 0.29 and 0.04: about 176 of 200.
    assert 150 < drawn.count("even") < 195


def test_families_in_turn_come_equally_often_however_large_they_are() -> None:
    pool = [*tasks(30, family="a"), *tasks(9, family="b"), *tasks(3, family="c")]
    sampler = Sampler(pool, RlConfig(train_batch_size=5, gen_batch_size=5, task_sampling="family"))
    drawn = [task.meta["family"] for _ in range(6) for task in sampler.draw()]
    # Not quite 10 of each: a task that a draw has already is passed over.
    assert all(8 <= drawn.count(name) <= 12 for name in "abc"), drawn
    whole = Sampler(
        pool, RlConfig(train_batch_size=20, gen_batch_size=20, task_sampling="family")
    ).draw()  # more than a family has
    assert len({task.id for task in whole}) == 20


def test_the_success_of_an_only_family_is_followed() -> None:
    pool = tasks(3, family="sums")
    sampler = Sampler(pool, RlConfig(task_sampling="difficulty"))
    sampler.learn([Group(pool[0], (attempt(1.0), attempt(1.0)), 1)])
    assert sampler.success == {"sums": pytest.approx(0.6)}


def test_tasks_that_are_learnt_from_are_not_evaluated_on(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": "1", "question": "q", "answer": "x"}\n')
    (tmp_path / "b.jsonl").write_text('{"id": "2", "question": "q", "answer": "x"}\n')
    with pytest.raises(TrainingError, match="also learnt from"):
        load_tasks(RlConfig(tasks=str(tmp_path / "a.jsonl"), eval_tasks=str(tmp_path / "b.jsonl")))
    (tmp_path / "c.jsonl").write_text('{"id": "2", "question": "q"}\n')
    with pytest.raises(TrainingError, match="no attempt could be scored"):
        load_tasks(RlConfig(tasks=str(tmp_path / "c.jsonl")))
    with pytest.raises(TrainingError, match="there is no file"):
        load_tasks(RlConfig(tasks="nowhere.jsonl"))


def test_only_the_families_that_were_named_are_learnt_from(tmp_path: Path) -> None:
    rows = [Task(id=str(n), question=f"q{n}", answer="1", meta={"family": "ab"[n % 2]}) for n in range(6)]
    (tmp_path / "t.jsonl").write_text("\n".join(row.model_dump_json() for row in rows))
    found, _, _ = load_tasks(RlConfig(tasks=str(tmp_path / "t.jsonl"), families=("b",)))
    assert [task.id for task in found] == ["1", "3", "5"]
    with pytest.raises(TrainingError, match="no task of the family 'c'") as refused:
        load_tasks(RlConfig(tasks=str(tmp_path / "t.jsonl"), families=("a", "c")))
    assert refused.value.hint == "name some of a, b"
    (tmp_path / "n.jsonl").write_text(Task(id="1", question="q", answer="1", meta={"level": 2}).model_dump_json())
    assert load_tasks(RlConfig(tasks=str(tmp_path / "n.jsonl"), family_key="level", families=("2",)))[0]


def test_a_folder_of_tasks_is_read_and_a_scorer_of_ones_own_needs_no_answers(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": "1", "question": "q"}\n')
    (tmp_path / "b.jsonl").write_text('{"id": "1", "question": "r"}\n')
    found, _, _ = load_tasks(RlConfig(tasks=str(tmp_path), reward=settings.Reward(scorer="mine:score")))
    assert [task.question for task in found] == ["q", "r"] and len({task.id for task in found}) == 2


# ---- guards


def test_a_difference_between_sampled_and_recomputed_logprobs_stops_the_run_before_the_update() -> None:
    diff = LogprobDiff.of([(0, 0.01), (0, 0.03), (1, 0.4)])
    assert diff is not None and diff.turns == pytest.approx([0.02, 0.4]) and diff.most == 0.4
    with pytest.raises(TrainingError, match=r"differ by 0\.147 on average \(turn by turn: 0\.02, 0\.4\)"):
        Watch(Guards()).logprob_diff(diff)
    Watch(Guards(max_logprob_diff=0.2)).logprob_diff(diff)
    Watch(Guards(max_logprob_diff=0)).logprob_diff(diff)
    with pytest.raises(TrainingError, match="differ by nan"):
        Watch(Guards()).logprob_diff(LogprobDiff.of([(0, float("nan"))]))


def test_steps_that_teach_nothing_are_said_and_at_last_stop_the_run() -> None:
    watch = Watch(Guards(max_idle_steps=2))
    watch.groups(drawn=4, used=0, equal={"all_right": 0, "all_wrong": 4})
    assert watch.warnings == ["nothing to learn: in none of 4 groups do rewards differ (4 all_wrong)"]
    watch.groups(drawn=4, used=1, equal={})
    watch.groups(drawn=4, used=0, equal={})
    with pytest.raises(TrainingError, match="for 2 consecutive steps"):
        watch.groups(drawn=4, used=0, equal={})


def test_collapse_of_entropy_and_length_is_said() -> None:
    watch = Watch(Guards())
    watch.attempts(entropy=0.5, length=100)
    assert not watch.warnings
    watch.attempts(entropy=0.001, length=20)
    assert "entropy is down to 0.001" in watch.warnings[0] and "20 tokens" in watch.warnings[1]


def test_a_step_that_moves_the_policy_too_far_is_said() -> None:
    watch = Watch(Guards(max_policy_kl=0.1))
    watch.policy_kl(0.05)
    assert not watch.warnings
    watch.policy_kl(0.3)
    assert "moved the policy by a KL of 0.3" in watch.warnings[0] and "lower lr" in watch.warnings[0]


def test_gradients_that_are_no_numbers_stop_the_run_if_they_go_on() -> None:
    watch = Watch(Guards(max_bad_updates=2))
    watch.update(skipped=True)
    watch.update(skipped=False)
    watch.update(skipped=True)
    with pytest.raises(TrainingError, match="2 consecutive updates"):
        watch.update(skipped=True)


# ---- settings


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "rl").glob("*.toml")), ids=lambda path: path.stem)
def test_every_recipe_loads(path: Path) -> None:
    config = load_config(RlConfig, path)
    assert config.clip_ratio_high == 0.28 and config.dynamic_sampling and config.kl_coef == 0
    config.limits(load_profile(config.profile))


@pytest.mark.parametrize("size", ["3b", "7b", "32b"])
def test_multi_hop_is_rewarded_for_exact_match_alone(size: str) -> None:
    reward = load_config(RlConfig, ROOT / "configs" / "rl" / f"mhqa-{size}.toml").reward
    assert reward == settings.Reward(scorer="exact", require_format=False)


def test_defaults_are_the_papers() -> None:
    config = RlConfig()
    assert (config.num_generations, config.train_batch_size, config.tasks_per_draw, config.lr) == (8, 64, 128, 1e-6)
    assert (config.clip_ratio_low, config.clip_ratio_high, config.clip_ratio_c) == (0.2, 0.28, 10.0)
    assert (config.loss_agg_mode, config.policy_loss, config.kl_coef) == ("token-mean", "ppo_clip", 0.0)
    assert (config.advantage_estimator, config.scale_rewards, config.overlong_buffer_ratio) == ("grpo", "group", 1 / 8)


def test_a_wrong_key_is_named() -> None:
    with pytest.raises(ConfigError, match=r"reward\.scorrer: there is no such setting; did you mean reward\.scorer"):
        load_config(RlConfig, None, ["reward.scorrer=exact"])
    assert load_config(RlConfig, None, ["reward.scorer=exact", "lora.rank=4"]).reward.scorer == "exact"
    assert "guards.max_logprob_diff" in describe_config(RlConfig) and "reward.scorer" in describe_config(RlConfig)
    with pytest.raises(ConfigError, match="clip_ratio_c must be above"):
        load_config(RlConfig, None, ["clip_ratio_c=1.1"])
    with pytest.raises(ConfigError, match=r"advantage_estimator: .*'grpo' or 'token_baseline'"):
        load_config(RlConfig, None, ["advantage_estimator=gae"])
    with pytest.raises(ConfigError, match="leave full_determinism out, or set one_step_off_policy=false"):
        load_config(RlConfig, None, ["one_step_off_policy=true", "full_determinism=true"])


def test_limits_that_contradict_the_profile_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    from coa.rl.engines.local import train

    (tmp_path / "a.jsonl").write_text('{"id": "1", "question": "q", "answer": "x"}\n')
    config = RlConfig(tasks=str(tmp_path / "a.jsonl"), model="none/at-all", max_completion_length=100_000)
    with pytest.raises(TrainingError, match=r"model_tokens \(100000\) exceed context_tokens") as refused:
        train(config, tmp_path / "run")
    assert "max_model_len=" in (refused.value.hint or "") and not (tmp_path / "run").exists()
