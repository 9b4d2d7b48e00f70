"""One set of weights for sampling and training."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from coa.models import precision
from coa.models.base import Context, Sampling
from coa.rl.algorithms.grpo import group_advantages
from coa.rl.config import RlConfig
from coa.rl.groups import Group, RewardedAttempt
from coa.rl.guards import LogprobDiff
from coa.rl.policy import Policy, open_policy, save_model
from coa.rl.reward import Rewards
from coa.rl.rollout import Rollouts
from coa.rl.update import Trainer, items_of
from coa.scoring import scorer_for
from coa.trajectory import Author, Ledger, Sample, Task, Tokens, TurnEnd
from support.words import WORDS, trajectory, word_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(word_model(tmp_path_factory.mktemp("words") / "random"))


def config(folder: str, **extra: object) -> RlConfig:
    return RlConfig.model_validate({"model": folder, "lr": 1e-2, "train_batch_size": 1, "num_generations": 2, **extra})


def sampled(policy: Policy, context: list[int], seed: int, tokens: int = 6) -> Tokens:
    async def generate() -> Tokens:
        found = await policy.sampler.generate(
            Context((), "", context), stop=(), sampling=Sampling(1.0, 1.0, 0, tokens, seed)
        )
        assert found.tokens is not None
        return found.tokens

    return asyncio.run(generate())


def attempt(policy: Policy, seed: int, reward: float, seen: str = WORDS[7]) -> RewardedAttempt:
    """What the model writes, an observation, and what it writes then."""
    ledger = Ledger(policy.tokenizer)
    ledger.open(trajectory("t", WORDS[3], WORDS[5]).prompt or ())
    ledger.append_sampled(sampled(policy, ledger.ids, seed), step=0)
    ledger.append(Author.ENVIRONMENT, f"<observation>{seen}</observation>", step=1)
    ledger.append_sampled(sampled(policy, ledger.ids, seed + 100), step=2)
    return RewardedAttempt(trajectory("t", WORDS[3], WORDS[5]).scored("counted", reward), reward, ledger.to_sample())


def group(policy: Policy, step: int = 1) -> Group:
    return Group(Task(id="t", question="q"), (attempt(policy, 1, 1.0), attempt(policy, 2, 0.0)), step)


def recomputed(policy: Policy, sample: Sample, labels: list[int] | None = None, *, last: bool = False) -> torch.Tensor:
    """A plain forward pass of transformers, of weights as they are saved and loaded again. `last`: also what follows
    the last id; labels then begin with the second."""
    from transformers import LlamaForCausalLM

    fresh = LlamaForCausalLM(policy.inner.config)
    fresh.load_state_dict({name: weight.contiguous() for name, weight in policy.inner.state_dict().items()})
    fresh.set_attn_implementation("eager")
    ids = torch.tensor([sample.ids])
    with torch.no_grad():
        logprobs = fresh(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)
    asked = torch.tensor((labels if last else labels[1:]) if labels else sample.ids[1:])
    return logprobs[: len(asked)].gather(1, asked[:, None])[:, 0]


@pytest.mark.parametrize(
    "extra", [{}, {"freeze_embeddings": True, "freeze_layers": 1}, {"gradient_checkpointing": True}],
    ids=["full", "frozen below", "checkpointed"],
)  # fmt: skip
def test_after_an_update_the_engine_samples_from_the_new_weights(folder: str, extra: dict[str, object]) -> None:
    policy = open_policy(config(folder, **extra), "cpu")
    try:
        trainer = Trainer(policy, config(folder, **extra))
        before = attempt(policy, 3, 0.0)
        list(trainer.learn([group(policy)], 1))
        after = attempt(policy, 3, 0.0)  # the same prompt: what the engine remembered of it is no longer true
        expected = recomputed(policy, after.sample)
        found = torch.tensor(after.sample.logprobs)[1:]
        mask = torch.tensor(after.sample.mask)[1:]
        assert torch.allclose(found[mask], expected[mask], atol=1e-5)
        old = torch.tensor(before.sample.logprobs)[1:]
        changed = recomputed(policy, before.sample)
        assert (old - changed)[torch.tensor(before.sample.mask)[1:]].abs().max() > 1e-3
    finally:
        asyncio.run(policy.sampler.close())


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_at_another_temperature_sampled_and_recomputed_logprobs_agree_too(folder: str, temperature: float) -> None:
    setting = config(folder, temperature=temperature, num_mini_batches=1)
    policy = open_policy(setting, "cpu")
    try:
        stats = next(iter(Trainer(policy, setting).learn([group(policy)], 1)))
        assert stats.logprob_diffs and max(diff for _, diff in stats.logprob_diffs) < 1e-5
        plain = next(iter(Trainer(policy, config(folder)).learn([group(policy)], 1)))
        assert max(diff for _, diff in plain.logprob_diffs) > 1e-2, "they are not those of temperature 1"
    finally:
        asyncio.run(policy.sampler.close())


def test_attempts_from_the_likeliest_tokens_keep_the_logprobs_of_the_whole_distribution(folder: str) -> None:
    task = Task(id="t", question=WORDS[3], answer=WORDS[5], prompt=trajectory("t", WORDS[3], WORDS[5]).prompt)
    ranks = {}
    for cut in ({}, {"top_k": 3}, {"top_p": 0.2}):
        setting = config(
            folder,
            use_task_prompts=True,
            max_turn_tokens=6,
            max_completion_length=24,
            max_model_len=400,
            num_generations=6,
            **cut,
        )
        policy = open_policy(setting, "cpu")
        try:
            rewards = Rewards(setting.reward, scorer_for("exact"))
            rollouts = Rollouts(policy.sampler, policy.tokenizer, {}, rewards, setting, True)
            (made,) = asyncio.run(rollouts([task], step=1, number=0))
            sample = made.attempts[0].sample
            mask = torch.tensor(sample.mask)[1:]
            whole = recomputed(policy, sample)[mask]
            assert torch.allclose(torch.tensor(sample.logprobs)[1:][mask], whole, atol=1e-5)
            ranks[str(cut)] = worst_rank(policy, sample)
        finally:
            asyncio.run(policy.sampler.close())
    assert ranks["{'top_k': 3}"] <= 3 < ranks["{}"]
    assert ranks["{'top_p': 0.2}"] < ranks["{}"]


def worst_rank(policy: Policy, sample: Sample) -> int:
    """Of the tokens that the model wrote, by how likely each was where it stands."""
    with torch.no_grad():
        logits = policy.inner(input_ids=torch.tensor([sample.ids]), use_cache=False).logits[0]
    ranks = [int((logits[at] > logits[at][token]).sum()) + 1 for at, token in enumerate(sample.ids[1:])]
    return max(rank for rank, written in zip(ranks, sample.mask[1:], strict=True) if written)


def test_what_the_baseline_weighs_is_what_the_loss_weighs(folder: str) -> None:
    with pytest.raises(ValidationError, match="token_baseline needs loss_agg_mode=token-mean"):
        config(folder, advantage_estimator="token_baseline", loss_agg_mode="seq-mean-token-mean")


def test_an_adapter_that_is_trained_is_what_is_sampled_from(folder: str) -> None:
    setting = config(folder, lora={"rank": 4})
    policy = open_policy(setting, "cpu")
    try:
        assert all("lora" in name for name in policy.trained)
        trainer = Trainer(policy, setting)
        list(trainer.learn([group(policy)], 1))
        list(trainer.learn([group(policy)], 2))
        stats = next(iter(trainer.learn([group(policy, 3)], 3)))
        assert stats.logprob_diffs and max(diff for _, diff in stats.logprob_diffs) < 1e-5
        with policy.reference_model() as start, torch.no_grad():
            assert start is policy.inner
    finally:
        asyncio.run(policy.sampler.close())


def test_an_adapter_that_came_with_the_model_is_trained_further(folder: str, tmp_path: Path) -> None:
    first = open_policy(config(folder, lora={"rank": 4, "dropout": 0.5, "merge": False}), "cpu")
    try:
        save_model(first, config(folder, lora={"rank": 4, "dropout": 0.5, "merge": False}), tmp_path / "model", "card")
    finally:
        asyncio.run(first.sampler.close())
    setting = config(str(tmp_path), lora={"rank": 64}, kl_coef=0.01)
    policy = open_policy(setting, "cpu")
    try:
        assert policy.trained and all("lora" in name for name in policy.trained)
        # Its own dropout counts, whatever the settings say: it is no gap between sampling and training.
        trainer = Trainer(policy, setting)
        for step in range(1, 4):
            list(trainer.learn([group(policy, step)], step))
        stats = next(iter(trainer.learn([group(policy, 4)], 4)))
        assert stats.logprob_diffs and max(diff for _, diff in stats.logprob_diffs) < 1e-5
        with policy.reference_model() as start:
            assert start is policy.reference
    finally:
        asyncio.run(policy.sampler.close())


def test_frozen_layers_stay_so_after_a_look_at_the_start(folder: str) -> None:
    policy = open_policy(config(folder, lora={"rank": 4}, freeze_layers=1, kl_coef=0.01), "cpu")
    try:
        trained = set(policy.trained)
        with policy.reference_model():
            pass
        assert set(policy.trained) == trained and not any("layers.0." in name for name in trained)
    finally:
        asyncio.run(policy.sampler.close())


def test_sampled_and_recomputed_logprobs_agree_turn_by_turn(folder: str) -> None:
    policy = open_policy(config(folder), "cpu")
    try:
        stats = next(iter(Trainer(policy, config(folder)).learn([group(policy)], 1)))
        assert {turn for turn, _ in stats.logprob_diffs} == {0, 1} and len(stats.logprob_diffs) == stats.tokens
        assert max(diff for _, diff in stats.logprob_diffs) < 1e-5
    finally:
        asyncio.run(policy.sampler.close())


def test_dropout_is_no_gap_between_sampling_and_training(folder: str) -> None:
    setting = config(folder, lora={"rank": 8, "dropout": 0.5})
    policy = open_policy(setting, "cpu")
    try:
        trainer = Trainer(policy, setting)
        for step in range(1, 6):
            list(trainer.learn([group(policy, step)], step))
        stats = next(iter(trainer.learn([group(policy, 6)], 6)))
        assert stats.logprob_diffs and max(diff for _, diff in stats.logprob_diffs) < 1e-5
        assert policy.whole.training is False
    finally:
        asyncio.run(policy.sampler.close())


def test_ends_of_turns_are_trained_as_they_were_sampled(folder: str) -> None:
    """A model that ends its turn time and again: after some text, at once, and as the last thing it does. The logprob
    of each end is the one that a forward pass gives for the context that was there, and its gradient is its own."""
    setting = config(
        folder,
        use_task_prompts=True,
        max_turn_tokens=6,
        max_completion_length=24,
        max_model_len=400,
        num_generations=16,
        overlong_buffer_ratio=0,
    )
    policy = open_policy(setting, "cpu")
    end = policy.tokenizer.end_of_turn
    assert end is not None
    try:
        with torch.no_grad():  # an end comes often
            policy.inner.get_input_embeddings().weight[end] *= 4  # type: ignore[index, operator]
        policy.sync_sampler()
        rewards = Rewards(setting.reward, scorer_for("exact"))
        rollouts = Rollouts(policy.sampler, policy.tokenizer, {}, rewards, setting, True)
        task = Task(id="t", question=WORDS[3], answer=WORDS[5], prompt=trajectory("t", WORDS[3], WORDS[5]).prompt)
        (made,) = asyncio.run(rollouts([task], step=1, number=0))
        ends = [len(attempt.trajectory.ends) for attempt in made.attempts]
        assert sum(ends) > 8 and any(a.sample.ids[-1] == end for a in made.attempts)
        assert any(a.sample.labels for a in made.attempts)
        for one in made.attempts:
            sample = one.sample
            labels = [sample.labels.get(at, token) for at, token in enumerate(sample.ids)]
            discarded = one.trajectory.meta.get("discarded_tokens", 0)
            assert isinstance(discarded, int)
            assert sample.trained == one.trajectory.usage.completion_tokens - discarded
            assert sum(written and label == end for written, label in zip(sample.mask, labels, strict=True)) == len(
                one.trajectory.ends
            )
            expected = recomputed(policy, sample, labels)
            mask = torch.tensor(sample.mask)[1:]
            assert torch.allclose(torch.tensor(sample.logprobs)[1:][mask], expected[mask], atol=1e-5)
        graded = replace(made, attempts=tuple(replace(a, reward=float(n % 2)) for n, a in enumerate(made.attempts)))
        stats = next(iter(Trainer(policy, setting).learn([graded], 1)))
        assert stats.tokens == sum(attempt.sample.trained for attempt in made.attempts)
        assert max(diff for _, diff in stats.logprob_diffs) < 1e-5
    finally:
        asyncio.run(policy.sampler.close())


def test_a_model_that_is_paid_for_ending_its_turn_learns_to(folder: str) -> None:
    setting = config(folder)
    policy = open_policy(setting, "cpu")
    end = policy.tokenizer.end_of_turn
    assert end is not None
    try:

        def ended(seed: int, reward: float) -> RewardedAttempt:
            ledger = Ledger(policy.tokenizer)
            ledger.open(trajectory("t", WORDS[3], WORDS[5]).prompt or ())
            logprob = float(recomputed(policy, ledger.to_sample(), [*ledger.ids[1:], end], last=True)[-1])
            ledger.end_turn(TurnEnd(before=0, id=end, logprob=logprob))
            ledger.append(Author.ENVIRONMENT, "<observation>go on</observation>", step=0)
            ledger.append_sampled(sampled(policy, ledger.ids, seed), step=1)
            return RewardedAttempt(trajectory("t", WORDS[3], WORDS[5]), reward, ledger.to_sample(ends=True))

        def odds() -> float:
            ledger = Ledger(policy.tokenizer)
            ledger.open(trajectory("t", WORDS[3], WORDS[5]).prompt or ())
            return float(recomputed(policy, ledger.to_sample(), [*ledger.ids[1:], end], last=True)[-1].exp())

        before = odds()
        trainer = Trainer(policy, setting)
        for step in range(1, 6):
            attempts = (ended(step, 1.0), attempt(policy, step, 0.0))
            list(trainer.learn([Group(Task(id="t", question="q"), attempts, step)], step))
        assert odds() > 5 * before
    finally:
        asyncio.run(policy.sampler.close())


def gradients(policy: Policy, setting: RlConfig, groups: list[Group]) -> dict[str, torch.Tensor]:
    trainer = Trainer(policy, setting)
    learning = trainer.learn(groups, 1)
    next(learning)  # before the optimiser's step
    return {name: weight.grad.clone() for name, weight in policy.trained.items() if weight.grad is not None}


def test_no_token_of_the_environment_has_a_gradient(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hidden states are held as they are (as attention fixed would leave them), and other ids are put under the
    mask: were any of them a label, the gradient would change."""
    from coa.rl import update
    from coa.training import packed_model as rows

    setting = config(folder, freeze_embeddings=True)
    policy = open_policy(setting, "cpu")
    try:
        one = group(policy)
        other = replace(one, attempts=tuple(_with_other_observations(a, policy) for a in one.attempts))
        assert [a.sample.ids for a in one.attempts] != [a.sample.ids for a in other.attempts]
        inputs = {tuple(b.sample.ids): a.sample.ids for a, b in zip(one.attempts, other.attempts, strict=True)}
        hidden = rows._hidden

        def as_before(model, input_ids, position_ids, segments):  # type: ignore[no-untyped-def]
            ids, seen, at = input_ids[0].tolist(), [], 0
            for length in segments:
                part = ids[at : at + length]
                seen += inputs.get(tuple(part), part)
                at += length
            return hidden(model, torch.tensor([seen]), position_ids, segments)

        expected = gradients(policy, setting, [one])
        monkeypatch.setattr(rows, "_hidden", as_before)
        found = gradients(policy, setting, [other])
        assert update.logprobs_of is rows.logprobs_of  # type: ignore[attr-defined]
        assert expected and all(torch.equal(expected[name], found[name]) for name in expected)
        assert any(gradient.abs().max() > 0 for gradient in expected.values())
    finally:
        asyncio.run(policy.sampler.close())


