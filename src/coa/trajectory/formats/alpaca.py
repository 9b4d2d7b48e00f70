"""Alpaca rows: `instruction`, `input`, and `output` with the whole trajectory as tagged text, as in AFM's SFT data."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Final

from coa.trajectory.codec import parse, render
from coa.trajectory.conversation import joined
from coa.trajectory.formats.rows import Row
from coa.trajectory.identity import content_id
from coa.trajectory.profile import Kind, Profile, load_profile, shipped
from coa.trajectory.shapes import Form
from coa.trajectory.types import Message, Stop, Task, Trajectory

FIELDS: Final = frozenset({"instruction", "input", "output"})
_OPENING: Final = re.compile(r"<([a-z][a-z0-9_]*)>")


def is_alpaca(row: Row) -> bool:
    return set(row) >= FIELDS


def defect_of(row: Row) -> str | None:
    """Why a row has no trajectory, or None. Mistakes in the tags do not count: the codec repairs and records them."""
    found = [row.get(name) for name in ("instruction", "input", "output")]
    if any(value is not None and not isinstance(value, str) for value in found):
        return "a field that is not text"
    try:
        _earlier(row.get("history"))
    except ValueError as error:
        return str(error)
    instruction, question, output = (str(value or "").strip() for value in found)
    if not output:
        return "no output"
    return None if instruction or question else "no question"


def from_alpaca(row: Row, profile: Profile | None = None) -> Trajectory:
    """Read the tagged text into steps. Without a profile, the one that fits the tags best is used."""
    instruction, question, output = (str(row.get(name) or "") for name in ("instruction", "input", "output"))
    earlier = _earlier(row.get("history"))
    profile = profile or guess_profile(output)
    steps = parse(output, profile)
    answered = any(profile.agents[step.agent].kind is Kind.ANSWER for step in steps if step.agent in profile.agents)
    return Trajectory(
        task=Task(
            id=content_id(instruction, question, ((turn.role, turn.content) for turn in earlier)),
            question=question or instruction,
            conversation=earlier,
        ),
        profile=profile.name,
        profile_hash=profile.hash,
        steps=steps,
        stop=Stop.ANSWERED if answered else Stop.UNANSWERED,
        prompt=_prompt(instruction, question, earlier),
        meta={"format": "alpaca"} if instruction else {"format": "alpaca", "prompt_field": "input"},
    )


def to_alpaca(trajectory: Trajectory, profile: Profile) -> dict[str, Any]:
    messages = trajectory.prompt or profile.messages(trajectory.task)
    system = "\n\n".join(message.content for message in messages if message.role == "system")
    history, last = _history([message for message in messages if message.role != "system"])
    rest = "\n\n".join(message.content for message in last)
    if not system and trajectory.meta.get("prompt_field") != "input":
        system, rest = rest, ""  # a prompt of one message is an instruction without input
    row = {"instruction": system, "input": rest, "output": render(trajectory.steps, profile)}
    return {**row, "history": history} if history else row


def guess_profile(text: str) -> Profile:
    """The shipped profile that fits a transcript best.

    It is the profile that lacks the fewest tags of the text. A tag that few profiles have counts more than one that
    many have, because `<code>` also occurs in web pages. Among equals the form of the answer decides, then the size.
    """
    profiles = [profile for name in shipped() if (profile := load_profile(name)).recognised]
    knowing = Counter(tag for profile in profiles for tag in profile.agents)
    found = {tag: count / knowing[tag] for tag, count in Counter(_OPENING.findall(text)).items() if tag in knowing}
    fenced = "```" in text[text.rfind("<answer>") :]
    likely, unlikely = (Form.CODE, Form.BOXED) if fenced else (Form.BOXED, Form.CODE)

    def misfit(profile: Profile) -> tuple[float, int, int]:
        lacking = sum(weight for tag, weight in found.items() if tag not in profile.agents)
        form = profile.shape("answer").form
        return lacking, (form is unlikely) - (form is likely), len(profile.agents)

    return min(profiles, key=misfit)


def _prompt(instruction: str, question: str, earlier: tuple[Message, ...]) -> tuple[Message, ...]:
    """As these rows are used in training: first the instruction, then earlier turns, then the question."""
    if not question:
        return (*earlier, Message(role="user", content=instruction))
    if not instruction:
        return (*earlier, Message(role="user", content=question))
    return (Message(role="system", content=instruction), *earlier, Message(role="user", content=question))


def _history(messages: list[Message]) -> tuple[list[list[str]], list[Message]]:
    """Earlier turns as pairs of what the user and the assistant said, and the messages after the last such pair."""
    answered = [at for at, message in enumerate(messages) if message.role == "assistant"]
    end = answered[-1] + 1 if answered else 0
    pairs: list[list[str]] = []
    for message in joined(messages[:end]):
        if message.role == "assistant" and pairs and not pairs[-1][1]:
            pairs[-1][1] = message.content
        else:
            pairs.append([message.content, ""] if message.role == "user" else ["", message.content])
    return pairs, messages[end:]


def _earlier(history: object) -> tuple[Message, ...]:
    """The turns of a `history`; a side of a pair that is empty was not said."""
    turns: list[Message] = []
    for pair in history if isinstance(history, list | tuple) else ():
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(isinstance(side, str) for side in pair):
            raise ValueError("its history is not a list of pairs of texts")
        user, assistant = pair
        turns += [Message(role="user", content=user)] if user else []
        turns += [Message(role="assistant", content=assistant)] if assistant else []
    return tuple(turns)
