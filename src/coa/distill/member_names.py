"""Which member of a team a tool call means: by the call's own name, or by an argument of a generic tool."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from coa.distill.team_run import ToolCall

_TRANSFER: Final = re.compile(r"(?:transfer(?:_back|_control)*_to|hand_?(?:off|over|back)(?:_to)?)_(?P<who>.+)")
"""Hands over control: whoever is named goes on, and nobody waits for a report."""
_ASK: Final = re.compile(
    r"(?:ask|call|consult|invoke|run|use|query|contact|message|talk_to|send(?:_task|_message)?_to|forward_to|route_to"
    r"|assign(?:_task|_work)?_to|delegate(?:_task|_work)?(?:_to)?|ask_question_to)_(?P<who>.+)"
)
_SUFFIX: Final = re.compile(r"(?P<who>.+?)_(?:agent|tool|agent_tool|expert|assistant)")
_GENERIC: Final = re.compile(
    r"(?:task|agent|sub_?agent|hand_?off|transfer|delegate(?:_task|_work)?)"
    r"|(?:transfer|hand_?off|delegate|ask|assign|route|forward|send|call|run|invoke|dispatch|consult|spawn|launch|start)"
    r"(?:_\w+)?_(?:agent|co_?worker|colleague|member|specialist|assistant|expert|team_?mate|sub_?agent|worker)s?"
)
"""Tools that name the member in an argument."""
ERROR: Final = re.compile(
    r"(?is)\A\W*(?:an? |the )?(?:[\w.]*(?:error|exception)\b|traceback|fail(?:ed\b|ure\b(?! rate))|timed out|timeout\b"
    r"|unavailable|invalid\b|(?:no such|unknown) (?:agent|co-?worker|tool|member|function)"
    r"|[^\n.]{0,40}\b(?:agent|co-?worker|tool|member|function|service)\b[^\n]{0,80}?\b(?:not found"
    r"|not exist|unknown|failed|not available|unavailable|unreachable|overloaded|timed out))"
)
"""How a result begins that is no report but the reason why there is none."""


def plain_name(name: str) -> str:
    """Words in lower case, joined by underscores: `Ask Researcher`, `askResearcher` and `ask-researcher` are equal."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return re.sub(r"[\W_]+", "_", spaced.casefold()).strip("_")


def request_of(call: ToolCall) -> str:
    texts = [value for value in call.arguments.values() if isinstance(value, str)]
    return max(texts, key=len, default="")


_NAMING: Final = (
    "agent", "agent_name", "coworker", "recipient", "to", "name", "assistant", "subagent_type", "target",
)  # fmt: skip
"""Arguments that say which member is meant."""


def possible_names(call: ToolCall) -> set[str]:
    """Plain names of the agents that a call may mean, whoever is in the team."""
    name = plain_name(call.name)
    found = {name} | {match.group("who") for pattern in (_TRANSFER, _ASK) if (match := pattern.fullmatch(name))}
    found |= {
        plain_name(text) for key in _NAMING if isinstance(text := call.arguments.get(key), str) and len(text) < 200
    }
    return {bare for plain in found if (bare := bare_name(plain))}


def guessed_in(call: ToolCall) -> str:
    """Who was meant, where nobody of that name is in the run."""
    if _GENERIC.fullmatch(plain_name(call.name)):
        named = next((call.arguments[key] for key in _NAMING if isinstance(call.arguments.get(key), str)), None)
        if named:
            return str(named)
    found = _TRANSFER.fullmatch(plain_name(call.name)) or _ASK.fullmatch(plain_name(call.name))
    return found.group("who") if found else call.name


def named_in(call: ToolCall, names: Mapping[str, str]) -> str | None:
    """The agent that a call names, of those in `names` (plain name -> name): in its own name or in an argument."""
    name = plain_name(call.name)
    for pattern in (_TRANSFER, _ASK):
        if found := pattern.fullmatch(name):
            # AG2 numbers its hand-overs: `transfer_to_researcher_1`.
            for who in (found.group("who"), re.sub(r"_\d+\Z", "", found.group("who"))):
                for plain, agent in names.items():
                    if bare_name(plain) == bare_name(who):
                        return agent
    if name in names:
        return names[name]
    if (found := _SUFFIX.fullmatch(name)) and found.group("who") in names:
        return names[found.group("who")]
    if _GENERIC.fullmatch(name):
        for value in call.arguments.values():
            if isinstance(value, str) and len(value) < 200 and plain_name(value) in names:
                return names[plain_name(value)]
    return None


def names_member(argument: str) -> bool:
    """Whether an argument of this name says which member is meant."""
    return argument in _NAMING


def bare_name(plain: str) -> str:
    """A plain name without the words for its kind: `researcher` of `researcher_agent`."""
    found = _SUFFIX.fullmatch(plain)
    return found.group("who") if found else plain


def hands_over_control(call: ToolCall) -> bool:
    name = plain_name(call.name)
    return bool(_TRANSFER.fullmatch(name)) or name.startswith(("transfer", "handoff", "hand_off", "hand_over"))


def generic(call: ToolCall) -> bool:
    return bool(_GENERIC.fullmatch(plain_name(call.name)))