def _with_other_observations(one: RewardedAttempt, policy: Policy) -> RewardedAttempt:
    sample = one.sample
    prompt = sample.steps.count(-1)
    ids = [
        (token + 1) % policy.tokenizer.vocabulary_size if at >= prompt and not written else token
        for at, (token, written) in enumerate(zip(sample.ids, sample.mask, strict=True))
    ]
    return replace(one, sample=replace(sample, ids=ids))


@pytest.mark.parametrize("extra", [{}, {"lora": {"rank": 4}}], ids=["full", "lora"])
def test_an_engine_that_samples_ahead_keeps_the_weights_it_has_until_it_is_told(
    folder: str, extra: dict[str, object]
) -> None:
    setting = config(folder, one_step_off_policy=True, **extra)
    policy = open_policy(setting, "cpu")
    try:
        assert policy.rollout_copy is not None
        trained = {id(weight) for weight in policy.trained.values()}
        pairs = list(zip(policy.rollout_copy.parameters(), policy.inner.parameters(), strict=True))
        assert all((own is not new) == (id(new) in trained) for own, new in pairs), "only what is trained is copied"
        before = attempt(policy, 3, 0.0)
        trainer = Trainer(policy, setting)
        for step in (1, 2):  # the first moves one half of an adapter only, which the other half multiplies by zero
            list(trainer.learn([group(policy, step)], step))
        assert attempt(policy, 3, 0.0).sample == before.sample
        assert not all(torch.equal(own, new) for own, new in pairs)
        policy.sync_sampler()
        stats = next(iter(trainer.learn([group(policy, 3)], 3)))
        assert stats.logprob_diffs and max(diff for _, diff in stats.logprob_diffs) < 1e-5
    finally:
        asyncio.run(policy.sampler.close())


