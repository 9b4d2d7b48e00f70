"""The live recorder for smolagents teams: everything every agent of a team does, as it happens."""

from coa.distill.recorder.recorder import Recorder, record

__all__ = ["Recorder", "record"]
