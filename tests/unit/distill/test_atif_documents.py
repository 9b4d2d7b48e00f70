"""ATIF: what we write follows its rules and comes back as it was; what others wrote is read."""

from __future__ import annotations

import importlib.util
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings

from coa.distill.atif_writer import to_atif
from coa.distill.importers.atif_reader import from_atif
from coa.distill.team_run import ModelCall, Note, Purpose, SubRun, TeamRun, ToolResult
from coa.trajectory import Usage
from support.atif_rules import assert_atif
from support.team_runs import team_runs
from support.told_teams import asks, team, thinks


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(team_runs())
def test_a_team_run_comes_back_from_atif_as_it_was(run: TeamRun) -> None:
    document = orjson.loads(orjson.dumps(to_atif(run)))
    assert_atif(document)
    assert from_atif(document) == run


@pytest.mark.skipif(importlib.util.find_spec("harbor") is None, reason="harbor needs Python 3.12 or later")
@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(team_runs())
def test_harbor_accepts_what_we_write(run: TeamRun) -> None:
    from harbor.models.trajectories import Trajectory

    Trajectory.model_validate(orjson.loads(orjson.dumps(to_atif(run))))


def foreign(version: str) -> dict[str, Any]:
    """A document as another program would write it."""
    helper = {
        "schema_version": version,
        "session_id": "s-helper",
        "trajectory_id": "helper-1",
        "agent": {"name": "helper", "version": "1"},
        "steps": [
            {"step_id": 1, "source": "user", "message": "Look it up"},
            {
                "step_id": 2,
                "source": "agent",
                "message": "330 m",
                "metrics": {"prompt_tokens": 7, "completion_tokens": 2},
            },
        ],
    }
    old = version in ("ATIF-v1.0", "ATIF-v1.4", "ATIF-v1.6")
    if old:
        del helper["trajectory_id"]  # it came with v1.7
    return {
        "schema_version": version,
        "session_id": "s1",
        "agent": {
            "name": "boss",
            "version": "2",
            "model_name": "m",
            "tool_definitions": [{"type": "function", "function": {"name": "ask"}}],
        },
        "steps": [
            {"step_id": 1, "source": "system", "message": "You are the boss."},
            {"step_id": 2, "source": "user", "message": [{"type": "text", "text": "How tall?"}]},
            {
                "step_id": 3,
                "source": "agent",
                "message": "old",
                "is_copied_context": True,
                "metrics": {"prompt_tokens": 99},
            },
            {
                "step_id": 4,
                "timestamp": "2026-01-01T00:00:00Z",
                "source": "agent",
                "message": "I ask.",
                "reasoning_content": "Who knows?",
                "tool_calls": [{"tool_call_id": "a", "function_name": "ask", "arguments": {"q": "tall?"}}],
                "observation": {
                    "results": [
                        {
                            "source_call_id": "a",
                            "content": "330 m",
                            "subagent_trajectory_ref": [
                                {"session_id": "s-helper"} if old else {"trajectory_id": "helper-1"}
                            ],
                        }
                    ]
                },
                "metrics": {"prompt_tokens": 10, "completion_tokens": 5, "cached_tokens": 4},
            },
            {"step_id": 5, "source": "user", "message": "Hurry."},
            {
                "step_id": 6,
                "source": "agent",
                "message": "Done.",
                "tool_calls": [{"tool_call_id": "b", "function_name": "finish", "arguments": {"answer": "1082 ft"}}],
                "observation": {"results": [{"source_call_id": "b", "content": "ok"}]},
            },
        ],
        "final_metrics": {"total_prompt_tokens": 17, "total_completion_tokens": 7},
        "subagent_trajectories": [helper],
    }


