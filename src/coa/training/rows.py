"""Which samples share a row: decided from their lengths alone, so that it is known before torch is loaded."""

from __future__ import annotations

from collections.abc import Sequence


def rows_needed(lengths: Sequence[int], max_tokens: int) -> int:
    """The smallest number of rows into which `balanced` fits them."""
    rows = max(-(-sum(lengths) // max_tokens), 1)
    while rows < len(lengths) and max(sum(lengths[i] for i in row) for row in balanced(lengths, rows)) > max_tokens:
        rows += 1
    return rows


def balanced(lengths: Sequence[int], rows: int) -> list[list[int]]:
    """Indices of the lengths, in `rows` rows of about equal sums, the longest row first.

    The longest sample that is left goes to the shortest row, again and again. Several devices that work on rows at the
    same time then need about the same time.
    """
    parts: list[list[int]] = [[] for _ in range(rows)]
    loads = [0] * rows
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        least = min(range(rows), key=lambda row: (loads[row], row))
        parts[least].append(index)
        loads[least] += lengths[index]
    order = sorted(range(rows), key=lambda row: (-loads[row], row))
    return [sorted(parts[row]) for row in order]
