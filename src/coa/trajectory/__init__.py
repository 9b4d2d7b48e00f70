"""The trajectory: its types, its grammar, its text, its tokens and its files."""

from coa.trajectory.codec import Closed, Delta, Event, Opened, Parser, neutralise, parse, pieces, readable, render
from coa.trajectory.ledger import Ledger, Sample, Tokenizer, attribute, ledger_of
from coa.trajectory.profile import Agent, Kind, Limits, Profile, load_profile, profile_of, with_profile
from coa.trajectory.protocol import Rule, State, check
from coa.trajectory.sample import Drop, Tally, fit, to_sample, to_samples
from coa.trajectory.shapes import ArgumentField, Form, Reading, Shape, Slip
from coa.trajectory.store import JsonlWriter, ParquetWriter, read, write, writer
from coa.trajectory.types import CUT_SHORT, OBSERVATION, Author, CodeTests, Failure, FailureSite, Message, Repair

# isort: split
from coa.trajectory.types import (
    RepairKind,
    Score,
    Step,
    Stop,
    Task,
    TestCase,
    Tokens,
    Trajectory,
    TurnEnd,
    Usage,
    observation,
)

__all__ = [
    "CUT_SHORT", "OBSERVATION", "Agent", "ArgumentField", "Author", "Closed", "CodeTests", "Delta", "Drop",
    "Event", "Failure", "FailureSite", "Form", "JsonlWriter", "Kind", "Ledger", "Limits", "Message", "Opened",
    "ParquetWriter", "Parser", "Profile", "Reading", "Repair", "RepairKind", "Rule", "Sample", "Score", "Shape",
    "Slip", "State", "Step", "Stop", "Tally", "Task", "TestCase", "Tokenizer", "Tokens", "Trajectory",
    "TurnEnd", "Usage", "attribute", "check", "fit", "ledger_of", "load_profile",
    "neutralise", "observation", "parse", "pieces", "profile_of", "read", "readable", "render", "to_sample",
    "to_samples", "with_profile", "write", "writer",
]  # fmt: skip