def test_attempts_of_earlier_weights_are_weighed_by_their_ratio_up_to_the_cap(folder: str) -> None:
    """Sampled when each token was e^2 times less likely than now: without correction all that was good is clipped away;
    with it each token counts the cap's 3 times, as no ratio of 7.4 may."""
    policy = open_policy(config(folder), "cpu")
    try:
        fresh = group(policy)
        attempts = []
        for one in fresh.attempts:
            assert one.sample.logprobs is not None
            before = [
                logprob - 2 * written for logprob, written in zip(one.sample.logprobs, one.sample.mask, strict=True)
            ]
            attempts.append(replace(one, sample=replace(one.sample, logprobs=before)))
        stale = replace(fresh, attempts=tuple(attempts), step=0)
        plain = gradients(policy, config(folder), [fresh])
        corrected = gradients(policy, config(folder, importance_sampling_cap=3.0), [stale])
        assert all(torch.allclose(3 * plain[name], corrected[name], rtol=1e-3, atol=1e-6) for name in plain)
        again = gradients(policy, config(folder, importance_sampling_cap=3.0), [fresh])
        assert all(torch.allclose(plain[name], again[name], rtol=1e-3, atol=1e-6) for name in plain)
        (stats,) = [next(iter(Trainer(policy, config(folder)).learn([stale], 1)))]
        assert stats.clipped == fresh.attempts[0].sample.trained
    finally:
        asyncio.run(policy.sampler.close())