@pytest.mark.parametrize("version", [f"ATIF-v1.{minor}" for minor in (0, 4, 6, 7, 8)])
def test_documents_of_other_programs_are_read(version: str) -> None:
    run = from_atif(foreign(version), "f.json")
    assert (run.source.format, run.task.id, run.task.question) == ("atif", "s1", "How tall?")
    assert (run.root.agent, run.root.system, run.root.tools) == ("boss", "You are the boss.", ("ask",))
    copied, asks, sub, report, hurry, last = run.root.events
    assert isinstance(copied, ModelCall) and copied.copied
    assert isinstance(asks, ModelCall) and (asks.thought, asks.text, asks.model) == ("Who knows?", "I ask.", "m")
    assert isinstance(sub, SubRun) and (sub.call_id, sub.run.answer) == ("a", "330 m")
    assert isinstance(report, ToolResult) and report.report_of == (sub.run.id,)
    assert isinstance(hurry, Note) and hurry.text == "Hurry."
    assert isinstance(last, ModelCall) and last.purpose is Purpose.ANSWER and not last.calls
    assert run.answer == "1082 ft"
    # 10 + 7 read and 5 + 2 written; what was copied is not counted again.
    assert (run.usage.prompt_tokens, run.usage.completion_tokens, run.usage.model_calls) == (17, 7, 3)
    assert run.unmetered_calls == 1


def test_a_reference_that_leads_nowhere_is_left_out_by_name() -> None:
    document = foreign("ATIF-v1.8")
    document["subagent_trajectories"] = []
    run = from_atif(document)
    assert [item.place for item in run.left_out] == ["helper-1"]


def test_an_embedded_run_that_nothing_refers_to_is_kept() -> None:
    document = foreign("ATIF-v1.8")
    del document["steps"][3]["observation"]["results"][0]["subagent_trajectory_ref"]
    last = from_atif(document).root.events[-1]
    assert isinstance(last, SubRun) and last.run.agent == "helper" and last.call_id is None


def test_tokens_as_sampled_and_costs_stand_where_atif_has_fields_for_them() -> None:
    sampled = {"prompt_ids": [1, 2], "ids": [3], "logprobs": [-0.5]}
    run = team(
        ModelCall(
            text="I look.", usage=Usage(prompt_tokens=2, completion_tokens=1, cost=0.25), meta={"sampled": sampled}
        ),
        answer="330 m",
    )
    document = to_atif(run)
    metrics = document["steps"][-1]["metrics"]
    assert (metrics["prompt_token_ids"], metrics["completion_token_ids"], metrics["logprobs"]) == ([1, 2], [3], [-0.5])
    assert metrics["cost_usd"] == 0.25 and document["final_metrics"]["total_cost_usd"] == 0.25
    assert "sampled" not in document["steps"][-1]["extra"]["coa"].get("meta", {})
    assert from_atif(document).root == run.root and document["schema_version"] == "ATIF-v1.8"


def test_fields_of_the_newest_version_that_others_write_are_read() -> None:
    document = foreign("ATIF-v1.8")
    step = next(s for s in document["steps"] if s["source"] == "agent" and not s.get("is_copied_context"))
    step["metrics"] = {"prompt_tokens": 9, "completion_tokens": 2, "cost_usd": 0.5}
    step["metrics"] |= {"completion_token_ids": [7, 8], "logprobs": [-1, -2.5]}
    step["reasoning_effort"] = "high"
    step["message"] = [{"type": "text", "text": "Listen."}, {"type": "audio", "source": {"path": "a.wav"}}]
    run = from_atif(document)
    call = run.root.model_calls[0]
    assert call.text == "Listen.\n[audio]" and call.usage is not None and call.usage.cost == 0.5
    assert call.meta["sampled"] == {"ids": [7, 8], "logprobs": [-1, -2.5]} and call.meta["reasoning_effort"] == "high"
    assert run.usage.cost == 0.5


def test_a_finishing_call_that_we_wrote_is_a_call_again() -> None:
    run = team(thinks("Done.", asks("f", "final_answer", answer="330 m")), answer="330 m")
    assert from_atif(to_atif(run)).root.events[0].calls == run.root.events[0].calls  # type: ignore[union-attr]
