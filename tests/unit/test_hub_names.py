"""Which names are looked up on the hub, and which can only be paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from coa import hub
from coa.errors import CoaError, ModelError
from coa.models.places import check_model, weights_place
from coa.trajectory.formats.sources import files


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "runs" / "trained").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["./x", "/x", "~/x", "../x", "a/b/c", "x/", "x.gguf", "lab/x.jsonl", "runs/x"])
def test_a_path_is_a_path(name: str) -> None:
    assert hub.is_path(name)


@pytest.mark.parametrize("name", ["gpt2", "Qwen/Qwen2.5-7B-Instruct", "meta-llama/Llama-3.1-8B", "walks/x"])
def test_other_names_may_be_on_the_hub(name: str) -> None:
    assert not hub.is_path(name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("./nomodel", "there is no folder ./nomodel\n"),
        ("runs/traned", "there is no folder runs/traned\n  hint: did you mean runs/trained?"),
        ("nomodel.gguf", "there is no folder nomodel.gguf\n"),
        ("smolm2", "there is no model 'smolm2'; did you mean smollm2?"),
        ("Nano", "there is no model 'Nano'; did you mean nano?"),
        (
            "nosuch",
            "there is no folder nosuch, and cannot get the model 'nosuch' from the hub: http://127.0.0.1:9 cannot",
        ),
        ("http://", "'http://' is not the address of a server"),
        ("http://:80", "'http://:80' is not the address of a server"),
    ],
)
def test_a_model_that_is_not_there(name: str, said: str) -> None:
    with pytest.raises(ModelError) as refused:
        check_model(name)
    assert said in str(refused.value) and "hint: " in str(refused.value)


def test_a_model_that_is_there() -> None:
    assert weights_place("runs/trained") == "runs/trained" and weights_place("nano") == "nano"
    check_model("http://127.0.0.1:9")  # servers are not asked


def test_data_below_a_folder_that_is_here_are_not_looked_up() -> None:
    with pytest.raises(CoaError, match="there is no file or folder runs/none\n") as refused:
        files("runs/none")
    assert refused.value.hint == "check the spelling, and the folder in which you are"