def test_a_gradient_that_is_no_number_changes_nothing(folder: str) -> None:
    policy = open_policy(config(folder), "cpu")
    try:
        before = {name: weight.clone() for name, weight in policy.trained.items()}
        broken = group(policy)
        sample = broken.attempts[0].sample
        assert sample.logprobs is not None
        worse = replace(sample, logprobs=[float("nan") if written else 0.0 for written in sample.mask])
        broken = replace(broken, attempts=(replace(broken.attempts[0], sample=worse), broken.attempts[1]))
        stats = list(Trainer(policy, config(folder)).learn([broken], 1))
        assert [one.skipped for one in stats] == [1]
        assert all(torch.equal(before[name], weight) for name, weight in policy.trained.items())
    finally:
        asyncio.run(policy.sampler.close())


@pytest.mark.parametrize(("dynamic", "expected"), [(True, [False, True]), (False, [True, True])])
def test_a_distance_in_the_reward_does_not_stand_in_for_a_spread_of_rewards(
    folder: str, dynamic: bool, expected: list[bool]
) -> None:
    from coa.rl.engines.local import _with_kl_in_reward

    setting = config(folder, kl_coef=0.1, use_kl_in_reward=True, dynamic_sampling=dynamic)
    policy = open_policy(setting, "cpu")
    try:
        trainer = Trainer(policy, setting)
        list(trainer.learn([group(policy)], 1))  # away from the start
        mixed = group(policy)
        worthless = [replace(a, reward=0.0, trajectory=a.trajectory.scored("counted", 0.0)) for a in mixed.attempts]
        flat = replace(mixed, attempts=tuple(worthless))
        found = asyncio.run(_with_kl_in_reward([flat, mixed], trainer, setting))
        assert [one.teaches(setting) for one in found] == expected
        assert found[1].rewards != mixed.rewards
    finally:
        asyncio.run(policy.sampler.close())


