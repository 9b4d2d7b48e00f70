"""Alpaca rows: `instruction`, `input`, and `output` with the whole trajectory as tagged text, as in AFM's SFT data."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Final

from coa.trajectory.codec import parse, render
from coa.trajectory.formats.rows import Row
from coa.trajectory.formats.tasks import content_id
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
    instruction, question, output = (str(value or "").strip() for value in found)
    if not output:
        return "no output"
    return None if instruction or question else "no question"


def from_alpaca(row: Row, profile: Profile | None = None) -> Trajectory:
    """Read the tagged text into steps. Without a profile, the one that fits the tags best is used."""
    instruction, question, output = (str(row.get(name) or "") for name in ("instruction", "input", "output"))
    profile = profile or guess_profile(output)
    steps = parse(output, profile)
    answered = any(profile.agents[step.agent].kind is Kind.ANSWER for step in steps if step.agent in profile.agents)
    return Trajectory(
        task=Task(id=content_id(instruction, question), question=question or instruction),
        profile=profile.name,
        profile_hash=profile.hash,
        steps=steps,
        stop=Stop.ANSWERED if answered else Stop.UNANSWERED,
        prompt=_prompt(instruction, question),
        meta={"format": "alpaca"} if instruction else {"format": "alpaca", "prompt_field": "input"},
    )


def to_alpaca(trajectory: Trajectory, profile: Profile) -> dict[str, Any]:
    messages = trajectory.prompt or profile.messages(trajectory.task)
    system = "\n\n".join(message.content for message in messages if message.role == "system")
    rest = "\n\n".join(message.content for message in messages if message.role != "system")
    if not system and trajectory.meta.get("prompt_field") != "input":
        system, rest = rest, ""  # a prompt of one message is an instruction without input
    return {"instruction": system, "input": rest, "output": render(trajectory.steps, profile)}


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


def _prompt(instruction: str, question: str) -> tuple[Message, ...]:
    """As these rows are used in training: first the instruction, then the question."""
    if not question:
        return (Message(role="user", content=instruction),)
    if not instruction:
        return (Message(role="user", content=question),)
    return (Message(role="system", content=instruction), Message(role="user", content=question))
