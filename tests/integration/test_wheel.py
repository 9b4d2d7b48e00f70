"""The wheel has all that coa needs, and in an environment with nothing else it works or names the command to run."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import urllib.request
import zipfile
from email import message_from_bytes
from pathlib import Path
from urllib.parse import urljoin

import pytest

from support import wheels
from support.documents import ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheels.build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def core(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with coa and what its core requires."""
    python = wheels.empty_environment(tmp_path_factory.mktemp("core") / "env")
    wheels.install_offline(wheel, python)
    return python


def test_every_file_of_the_package_is_in_the_wheel(wheel: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "src/coa"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    tracked = {name.removeprefix("src/") for name in listed.splitlines() if (ROOT / name).exists()}
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("coa/")}
    assert tracked - packed == set()
    for name in ("coa/py.typed", "coa/models/nano/adapter_model.safetensors", "coa/trajectory/profiles/atlas.toml",
                 "coa/sft/launch/fsdp2.yaml", "coa/web/templates/view.html", "coa/web/static/ask.js"):  # fmt: skip
        assert name in packed


def test_nothing_but_the_package_is_in_the_wheel(wheel: Path) -> None:
    assert {name.partition("/")[0].partition("-")[0] for name in zipfile.ZipFile(wheel).namelist()} == {
        "coa", "chain_of_agents",
    }  # fmt: skip


def test_the_core_requires_no_torch_and_extras_are_declared(wheel: Path) -> None:
    packed = zipfile.ZipFile(wheel)
    (name,) = (name for name in packed.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = message_from_bytes(packed.read(name))
    required = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert required and not any(line.startswith(("torch", "transformers", "ray", "starlette")) for line in required)
    assert {"local", "train", "tools", "serve", "eval", "teacher", "demo"} <= set(
        metadata.get_all("Provides-Extra", [])
    )


def test_the_core_answers_alone(core: Path, tmp_path: Path) -> None:
    for arguments, shown in (
        (("--version",), "coa 0."),
        (("profile", "list"), "atlas"),
        (("demo", "--quick", "--plan"), "coa world build"),
        (("doctor",), "coa setup nano"),
    ):
        done = wheels.run(core, *arguments, home=tmp_path / "home")
        assert done.returncode == 0 and shown in done.stdout, (arguments, done.stdout, done.stderr)


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (("run", "--model", "nano"), "coa setup nano"),
        (("run", "--model", "smollm2", "Who?"), "coa setup smollm2"),
        (("serve", "--model", "nano"), "coa setup serve"),
        (("view", "."), "coa setup serve"),
        (("demo", "--quick"), "coa setup demo"),
    ],
)
def test_without_a_terminal_an_error_names_the_command_that_installs_the_rest(
    core: Path, tmp_path: Path, arguments: tuple[str, ...], command: str
) -> None:
    done = wheels.run(core, *arguments, home=tmp_path / "home")
    assert done.returncode == 1, done.stdout + done.stderr
    hint = done.stderr.splitlines()[-1]
    assert hint.startswith("  hint: ") and hint.endswith(command), done.stderr
    assert "[Y/n]" not in done.stderr


def test_on_a_terminal_one_question_names_all_that_nano_needs(core: Path, tmp_path: Path) -> None:
    shown, code = asked(core, ["run", "--model", "nano"], "n\n", tmp_path)
    assert code == 1 and shown.count("[Y/n]") == 1 and "coa setup nano" in shown
    for part in ("torch", "transformers", "tantivy", "the weights of SmolLM2-135M-Instruct (93 MB"):
        assert part in shown


def asked(python: Path, arguments: list[str], answer: str, home: Path) -> tuple[str, int]:
    """What a command prints to a terminal on which a person answers one question."""
    child, screen = pty.fork()
    if child == 0:  # pragma: no cover
        os.chdir(home)
        program = str(python.with_name("coa"))
        os.execve(program, [program, *arguments], wheels.environment(home, TERM="xterm"))
    shown = b""
    while True:
        try:
            part = os.read(screen, 4096)
        except OSError:  # on Linux, a terminal that nobody writes to any more ends with an error
            part = b""
        if not part:
            break
        shown += part
        if shown.endswith(b"[Y/n] "):
            os.write(screen, answer.encode())
    os.close(screen)
    return re.sub(r"\x1b\[[\d;?]*\w", "", shown.decode()), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_the_viewer_of_the_wheel_serves_its_page(wheel: Path, tmp_path: Path) -> None:
    python = wheels.empty_environment(tmp_path / "env")
    wheels.install_offline(wheel, python, ["serve"])
    runs = str(ROOT / "examples" / "runs.jsonl")
    viewer = subprocess.Popen(
        [str(python.with_name("coa")), "view", runs, "--port", "0"],
        cwd=tmp_path, env=wheels.environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert viewer.stdout is not None and viewer.stderr is not None
        line = viewer.stdout.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert address, line + viewer.stderr.read()
        files = re.findall(r'(?:src|href)="([^"?:]+\.(?:js|css|svg))', fetched(address[0]))
        assert len(files) > 2 and all(fetched(urljoin(address[0] + "/", file)) for file in files)
    finally:
        viewer.terminate()
        viewer.communicate(timeout=60)


def fetched(address: str) -> str:
    with urllib.request.urlopen(address, timeout=60) as answer:
        text: str = answer.read().decode()
    return text