def test_more_frozen_layers_than_there_are_are_refused(folder: str) -> None:
    from coa.errors import TrainingError

    with pytest.raises(TrainingError, match="2 layers cannot be frozen"):
        open_policy(config(folder, freeze_layers=2), "cpu")


@pytest.mark.parametrize(("extra", "exact"), [({}, True), ({"precision": "bf16"}, False)], ids=["auto", "bf16"])
def test_on_a_cpu_with_bf16_log_probabilities_stay_exact_unless_the_settings_say_otherwise(
    folder: str, extra: dict[str, object], exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "cpu_has_bf16", lambda: True)
    setting = config(folder, **extra)
    policy = open_policy(setting, "cpu")
    try:
        stats = next(Trainer(policy, setting).learn([group(policy)], 1))
        gap = LogprobDiff.of(stats.logprob_diffs)
        assert gap is not None
        assert gap.mean < 1e-5 if exact else 1e-5 < gap.mean < setting.guards.max_logprob_diff
        assert all(weight.dtype == torch.float32 for weight in policy.trained.values())
    finally:
        asyncio.run(policy.sampler.close())


def test_under_an_adapter_the_frozen_weights_and_the_sampler_are_bf16_together(folder: str) -> None:
    setting = config(folder, precision="bf16", lora={"rank": 2})
    policy = open_policy(setting, "cpu")
    try:
        assert policy.sampler._engines._lean is not None
        stats = next(Trainer(policy, setting).learn([group(policy)], 1))
        gap = LogprobDiff.of(stats.logprob_diffs)
        assert gap is not None and gap.mean < setting.guards.max_logprob_diff
    finally:
        asyncio.run(policy.sampler.close())


