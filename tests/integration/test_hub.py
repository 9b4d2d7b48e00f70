"""Loading from a hub, against a server on loopback that speaks the hub's file protocol."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from support.tokenizers import TEMPLATE, tokenizer

FILES = {
    "tokenizer.json": tokenizer("byte_bpe")._whole.to_str().encode(),
    "tokenizer_config.json": json.dumps({"chat_template": TEMPLATE, "eos_token": "<|im_end|>"}).encode(),
}
COMMIT = "0" * 40
REPOSITORIES = {
    f"/api/{kind}/{name}": json.dumps({"id": name, "sha": COMMIT, "siblings": []}).encode()
    for kind, name in (
        ("models", "lab/tiny"), ("models", "lab/slow"), ("datasets", "lab/afm"), ("datasets", "lab/rl"),
        ("datasets", "HuggingFaceH4/MATH-500"),
    )
}  # fmt: skip
"""What the hub says of a repository that it has."""
_RL_ROW = {"prompt": "Question: Who?", "reward_model": {"ground_truth": {"target": ["Ada"]}}, "extra_info": None}
_ROW = {"instruction": "Use tools.", "input": "Who?", "output": "<think>hm</think><web_search>x</web_search>"}
DATA_SET = {
    "/api/datasets/lab/afm": json.dumps(
        {"id": "lab/afm", "siblings": [{"rfilename": path} for path in ("README.md", "data.json")]}
    ).encode(),
    "/datasets/lab/afm/resolve/main/data.json": json.dumps([_ROW] * 3).encode(),
    "/api/datasets/lab/rl": json.dumps(
        {"id": "lab/rl", "siblings": [{"rfilename": f"data/{name}.json"} for name in ("test", "train")]}
    ).encode(),
    "/datasets/lab/rl/resolve/main/data/train.json": json.dumps([_RL_ROW] * 2).encode(),
    "/datasets/lab/rl/resolve/main/data/test.json": json.dumps([_RL_ROW]).encode(),
    "/api/datasets/HuggingFaceH4/MATH-500": json.dumps(
        {
            "id": "HuggingFaceH4/MATH-500",
            "siblings": [{"rfilename": path} for path in ("README.md", "test.jsonl", "other.jsonl")],
        }
    ).encode(),
    "/datasets/HuggingFaceH4/MATH-500/resolve/main/test.jsonl": b"".join(
        json.dumps({"problem": f"{n} + 1?", "answer": str(n + 1), "level": n, "subject": "Sums"}).encode() + b"\n"
        for n in range(3)
    ),
    "/sums.csv": b"question,answer\n1 + 1?,2\n",
}


def answers(path: str) -> bytes | None:
    place = path.split("?")[0]
    return DATA_SET.get(place) or REPOSITORIES.get(place)


class Hub(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        prefix, name = self.path.rsplit("/", 1)
        content = FILES.get(name) if prefix == "/lab/tiny/resolve/main" else answers(self.path)
        if content is None:
            known = prefix.startswith("/lab/tiny")
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound" if known else "RepoNotFound")
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def load(endpoint: str, name: str, cache: Path, *, offline: bool = False) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys; from coa import load_tokenizer, Message, CoaError\n"
        "try: t = load_tokenizer(sys.argv[1])\n"
        "except CoaError as e: print(e); sys.exit(3)\n"
        "print(t.fingerprint, t.encode_prompt([Message(role='user', content='hi')])[1])"
    )
    return in_process(code, endpoint, name, cache, offline=offline)


def in_process(
    code: str, endpoint: str, name: str, cache: Path, *, offline: bool = False
) -> subprocess.CompletedProcess[str]:
    """In a process of its own, because the hub's library reads its settings when it is imported."""
    environment = {
        **{key: value for key, value in os.environ.items() if "proxy" not in key.lower()},
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(cache),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DOWNLOAD_TIMEOUT": "5",
        "HF_HUB_ETAG_TIMEOUT": "5",
    }
    environment["HF_HUB_OFFLINE"] = "1" if offline else "0"
    return subprocess.run(
        [sys.executable, "-c", code, name], env=environment, capture_output=True, text=True, timeout=120
    )


