"""`coa run`: ask one question and watch the agents at work."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coa.models.base import Model, Sampling
    from coa.runtime import Chain, ChainEvent, Select
    from coa.tools import Tool
    from coa.trajectory import Message, Profile, Step, Task, Trajectory


def run(
    question: Annotated[str, typer.Argument(help="What to find out.")],
    model: Annotated[
        str, typer.Option(help="URL of a model server, smollm2, a model folder, or a hub id.")
    ] = "smollm2",
    model_name: Annotated[str | None, typer.Option(help="Which model of the server, if it serves several.")] = None,
    profile: Annotated[str, typer.Option(help="Profile by name or .toml.")] = "web",
    tool: Annotated[
        list[str] | None, typer.Option(help="name=setting, or name=module:factory for one of your own. Repeatable.")
    ] = None,
    mode: Annotated[str, typer.Option(help="How to talk to a server: auto, tokens, or chat.")] = "auto",
    tokenizer: Annotated[
        str | None, typer.Option(help="For token mode, where the server's model does not tell.")
    ] = None,
    api_key_env: Annotated[str, typer.Option(help="Environment variable that holds the server's key.")] = "COA_API_KEY",
    prompt_file: Annotated[Path | None, typer.Option(help="A system prompt to use instead of the profile's.")] = None,
    temperature: Annotated[float, typer.Option(min=0)] = 1.0,
    top_p: Annotated[float, typer.Option(min=0, max=1)] = 0.9,
    top_k: Annotated[int, typer.Option(min=0)] = 20,
    seed: Annotated[int | None, typer.Option(help="For the same run again, where the model allows it.")] = None,
    best_of: Annotated[int, typer.Option(min=1, help="Sample so many and pick one.")] = 1,
    select: Annotated[str, typer.Option(help="How to pick: majority, self-check, or judge.")] = "majority",
    judge: Annotated[
        str | None, typer.Option(help="For --select judge: URL of the judge; else the model itself.")
    ] = None,
    cache: Annotated[
        str, typer.Option(help="Answers of the tools: off, record (keep and use), or replay (never ask).")
    ] = "off",
    cache_file: Annotated[Path | None, typer.Option(help="Where they are kept; one file may serve many runs.")] = None,
    out: Annotated[Path | None, typer.Option(help="Append the trajectories to this .jsonl file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the trajectory as JSON, nothing else.")] = False,
) -> None:
    """Ask one question; streams the agents as they act."""
    from coa.cli.models import open_model
    from coa.cli.terminal import show_warnings
    from coa.cli.tools import tell_absent
    from coa.models.base import Sampling
    from coa.models.connect import Mode
    from coa.runtime import Chain, Select
    from coa.tools.cache import CacheMode
    from coa.tools.recorded import open_cached_tools
    from coa.trajectory import JsonlWriter, Message, Stop, Task, load_profile

    show_warnings()
    chosen = load_profile(profile)
    task = Task(id="question", question=question)
    prompt: list[Message] | None = None
    if prompt_file is not None:
        system = Message(role="system", content=prompt_file.read_text(encoding="utf-8"))
        prompt = [system, Message(role="user", content=question)]
    sampling = Sampling(temperature, top_p, top_k, seed=seed)
    how, talk = _one_of(Select, select, "--select"), _one_of(Mode, mode, "--mode")
    keeping = _one_of(CacheMode, cache, "--cache")

    async def go() -> list[Trajectory]:
        async with open_cached_tools(tool or [], wanted=chosen.tools, mode=keeping, file=cache_file) as box:
            tell_absent(box.absent)
            asked = await open_model(model, model_name, mode=talk, tokenizer=tokenizer, api_key_env=api_key_env)
            try:
                if best_of > 1:
                    return await _best_of(asked, task, box.tools, chosen, sampling, prompt, best_of, how, judge)
                listen = None if as_json else _display(chosen)
                chain = Chain(task, asked, box.tools, chosen, sampling=sampling, prompt=prompt, listen=listen)
                return [await _interruptible(chain)]
            finally:
                await asked.close()

    done = asyncio.run(go())
    if out is not None:
        with JsonlWriter(out) as writer:
            for trajectory in done:
                writer.write(trajectory)
    picked = next((t for t in done if t.meta.get("selected")), done[0])
    if as_json:
        typer.echo(picked.to_json())
    else:
        _close(picked, len(done))
    if picked.stop in (Stop.FAILED, Stop.INTERRUPTED):
        raise typer.Exit(1)


Choice = TypeVar("Choice")


def _one_of(kind: Callable[[str], Choice], text: str, option: str) -> Choice:
    try:
        return kind(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}") from error


async def _interruptible(chain: Chain) -> Trajectory:
    """Ctrl-C ends the run, not the command: what there is of it is shown and kept."""
    running = asyncio.ensure_future(chain.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, running.cancel)
    try:
        return await running
    except asyncio.CancelledError:
        return chain.trajectory()
    finally:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)


async def _best_of(
    model: Model,
    task: Task,
    tools: Mapping[str, Tool],
    profile: Profile,
    sampling: Sampling,
    prompt: list[Message] | None,
    count: int,
    how: Select,
    judge: str | None,
) -> list[Trajectory]:
    """All candidates; the chosen one is marked in its meta."""
    from coa.cli.models import open_model
    from coa.runtime import run_many, select
    from coa.trajectory.types import FrozenDict

    runs = run_many([task], model, tools, profile, samples=count, sampling=sampling, prompt=lambda _: prompt)
    candidates = []
    async for candidate in runs:
        candidates.append(candidate)
        typer.echo(f"{len(candidates)} of {count}: {candidate.stop}, answer {candidate.answer!r}", err=True)
    candidates.sort(key=lambda candidate: candidate.sample)
    other = await open_model(judge) if judge else None
    try:
        chosen = await select(candidates, how, profile, other or model)
    finally:
        if other is not None:
            await other.close()
    return [
        c.model_copy(update={"meta": FrozenDict({**c.meta, "selected": how.value})}) if c is chosen else c
        for c in candidates
    ]


def _display(profile: Profile) -> Callable[[ChainEvent], None]:
    """Each agent in its colour, text as it comes, observations folded."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    from coa.cli.terminal import printable
    from coa.runtime import Observed
    from coa.trajectory import Delta, Opened

    console = Console(highlight=False)
    middle_of_line = False

    def show(event: ChainEvent) -> None:
        nonlocal middle_of_line
        if isinstance(event, Opened):
            console.print(
                Text(("\n" if middle_of_line else "") + event.agent, style=f"bold {profile.color(event.agent)}")
            )
            middle_of_line = False
        elif isinstance(event, Delta):
            text = printable(event.text) if middle_of_line else printable(event.text).lstrip("\n")
            console.print(Text(text, style=profile.color(event.agent)), end="")
            middle_of_line = bool(text) or middle_of_line
        elif isinstance(event, Observed):
            if middle_of_line:
                console.print()
            middle_of_line = False
            console.print(Text(event.step.agent, style="bold bright_black"))
            console.print(Padding(Text(_folded(event.step), style="bright_black"), (0, 0, 0, 2), expand=False))

    return show


def _folded(step: Step, most: int = 6) -> str:
    from coa.cli.terminal import printable

    lines = printable(step.text).strip().split("\n")
    return "\n".join(lines if len(lines) <= most else [*lines[:most], f"... {len(lines) - most} more lines"])


def _close(trajectory: Trajectory, candidates: int) -> None:
    """The closing line: results to stdout."""
    from coa.cli.terminal import printable

    usage = trajectory.usage
    answer = printable(trajectory.answer.strip()) if trajectory.answer else "(none)"
    chosen = f" (sample {trajectory.sample} of {candidates})" if candidates > 1 else ""
    typer.echo(
        f"\nanswer: {answer}{chosen}\n{trajectory.stop}, {len(trajectory.steps)} steps, "
        f"{usage.total_tokens} tokens ({usage.completion_tokens} written, {usage.cached_tokens} from cache), "
        f"{usage.tool_calls} tool calls, {usage.seconds:.1f} s"
    )
    if trajectory.failure:
        typer.echo(f"failed in the {trajectory.failure.site}: {trajectory.failure.message}", err=True)