def test_a_run_without_a_weight_to_train_is_refused(folder: str) -> None:
    from coa.errors import TrainingError

    setting = config(folder, lora={"target_modules": r".*layers\.0\..*q_proj"}, freeze_layers=1)
    policy = open_policy(setting, "cpu")
    try:
        with pytest.raises(TrainingError, match="no weight is left to train"):
            Trainer(policy, setting)
    finally:
        asyncio.run(policy.sampler.close())


def test_saved_weights_come_back(folder: str, tmp_path: Path) -> None:
    setting = config(folder)
    policy = open_policy(setting, "cpu")
    try:
        list(Trainer(policy, setting).learn([group(policy)], 1))
        policy.save_weights(tmp_path / "weights.safetensors")
        kept = {name: weight.clone() for name, weight in policy.trained.items()}
        list(Trainer(policy, setting).learn([group(policy)], 2))
        assert not all(torch.equal(kept[name], weight) for name, weight in policy.trained.items())
        policy.load_weights(tmp_path / "weights.safetensors")
        assert all(torch.equal(kept[name], weight) for name, weight in policy.trained.items())
    finally:
        asyncio.run(policy.sampler.close())


def test_the_rate_rises_over_updates_and_falls_over_steps() -> None:
    config = RlConfig(max_steps=5, lr=1.0, warmup_steps=2, min_lr_ratio=0.2)
    # After two updates it is whole; of the 0.8 that it falls by, step 3 has half, the last one all.
    found = [config.lr_at(step, update) for step, update in ((1, 1), (1, 2), (3, 6), (5, 10))]
    assert found == pytest.approx([0.5, 1.0, 0.6, 0.2])
    assert RlConfig(max_steps=1, lr=1.0, min_lr_ratio=0.1).lr_at(1, 1) == 1.0, "a single step is the first"
    assert {RlConfig(max_steps=9, lr=1.0).lr_at(step, 1) for step in range(1, 10)} == {1.0}


def test_advantages_that_are_the_same_for_all_tokens_give_the_loss_of_one_for_the_attempt(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last bit: a vector per attempt is what one number per attempt was; and each token has its own."""
    setting = config(folder)
    policy = open_policy(setting, "cpu")
    try:
        made = group(policy)
        items = items_of([made], setting, 1)
        assert [set(item.advantages) for item in items] == [{v} for v in group_advantages(made.rewards)]

        def learnt(advantages: list[list[float]]) -> tuple[float, dict[str, torch.Tensor]]:
            monkeypatch.setattr("coa.rl.update.advantages_of", lambda group, config: advantages)
            stats = next(iter(Trainer(policy, setting).learn([made], 1)))
            return stats.loss, {n: w.grad.clone() for n, w in policy.trained.items() if w.grad is not None}

        def by_hand() -> float:
            """The mean over tokens of -advantage: all ratios are 1, as nothing has changed since sampling."""
            tokens = [-value for item in items for value in item.advantages]
            return sum(tokens) / len(tokens)

        loss, gradient = learnt([list(item.advantages) for item in items])
        again, same = learnt([[item.advantages[0]] * item.tokens for item in items])
        assert loss == again == pytest.approx(by_hand(), abs=1e-5)
        assert all(torch.equal(gradient[name], same[name]) for name in gradient)
        first_only = [[item.advantages[0], *[0.0] * (item.tokens - 1)] for item in items]
        assert not all(torch.equal(gradient[name], other) for name, other in learnt(first_only)[1].items())
    finally:
        asyncio.run(policy.sampler.close())
