"""How one run ends on the screen: the answer, whether it is right, and why it stopped, in plain words."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from coa import ask
from coa.cli import app
from coa.cli.display import close
from coa.errors import ConfigError
from coa.models.scripted import ScriptedModel
from coa.trajectory import Stop, Task
from support.builders import make_trajectory


@pytest.mark.parametrize(
    ("stop", "said"),
    [
        (Stop.ANSWERED, "answered, 1 step, "),
        (Stop.TOKENS, "stopped: out of tokens, 1 step, "),
        (Stop.STEPS, "stopped: out of steps, 1 step, "),
        (Stop.CONTEXT, "stopped: the context is full, 1 step, "),
    ],
)
def test_the_closing_line_says_why_a_run_stopped(stop: Stop, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    picked = make_trajectory(("answer", "6")).model_copy(update={"stop": stop})
    close(picked, [picked])
    assert capsys.readouterr().out.splitlines()[-1].startswith(said)


def test_every_stop_reason_has_words() -> None:
    assert all(stop.words and "_" not in stop.words for stop in Stop)


def test_an_answer_that_can_be_compared_is_called_right_or_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    for answer, said in (("625", "right"), ("7", "wrong: the right answer is 625")):
        picked = make_trajectory(("answer", answer))
        task = picked.task.model_copy(update={"answer": ("625",)})
        picked = picked.model_copy(update={"task": task})
        close(picked, [picked])
        assert capsys.readouterr().out.splitlines()[2] == said
    unknown = make_trajectory(("answer", "7"))
    unknown = unknown.model_copy(update={"task": Task(id="1", question="?")})
    close(unknown, [unknown])
    shown = capsys.readouterr().out
    assert "right" not in shown and "wrong" not in shown


@pytest.mark.parametrize("question", ["", "  \n"])
def test_an_empty_question_is_refused_before_anything_is_opened(question: str) -> None:
    done = CliRunner().invoke(app, ["run", question, "--model", "nano"])
    assert isinstance(done.exception, ConfigError) and done.exception.exit_code == 2
    assert done.exception.message == "the question is empty" and done.exception.hint
    model = ScriptedModel([])
    with pytest.raises(ConfigError, match="the question is empty"):
        ask(question, model=model)
    assert not model.calls
