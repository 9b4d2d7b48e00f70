"""A shard: one of n parts of a set of tasks, so that n machines can share the work without dividing a file.

A task belongs to a shard by the SHA-256 of its id. Every machine computes the same, whatever else its file holds, in
whatever order, and whatever version of Python it has. All attempts at a task are in one shard.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema


class HasId(Protocol):
    @property
    def id(self) -> str: ...


Item = TypeVar("Item", bound=HasId)


@dataclass(frozen=True, slots=True)
class Shard:
    """Part `index` of `count` of a set of tasks, counted from 1 and written `2/8`.

    A task's id decides which part it is in.
    """

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.index <= self.count:
            parts = f"they go from 1/{self.count} to {self.count}/{self.count}" if self.count > 0 else "there are none"
            raise ValueError(f"there is no shard {self.index}/{self.count}: {parts}")

    @classmethod
    def parse(cls, text: object) -> Shard:
        """From `2/8`. Anything else is a `ValueError` that says what is wrong."""
        if isinstance(text, Shard):
            return text
        found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text.strip()) if isinstance(text, str) else None
        if found is None:
            raise ValueError(f"{text!r} is not a shard; write 2/8 for the second of eight")
        return cls(int(found[1]), int(found[2]))

    def holds(self, task: str) -> bool:
        """Whether the task with this id is in this shard."""
        digest = hashlib.sha256(task.encode("utf-8", "surrogatepass")).digest()
        return int.from_bytes(digest, "big") % self.count == self.index - 1

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.parse, serialization=core_schema.to_string_ser_schema(when_used="always")
        )


def in_shard(tasks: Iterable[Item], shard: Shard | None) -> list[Item]:
    """The tasks of a shard, in their order; all of them if there is none."""
    return [task for task in tasks if shard is None or shard.holds(task.id)]