def test_a_hub_id_gives_the_tokenizer_with_its_template(hub: str, tmp_path: Path) -> None:
    done = load(hub, "lab/tiny", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    local = tokenizer("byte_bpe")
    from coa.trajectory import Message

    assert done.stdout.split(maxsplit=1) == [
        local.fingerprint,
        f"{local.encode_prompt([Message(role='user', content='hi')])[1]}\n",
    ]


def test_an_unknown_hub_id_is_explained(hub: str, tmp_path: Path) -> None:
    unknown = load(hub, "lab/other", tmp_path)
    assert unknown.returncode == 3 and "cannot get the tokenizer of 'lab/other'" in unknown.stdout


def test_offline_the_cache_serves_and_what_is_not_in_it_is_explained(hub: str, tmp_path: Path) -> None:
    nothing = load(hub, "lab/tiny", tmp_path, offline=True)
    assert nothing.returncode == 3 and "cannot get" in nothing.stdout and "hint:" in nothing.stdout
    online = load(hub, "lab/tiny", tmp_path)
    cached = load(hub, "lab/tiny", tmp_path, offline=True)
    assert cached.returncode == 0 and cached.stdout == online.stdout, cached.stdout + cached.stderr


def test_a_repository_without_a_fast_tokenizer_is_explained(
    hub: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(FILES, "tokenizer.json")
    bare = load(hub, "lab/tiny", tmp_path)
    assert bare.returncode == 3 and "has no tokenizer.json" in bare.stdout


def test_a_data_set_is_trained_on_by_its_hub_id(hub: str, tmp_path: Path) -> None:
    code = (
        "import sys; from coa.sft.config import SftConfig; from coa.sft.data import load; from coa import CoaError\n"
        "try: found = load(SftConfig(data=(sys.argv[1],)))\n"
        "except CoaError as e: print(e); sys.exit(3)\n"
        "print(len(found.train), found.train[0].profile, found.train[0].task.question)"
    )
    done = in_process(code, hub, "lab/afm", tmp_path)
    assert done.stdout == "3 web Who?\n", done.stdout + done.stderr
    unknown = in_process(code, hub, "lab/other", tmp_path)
    assert unknown.returncode == 3 and "cannot get the data set 'lab/other'" in unknown.stdout


def test_a_data_set_is_inspected_and_exported_by_its_hub_id(hub: str, tmp_path: Path) -> None:
    for command in ("['inspect', sys.argv[1], '--mask', '--json']", "['export', sys.argv[1], '--to', 'messages']"):
        code = f"import sys; from coa.cli import main; sys.argv[1:] = {command}; main()"
        done = in_process(code, hub, "lab/afm", tmp_path)
        assert done.returncode == 0 and done.stdout.count("\n") == 3, done.stdout + done.stderr
        unknown = in_process(code, hub, "runs/misspelled", tmp_path)
        assert unknown.returncode == 1, unknown.stdout + unknown.stderr
        assert "there is no file or folder runs/misspelled, and cannot get the data set" in unknown.stderr


def test_rl_takes_its_tasks_by_hub_id(hub: str, tmp_path: Path) -> None:
    code = (
        "import sys; from coa import CoaError\n"
        "from coa.rl.config import RlConfig; from coa.rl.tasks import load_tasks\n"
        "try: tasks, _, _ = load_tasks(RlConfig(tasks=sys.argv[1]))\n"
        "except CoaError as e: print(e); sys.exit(3)\n"
        "print(len({task.id for task in tasks}), tasks[0].answer)"
    )
    done = in_process(code, hub, "lab/rl:data/train.json", tmp_path)
    assert done.stdout == "2 ('Ada',)\n", done.stdout + done.stderr
    unknown = in_process(code, hub, "lab/other", tmp_path)
    assert unknown.returncode == 3 and "cannot get the data set 'lab/other'" in unknown.stdout


TASKS = (
    "import sys; from coa.trajectory.formats.tasks import read_tasks; from coa import CoaError\n"
    "try: print(*[(task.question, *task.answer) for task in read_tasks(sys.argv[1])])\n"
    "except CoaError as e: print(e); sys.exit(3)"
)


def test_tasks_are_read_by_their_hub_id_whole_or_in_part(hub: str, tmp_path: Path) -> None:
    whole = in_process(TASKS, hub, "lab/rl", tmp_path)
    assert whole.stdout == f"{' '.join([repr(('Who?', 'Ada'))] * 3)}\n", whole.stdout + whole.stderr
    assert in_process(TASKS, hub, "lab/rl:data/test.json", tmp_path).stdout.count("Who?") == 1
    assert in_process(TASKS, hub, "lab/rl:data/tr*", tmp_path).stdout.count("Who?") == 2
    absent = in_process(TASKS, hub, "lab/rl:dev", tmp_path)
    assert absent.returncode == 3 and "has no 'dev'" in absent.stdout and "data/test.json, data/train" in absent.stdout


def test_the_cache_gives_the_same_tasks_the_same_ids(hub: str, tmp_path: Path) -> None:
    ids = TASKS.replace("(task.question, *task.answer)", "task.id")
    first = in_process(ids, hub, "lab/rl", tmp_path).stdout.split()
    assert len(set(first)) == 3
    assert in_process(ids, hub, "lab/rl", tmp_path).stdout.split() == first


def test_a_benchmark_is_fetched_from_its_hub_and_then_found_without_it(hub: str, tmp_path: Path) -> None:
    code = (
        "import sys; from coa.benchmarks.data import load; from coa import CoaError\n"
        "try: found = load(sys.argv[1])\n"
        "except CoaError as e: print(e); sys.exit(3)\n"
        "print(found.files, [t.answer[0] for t in found.tasks], found.tasks[0].meta['subject'])"
    )
    before = in_process(code, hub, "math500", tmp_path, offline=True)
    assert before.returncode == 3 and "the data of math500 are not on this machine" in before.stdout
    fetched = in_process(code, hub, "math500", tmp_path)
    assert fetched.stdout == "('test.jsonl',) ['1', '2', '3'] Sums\n", fetched.stdout + fetched.stderr
    assert in_process(code, hub, "math500", tmp_path, offline=True).stdout == fetched.stdout
    elsewhere = in_process(code, hub, "aime25", tmp_path)
    assert elsewhere.returncode == 3 and "hf download math-ai/aime25" in elsewhere.stdout


def test_a_benchmark_of_one_file_is_fetched_once(hub: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from coa.benchmarks import registry
    from coa.benchmarks.data import load
    from coa.errors import EvaluationError

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(registry, "_REGISTRY", {})
    registry.register(registry.Benchmark("sums", "", 1, "math", "math", url=f"{hub}/sums.csv"))
    registry.register(registry.Benchmark("gone", "", 1, "math", "math", url=f"{hub}/gone.csv"))
    assert load("sums").tasks[0].answer == ("2",)
    monkeypatch.setitem(DATA_SET, "/sums.csv", b"question,answer\n1 + 1?,3\n")
    assert load("sums").tasks[0].answer == ("2",)
    with pytest.raises(EvaluationError, match=r"are not on this machine: HTTPError(.|\n)*curl -L -o"):
        load("gone")
    assert [path.name for path in (tmp_path / "coa" / "benchmarks").iterdir()] == ["sums.csv"]
