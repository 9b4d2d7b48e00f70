"""What an evaluation will do, before it does it: `coa.evaluate.plan(config)`. No model is opened."""

from __future__ import annotations

from coa.benchmarks.data import Loaded
from coa.choices import Select
from coa.evaluate.config import EvalConfig
from coa.evaluate.evaluation import load_benchmarks, run_config_of, samples_of
from coa.models.footprint import Memory, running_memory, shape_of
from coa.models.places import check_model
from coa.models.tokenizer import load_tokenizer
from coa.report import plural
from coa.runtime import RunConfig
from coa.runtime.opening import prompts_of
from coa.trajectory import Limits, Task, load_profile
from coa.trajectory.types import Frozen


class BenchmarkPlan(Frozen):
    """What will be done with one benchmark."""

    name: str
    tasks: int
    shard: str | None
    """The part of the benchmark that these tasks are, as i/n."""
    attempts_per_task: int
    attempts: int
    profile: str
    scorer: str
    max_tokens_per_attempt: int
    """Tokens that the model may write in one attempt."""
    max_tokens: int
    """Tokens that the model may write in all attempts."""
    max_context_tokens: int
    max_tool_calls: int
    """Tool calls that all attempts may make."""
    max_judge_calls: int
    """Calls of the judge if no answer was judged before; answers that a rule decides take none."""
    first_prompt: str
    """The prompt of the first task: as the model reads it, or as messages where its tokenizer is the server's."""
    first_prompt_tokens: int | None

    def lines(self) -> list[str]:
        judged = f", at most {plural(self.max_judge_calls, 'call')} of the judge" if self.max_judge_calls else ""
        size = "" if self.first_prompt_tokens is None else f", {plural(self.first_prompt_tokens, 'token')}"
        name = f"{self.name}, shard {self.shard}" if self.shard else self.name
        return [
            f"{name}: {plural(self.tasks, 'task')}, {plural(self.attempts, 'attempt')}; profile {self.profile}, "
            f"scorer {self.scorer}{judged}",
            f"the model writes at most {self.max_tokens_per_attempt:,} tokens in an attempt, {self.max_tokens:,} in "
            f"all, in contexts of at most {self.max_context_tokens:,}",
            f"at most {plural(self.max_tool_calls, 'tool call')}",
            *([f"first prompt{size}:\n{self.first_prompt}"] if self.tasks else []),
        ]


class EvalPlan(Frozen):
    """What `coa eval` will do with these settings."""

    model: str
    benchmarks: tuple[BenchmarkPlan, ...]
    memory: Memory | None
    """Estimated peak of this process; None for a model server, and where the model's files do not say."""

    @property
    def attempts(self) -> int:
        return sum(item.attempts for item in self.benchmarks)

    def lines(self) -> list[str]:
        """For people."""
        found = [line for item in self.benchmarks for line in item.lines()]
        return [*found, f"memory of the model: {self.memory}"] if self.memory is not None else found


def plan(config: EvalConfig) -> EvalPlan:
    """Read the tasks and count what the evaluation would do; whatever would be refused is refused here too.

    No model is opened and nothing is written. Tools that are given with `tools` or `mcp` and are not in the profile add
    their descriptions to the prompt when they are opened; the first prompt does not have them.
    """
    loaded = load_benchmarks(config)
    check_model(config.run.model)
    shape = shape_of(config.run.model)
    memory = None
    if shape is not None:
        # As much as the engine sets aside for contexts, unless all of them together need less.
        longest = max(_limits(run_config_of(item, config.run)).context_tokens for item in loaded)
        rows = min(config.run.concurrency, 128)
        memory = running_memory(shape, kv_bytes=min(2 << 30, 4 * shape.cached * longest * rows))
    return EvalPlan(
        model=config.run.model, benchmarks=tuple(_benchmark(item, config) for item in loaded), memory=memory
    )


def _benchmark(loaded: Loaded, config: EvalConfig) -> BenchmarkPlan:
    run, samples = run_config_of(loaded, config.run), samples_of(loaded, config)
    limits, attempts = _limits(run), samples * len(loaded.tasks)
    scorer = config.scorer or loaded.benchmark.scorer
    judged = attempts if config.judge is not None and scorer in ("judge", "auto") else 0
    choices = len(loaded.tasks) if config.selection is Select.JUDGE else 0
    prompt, tokens = _prompt(loaded.tasks[0], run) if loaded.tasks else ("", None)
    return BenchmarkPlan(
        name=loaded.benchmark.name,
        tasks=len(loaded.tasks),
        shard=None if config.shard is None else str(config.shard),
        attempts_per_task=samples,
        attempts=attempts,
        profile=run.loaded_profile().name,
        scorer=scorer,
        max_tokens_per_attempt=limits.model_tokens,
        max_tokens=limits.model_tokens * attempts,
        max_context_tokens=limits.context_tokens,
        max_tool_calls=limits.tool_calls * attempts,
        max_judge_calls=judged + choices,
        first_prompt=prompt,
        first_prompt_tokens=tokens,
    )


def _limits(run: RunConfig) -> Limits:
    profile = run.loaded_profile()
    return run.limits_of(profile) or profile.limits


def _prompt(task: Task, run: RunConfig) -> tuple[str, int | None]:
    profile = load_profile(task.profile) if task.profile else run.loaded_profile()
    messages = prompts_of(run, [task])(task) or profile.messages(task)
    source = run.tokenizer or run.model
    if not source.startswith(("http://", "https://")):
        text, ids = load_tokenizer(source).encode_prompt(messages)
        return text, len(ids)
    return "\n\n".join(f"[{message.role}]\n{message.content}" for message in messages), None
