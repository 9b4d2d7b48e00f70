"""The world's teacher: a smolagents team of a manager with searching, reading, coding, criticising and checking agents.

Its model is that of any server, or the expert: a program that plays every agent and errs at a set rate.
"""

from typing import Final

FACTORY: Final = "coa.worlds.team.agents:build"
"""Named, not imported: smolagents is loaded where teams run."""
