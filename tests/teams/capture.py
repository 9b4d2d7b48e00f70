"""Run the team of a framework against the scripted server, recorded by the gateway and by the framework's own tracing.

    python tests/teams/capture.py pydantic_ai --out captured/

`captured/` then holds what `tests/corpus/teams/FRAMEWORK/` holds: `gateway/` with the call records of `coa record`,
`own/` with what the framework itself recorded, and `capture.json` with the framework's version and what the server
metered. The framework is installed into an environment of its own (`.venv-teams/FRAMEWORK`) on first use.

Some ways of tracing exclude each other in one process. A program `team_WAY.py` beside `team.py` is run once more for
each of them, straight against a server of its own, which must meter the same.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.scripted_team import ScriptedTeam, scripted_team
from support.team_script import ANSWER
from teams import common
from teams.common import QUESTION

TEAMS = Path(__file__).parent
LARGE = 60_000
"""Characters from which a recorded file is kept compressed."""
ENVIRONMENTS = Path(os.environ.get("COA_TEAM_ENVIRONMENTS") or TEAMS.parents[1] / ".venv-teams")

ARCHIVES = (".eval",)
ABRIDGED = ("claude_agent_sdk",)


def frameworks() -> list[str]:
    return sorted(path.parent.name for path in TEAMS.glob("*/team.py"))


def environment(framework: str) -> Path:
    """The Python of an environment with the framework. Teams with the same requirements share one."""
    wanted = hashlib.sha256((TEAMS / framework / "requirements.txt").read_bytes()).hexdigest()[:16]
    if (stamp := next(ENVIRONMENTS.glob(f"*/{wanted}"), None)) is not None:
        return stamp.parent / "bin" / "python"
    folder = ENVIRONMENTS / framework
    python = folder / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"]
    here = os.environ | {"COA": str(TEAMS.parents[1])}  # requirements may name this project: `-e ${COA}`
    subprocess.run([*install, str(TEAMS / framework / "requirements.txt")], check=True, env=here)
    (folder / wanted).touch()
    return python


def package(framework: str) -> tuple[str, str]:
    """The framework's package and version: the first line of its requirements."""
    lines = (TEAMS / framework / "requirements.txt").read_text().splitlines()
    name, _, version = next(line for line in lines if line and not line.startswith("#")).partition("==")
    return name.split("[")[0], version


def abridge(folder: Path) -> None:
    """Leaves only our own words of long texts in JSONL, for frameworks whose prompts are not ours to copy."""
    ours = (common.QUESTION, common.MANAGER, common.RESEARCHER, common.ANALYST)

    def cut(value: Any, most: int = 120) -> Any:
        if isinstance(value, str) and len(value) > most:
            return "\n".join(["[...]", *(text for text in ours if text in value)])
        if isinstance(value, list):
            return [cut(item) for item in value]
        if isinstance(value, dict):
            return {name: cut(item, 40 if name == "description" else 120) for name, item in value.items()}
        return value

    for file in folder.rglob("*.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps(cut(row)) + "\n" for row in rows))


def scrub(folder: Path) -> None:
    """Takes the paths of this machine out of what was recorded, and compresses large files, which repeat themselves."""
    places = {str(ENVIRONMENTS): "environments", str(TEAMS.parents[1]): "coa", str(folder.resolve().parent): "captured"}
    if sys.base_prefix != "/usr":
        places[sys.base_prefix] = "python"
    for file in sorted(file for file in folder.rglob("*") if file.is_file() and file.suffix not in ARCHIVES):
        text = file.read_text()
        for place, name in places.items():
            text = text.replace(place, name)
        file.write_text(text)
        if len(text) > LARGE:
            file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
            file.unlink()


def capture(framework: str, out: Path) -> dict[str, object]:
    """Run the team once, and once more for each `team_WAY.py`. Returns what `capture.json` says."""
    for before in ("gateway", "own"):
        shutil.rmtree(out / before, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    with scripted_team() as (url, server):
        coa = [sys.executable, "-m", "coa", "record", "--upstream", f"{url}/v1", "--out", str(out / "gateway")]
        _run([*coa, "--port", "0", "--"], framework, "team.py", out / "own", {})
        found = _metered(server)
    for program in sorted((TEAMS / framework).glob("team_*.py")):
        with scripted_team() as (url, server):
            addresses = {"OPENAI_BASE_URL": f"{url}/v1", "ANTHROPIC_BASE_URL": url}
            _run([], framework, program.name, out / "own", addresses)
            if _metered(server) != found:
                raise RuntimeError(f"{program} was metered {_metered(server)}, team.py {found}")
    scrub(out / "own")
    if framework in ABRIDGED:
        abridge(out)
    (recorded,) = (out / "gateway").glob("session-*.calls.jsonl")
    recorded.rename(recorded.with_name("session.calls.jsonl"))  # without the number of the process
    name, version = package(framework)
    found = {"package": name, "version": version, **found}
    (out / "capture.json").write_text(json.dumps(found, indent=2) + "\n")
    return found


def _run(before: list[str], framework: str, program: str, traces: Path, settings: dict[str, str]) -> None:
    """One run of a team; `before` is the command that wraps it."""
    settings |= {"OPENAI_API_KEY": "sk-not-a-key", "ANTHROPIC_API_KEY": "sk-not-a-key", "NO_PROXY": "127.0.0.1"}
    settings |= {"TRACES": str(traces), "PYTHONPATH": str(TEAMS.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [*before, str(environment(framework)), str(TEAMS / framework / program), QUESTION]
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise RuntimeError(f"the team of {framework} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    answer = done.stdout.strip().splitlines()[-1]
    if answer != ANSWER:
        raise RuntimeError(f"the team of {framework} answered {answer!r}, not {ANSWER!r}")


def _metered(server: ScriptedTeam) -> dict[str, object]:
    return {
        "model_calls": len(server.metered),
        "prompt_tokens": sum(call.prompt_tokens for call in server.metered),
        "completion_tokens": sum(call.completion_tokens for call in server.metered),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Record the team of a framework in every way.")
    parser.add_argument("framework", choices=frameworks())
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    print(json.dumps(capture(chosen.framework, chosen.out), indent=2))
