"""A team without a framework, from a command to training data: taught, recorded, measured, distilled."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from coa.distill import DistillConfig, TeachConfig, distill, measure_cost, profile_from_traces, teach
from coa.trajectory import Trajectory, read
from support.scripted_team import scripted_team
from support.team_script import ANSWER

TEAM = """
import json, os, sys, urllib.request

TOWNS = {"Ostrel": "Ostrel is a town of 279,500 people.", "Brnov": "Brnov is a town of 395,000 people."}


def web_search(query):
    return TOWNS[query.split()[-1]]


def calculator(expression):
    return str(sum(map(int, expression.split("+"))))


def researcher(request):
    return run("You are the researcher. Look things up with web_search.", request, [web_search])


def analyst(request):
    return run("You are the analyst. Calculate with the calculator.", request, [calculator])


def run(instructions, request, tools):
    known = {tool.__name__: tool for tool in tools}
    described = []
    for name, tool in known.items():
        field = tool.__code__.co_varnames[0]
        schema = {"type": "object", "properties": {field: {"type": "string"}}, "required": [field]}
        described.append({"type": "function", "function": {"name": name, "description": name, "parameters": schema}})
    messages = [{"role": "system", "content": instructions}, {"role": "user", "content": request}]
    while True:
        body = json.dumps({"model": "scripted-busy", "messages": messages, "tools": described}).encode()
        asked = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body,
                                       {"Content-Type": "application/json"})
        message = json.load(urllib.request.urlopen(asked))["choices"][0]["message"]
        messages.append(message)
        if not message.get("tool_calls"):
            return message["content"]
        for call in message["tool_calls"]:
            result = known[call["function"]["name"]](**json.loads(call["function"]["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


print(run("You are the manager. Hand work to the specialists, then answer.", sys.argv[1], [researcher, analyst]))
"""
QUESTION = "How many people live in Ostrel and Brnov together?"


def steps(trajectory: Trajectory) -> list[tuple[str, str]]:
    return [(step.agent, step.text) for step in trajectory.steps]


def test_a_program_is_taught_or_recorded_and_becomes_the_same_trajectory(tmp_path: Path) -> None:
    (tmp_path / "team.py").write_text(TEAM)
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"id": "towns", "question": QUESTION, "answer": ANSWER}) + "\n")
    program = [sys.executable, str(tmp_path / "team.py")]
    with scripted_team() as (url, server):
        config = TeachConfig(command=f"{program[0]} {program[1]} {{question}}", model=url)
        report = teach(config, tmp_path / "tasks.jsonl", tmp_path / "taught")
        spent = sum(call.prompt_tokens + call.completion_tokens for call in server.metered)
        assert (report.answered, report.usage.model_calls, report.usage.total_tokens) == (1, 7, spent)
        words = ["record", "--upstream", url, "--out", str(tmp_path / "recorded"), "--", *program, QUESTION]
        done = subprocess.run([sys.executable, "-m", "coa.cli", *words], capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stdout) == (0, f"{ANSWER}\n"), done.stderr
    made = []
    for name in ("taught", "recorded"):
        profile = tmp_path / f"{name}.toml"
        profile.write_text(profile_from_traces([tmp_path / name]).toml)
        settings = DistillConfig(profile=str(profile), tasks=tmp_path / "tasks.jsonl")
        distill(settings, [tmp_path / name], tmp_path / f"{name}-data")
        made += list(read(tmp_path / f"{name}-data"))
    taught, recorded = made
    assert steps(taught) == steps(recorded) and taught.answer == ANSWER
    assert ("web_search", "inhabitants of Brnov") in steps(taught)
    (row,) = measure_cost([tmp_path / "taught"]).rows
    assert (row.kind, row.runs, row.successes, row.total_tokens) == ("team", 1, 1, spent)
