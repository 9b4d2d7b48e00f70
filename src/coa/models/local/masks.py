"""Which tokens a grammar allows: for each state of its automaton, computed once for the whole vocabulary.

A token is allowed in a state if its bytes lead to a state from which the step can still end, and if it can end within
the tokens that are left. The automaton works on bytes, so the walks of all tokens are done at once, a byte at a time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from coa.trajectory.grammar.language import DEAD, FAR, Language

_KEPT: Final = 512
"""Number of states whose result is kept."""


class Known(NamedTuple):
    """What is known of a state."""

    language: Language
    """Kept, because it is known by its id."""
    need: Tensor
    """[vocabulary], int16: an upper bound of the tokens until the step can end if this token comes next, itself
    included. `FAR` for tokens that are not allowed."""
    legal: Tensor
    """[vocabulary], bool: what is allowed if there are tokens enough. Comparing `need` takes six times as long."""
    least: int
    most: int
    """Smallest and largest need of all legal tokens."""


class Masks:
    """The masks of one vocabulary. A token that needs more tokens than are left is not allowed."""

    def __init__(self, spellings: Sequence[bytes | None], width: int, device: torch.device) -> None:
        self._spellings = spellings
        self._width, self._device = width, device
        # The longest tokens come first, so that each further byte concerns a shorter part of the list.
        order = sorted((n for n, s in enumerate(spellings) if s), key=lambda n: -len(spellings[n] or b""))
        self._order = torch.tensor(order)
        spelled = [spellings[n] or b"" for n in order]
        self._columns = [
            torch.tensor([s[at] for s in spelled[: sum(len(s) > at for s in spelled)]])
            for at in range(len(spelled[0]) if spelled else 0)
        ]
        self._tables: WeakKeyDictionary[Language, Tensor] = WeakKeyDictionary()
        self._known: OrderedDict[tuple[int, int], Known] = OrderedDict()

    def allow(self, language: Language, state: int, left: int, row: Tensor) -> bool:
        """Write into `row`, [vocabulary], bool, which tokens may come next. False, and nothing is written, if none may:
        no token spells what has to come, or the tokens left do not suffice."""
        known = self.known(language, state)
        if known.least > min(left, FAR - 1):
            return False
        if left < known.most:
            torch.le(known.need, left, out=row)
        else:
            row.copy_(known.legal)
        return True

    def known(self, language: Language, state: int) -> Known:
        key = (id(language), state)
        found = self._known.get(key)
        if found is None:
            need = self._work_out(language, state)
            legal = need < FAR
            most = int(torch.where(legal, need, 0).max())
            found = self._known[key] = Known(language, need, legal, int(need.min()), most)
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        return found

    def after(self, language: Language, state: int, token: int) -> int:
        spelled = self._spellings[token] if token < len(self._spellings) else None
        return language.walk(state, spelled) if spelled else DEAD

    def _work_out(self, language: Language, state: int) -> Tensor:
        table = self._table(language)
        reached = torch.full((len(self._order),), state, dtype=torch.long)
        for column in self._columns:
            size = len(column)
            reached[:size] = table[reached[:size] * 256 + column]
        distance = torch.tensor(language.distance, dtype=torch.int16)[reached]
        need = torch.full((self._width,), FAR, dtype=torch.int16)
        need[self._order] = torch.where(distance < FAR, distance + 1, FAR).to(torch.int16)
        return need.to(self._device)

    def _table(self, language: Language) -> Tensor:
        table = self._tables.get(language)
        if table is None or len(table) < len(language.table):
            # Copied, because an array whose buffer is shared could not grow.
            table = torch.frombuffer(bytearray(language.table), dtype=torch.int32).long()
            self._tables[language] = table
        return table
