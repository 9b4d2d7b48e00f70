"""Offline worlds: a small web of pages, a search index and questions about them, all from one seed.

`open_world` serves a world on loopback and returns the tool settings that reach it, so that every command uses a world
through the registry of tools.
"""

from coa.worlds.folder import locate
from coa.worlds.serving import OpenWorld, open_world, world_tools

__all__ = ["OpenWorld", "locate", "open_world", "world_tools"]
