"""Which part each agent of a team plays: by explicit type, by the user's map, or by its name; and who decided.

# roles.toml
[agents]
fact_checker = "verify"        # act, plan, reflect, verify or drop
[tools]
open_url = "crawl_page"        # a tool agent of the profile, or drop
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from pydantic import Field

from coa.config import load_config
from coa.distill.team_run import AgentRun, ModelCall, Purpose
from coa.errors import ConfigError
from coa.trajectory import Profile
from coa.trajectory.types import Frozen


class Role(StrEnum):
    ACT = "act"
    """Thinks and calls tools or other agents."""
    PLAN = "plan"
    REFLECT = "reflect"
    VERIFY = "verify"
    DROP = "drop"
    """What it writes is for the team's housekeeping and is left out."""


class Decider(StrEnum):
    TYPE = "type"
    MAP = "map"
    NAME = "name"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Decision:
    role: str
    by: Decider


class RoleMap(Frozen):
    """What the user's file assigns."""

    agents: Mapping[str, Role] = Field(default_factory=dict)
    tools: Mapping[str, str] = Field(default_factory=dict)


def load_roles(path: str | Path | None, profile: Profile | None) -> RoleMap:
    """The user's map. Tools must be mapped to tool agents of the profile, where there is a profile already."""
    if path is None:
        return RoleMap()
    hint = 'a line under [agents] reads name = "act", "plan", "reflect", "verify" or "drop"'
    roles = load_config(RoleMap, path, hint=hint)
    if profile is None:
        return roles
    for tool, tag in roles.tools.items():
        if tag not in (*profile.tools, Role.DROP):
            raise ConfigError(
                f"{path}: tools.{tool}: {tag!r} is no tool agent of the profile {profile.name!r}",
                hint=f"write one of {', '.join(profile.tools)} or drop",
            )
    return roles


# Verifiers before critics: a "review checker" checks. Names are cut into words first, so "planet" is no planner.
_NAMES: Final = (
    (Role.VERIFY, r"verif\w*|valid(?:ator|ation|ate)|(?:fact|double|answer)?check(?:er|ing)?|judge|evaluat\w*|grader"),
    (Role.REFLECT, r"reflect\w*|critic|critique|review(?:er)?|debugger"),
    (Role.PLAN, r"plan(?:ner|ning)?|strateg\w*|decompos\w*"),
    (Role.DROP, r"summar\w*|compact\w*|memory|logger|formatter"),
)
_PATTERNS: Final = tuple((role, re.compile(rf"(?:{words})", re.IGNORECASE)) for role, words in _NAMES)
_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


@dataclass
class Roles:
    """Assigns, and remembers what it decided."""

    given: RoleMap = field(default_factory=RoleMap)
    decided: dict[str, Decision] = field(default_factory=dict)

    def of_agent(self, run: AgentRun, *, root: bool) -> Role:
        decision = self._agent(run, root)
        self.decided[run.agent] = decision
        return Role(decision.role)

    def of_call(self, call: ModelCall, role: Role, run: AgentRun) -> Role:
        """One call's part: planning is recognised by type even in an agent that otherwise acts."""
        if call.purpose is Purpose.PLAN and role is Role.ACT:
            self.decided[f"{run.agent} (planning)"] = Decision(Role.PLAN, Decider.TYPE)
            return Role.PLAN
        return role

    def drops(self, agent: str, tool: str) -> bool:
        """Whether the user's file leaves a member out whose run the trace does not have."""
        return Role.DROP in (self.given.agents.get(agent), self.given.tools.get(tool))

    def _agent(self, run: AgentRun, root: bool) -> Decision:
        if root:  # it answers the question, whatever it is called
            return Decision(Role.ACT, Decider.DEFAULT)
        if (typed := _by_words(run.type)) is not None:
            return Decision(typed, Decider.TYPE)
        if (mapped := self.given.agents.get(run.agent)) is not None:
            return Decision(mapped, Decider.MAP)
        named = _by_words(run.agent)
        # What an agent looked up is evidence, whatever it is called.
        if named is None or (named is Role.DROP and any(call.calls for call in run.model_calls)):
            return Decision(Role.ACT, Decider.DEFAULT)
        return Decision(named, Decider.NAME)


def _by_words(name: str) -> Role | None:
    words = [word.casefold() for word in _WORDS.findall(name)]
    return next((role for role, pattern in _PATTERNS if any(map(pattern.fullmatch, words))), None)
