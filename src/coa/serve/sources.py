"""The pages that a run read."""

from __future__ import annotations

from coa.trajectory import Trajectory


def sources_of(trajectory: Trajectory) -> tuple[str, ...]:
    """Addresses of the pages whose text the agents got, each once, in the order of reading."""
    found: dict[str, None] = {}
    for step in trajectory.steps:
        pages = step.meta.get("pages")
        for page in pages if isinstance(pages, list) else ():
            if isinstance(page, dict) and isinstance(page.get("url"), str) and "error" not in page:
                found[str(page["url"])] = None
    return tuple(found)
