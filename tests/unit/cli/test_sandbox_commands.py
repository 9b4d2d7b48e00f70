"""`coa judge`, `coa sandbox` and `coa tools call code` as a user calls them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from support.attacks import ATTACKS

ROOT = Path(__file__).resolve().parents[3]
PROBLEM = {"cases": [{"stdin": "1\n", "expected": "2\n"}, {"stdin": "5\n", "expected": "10\n"}]}


def coa(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "coa.cli", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )


def test_judge_prints_a_verdict_for_each_test(tmp_path: Path) -> None:
    problem, solution = tmp_path / "problem.json", tmp_path / "solution.py"
    problem.write_text(json.dumps(PROBLEM))
    solution.write_text("print(int(input()) * 2)")
    right = coa("judge", str(problem), str(solution))
    assert right.returncode == 0, right.stderr
    assert [line.split()[1] for line in right.stdout.splitlines()[:2]] == ["AC", "AC"]
    assert right.stdout.endswith("AC: 2 of 2 tests passed\n")
    wrong = coa("judge", str(problem), "-", "--json", stdin="print(2)")
    report = json.loads(wrong.stdout)
    assert wrong.returncode == 1
    assert (report["verdict"], report["passed"], [r["verdict"] for r in report["results"]]) == ("WA", 1, ["AC", "WA"])
    solution.write_bytes("# coding: latin-1\nprint(int(input()) * 2 if 'é' > 'e' else 0)".encode("latin-1"))
    assert coa("judge", str(problem), str(solution)).returncode == 0
    (tmp_path / "negative.json").write_text(json.dumps({**PROBLEM, "cpu_s": -1}))
    unusable = coa("judge", str(tmp_path / "negative.json"), str(solution))
    assert unusable.returncode == 1 and "cpu_s: Input should be greater than 0" in unusable.stderr
    for arguments in (("absent.json", str(solution)), (str(problem), "absent.py"), (str(solution), str(solution))):
        bad = coa("judge", *arguments)
        assert bad.returncode == 1 and bad.stderr.startswith("error: ") and "Traceback" not in bad.stderr


def test_code_can_be_tried_by_hand() -> None:
    done = coa("tools", "call", "code", "```py\nprint(input())\n```\n```sh\nhello\n```")
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
    failed = coa("tools", "call", "code", "print(undefined)")
    assert failed.returncode == 1 and "NameError" in failed.stdout


def test_judge_says_when_the_tests_are_only_samples_and_takes_the_full_ones(tmp_path: Path) -> None:
    problem, solution, release = tmp_path / "row.json", tmp_path / "cheat.py", tmp_path / "test5.jsonl"
    tests = [
        {"input": "3\n", "output": "6\n", "testtype": "stdin"},
        {"input": "5\n", "output": "10\n", "testtype": "stdin"},
    ]
    row = {"question_id": "abc1", "question_content": "Print the double.\nInput\n3\nOutput\n6\n"}
    problem.write_text(json.dumps({**row, "public_test_cases": tests[:1]}))
    release.write_text(json.dumps({**row, "public_test_cases": tests[:1], "private_test_cases": tests[1:]}) + "\n")
    solution.write_text("print(6)")
    passed = coa("judge", str(problem), str(solution))
    assert passed.returncode == 0 and "only the sample tests" in passed.stderr and "--tests" in passed.stderr
    assert json.loads(coa("judge", str(problem), str(solution), "--json").stdout)["samples_only"] is True
    judged = coa("judge", str(problem), str(solution), "--tests", str(release))
    assert judged.returncode == 1 and "WA: 1 of 2 tests passed" in judged.stdout and "sample" not in judged.stderr
    release.write_text(json.dumps({**row, "question_id": "other"}) + "\n")
    missing = coa("judge", str(problem), str(solution), "--tests", str(release))
    assert missing.returncode == 1 and "holds no tests of abc1" in missing.stderr


def test_isolation_is_told_and_never_left_out_in_silence() -> None:
    told = coa("sandbox", "show")
    assert told.returncode == 0 and "namespaces" in told.stdout
    refused = coa("sandbox", "show", "--kind", "unsafe")
    assert refused.returncode == 1 and "--unsafe" in refused.stderr
    allowed = coa("sandbox", "show", "--kind", "unsafe", "--unsafe")
    assert "NO ISOLATION" in allowed.stdout


def test_serve_wants_a_token_where_others_can_reach_it() -> None:
    open_to_all = coa("sandbox", "serve", "--host", "0.0.0.0")
    assert open_to_all.returncode == 1 and "--token-env" in open_to_all.stderr
    unset = coa("sandbox", "serve", "--token-env", "COA_TEST_NO_SUCH_TOKEN")
    assert unset.returncode == 1 and "is not set" in unset.stderr
    nothing = coa("sandbox", "serve", "--max-memory-mb", "0")
    assert nothing.returncode == 1 and "memory_mb" in nothing.stderr


def test_serve_runs_code_until_it_is_told_to_stop() -> None:
    options = ["--token-env", "COA_TEST_TOKEN", "--max-wall-s", "6"]
    server = subprocess.Popen(
        [sys.executable, "-m", "coa.cli", "sandbox", "serve", "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "COA_TEST_TOKEN": "t"},
    )
    assert server.stdout is not None
    try:
        url = server.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", url)
        done = coa("tools", "call", "code", "print(6 * 7)", COA_SANDBOX=url, COA_SANDBOX_TOKEN="t")
        assert done.stdout == "42\n", done.stderr
        request = urllib.request.Request(f"{url}/health", headers={"Authorization": "Bearer t"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert json.load(answer)["done"] == 1
        asked = json.dumps({"code": "", "limits": {"wall_s": 7}}).encode()
        request = urllib.request.Request(f"{url}/run", data=asked, headers={"Authorization": "Bearer t"})
        with pytest.raises(urllib.error.HTTPError) as refused, urllib.request.urlopen(request, timeout=30):
            pass
        with refused.value as answer:
            assert (refused.value.code, b"wall_s 7 is above this server's cap of 6" in answer.read()) == (400, True)
        server.send_signal(signal.SIGINT)
        assert server.wait(30) == 0
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def test_the_documentation_names_every_attack() -> None:
    page = (ROOT / "docs" / "evidence" / "sandbox.md").read_text()
    listed = re.findall(r"^\| ([^|]+) \| held \|", page, re.MULTILINE)
    assert [name.strip() for name in listed] == [attack.name for attack in ATTACKS]
