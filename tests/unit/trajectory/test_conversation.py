"""Earlier turns of a conversation: in the prompt, in files, in exports, and never trained."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from coa.errors import StoreError, TokenizerError
from coa.models.chat_template import ChatTemplate
from coa.models.scripted import ScriptedModel
from coa.runtime import RunConfig
from coa.runtime.opening import prompts_of
from coa.trajectory import Message, Step, Stop, Task, Trajectory, load_profile, parse, read, to_sample, write
from coa.trajectory.formats.alpaca import from_alpaca, to_alpaca
from coa.trajectory.formats.atif_export import to_atif
from coa.trajectory.formats.messages import to_messages, to_sharegpt, to_verl
from coa.trajectory.formats.tasks import from_task, read_tasks, to_task
from coa.trajectory.types import NO_ANSWER
from support.atif_rules import assert_atif
from support.builders import WEB, make_trajectory, web_run
from support.runs import run
from support.tokenizers import tokenizer

USER, ASSISTANT = Message(role="user", content="Who?"), Message(role="assistant", content="Ada")
SYSTEM = Message(role="system", content="Be brief.")
TASK = Task(id="t", question="And when?", conversation=(USER, ASSISTANT))
ALTERNATING = (
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
)


def asked(*conversation: Message, question: str = "And when?") -> tuple[Message, ...]:
    return WEB.messages(Task(id="t", question=question, conversation=conversation))


def test_earlier_turns_stand_between_the_system_prompt_and_the_question() -> None:
    system, *turns = asked(USER, ASSISTANT)
    assert system == WEB.messages(Task(id="t", question="x"))[0]
    assert turns == [USER, ASSISTANT, Message(role="user", content="And when?")]


def test_system_messages_join_the_system_prompt() -> None:
    system, *turns = asked(SYSTEM, USER, ASSISTANT, Message(role="system", content="In French."))
    assert system.content == f"{WEB.system_prompt}\n\nInstructions for this conversation:\n\nBe brief.\n\nIn French."
    assert [turn.role for turn in turns] == ["user", "assistant", "user"]


def test_consecutive_messages_of_one_role_are_joined() -> None:
    _, *turns = asked(USER, USER, ASSISTANT, ASSISTANT, USER)
    assert [turn.content for turn in turns] == ["Who?\n\nWho?", "Ada\n\nAda", "Who?\n\nAnd when?"]


def test_a_prompt_file_takes_the_place_of_the_system_prompt_alone(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("My prompt.")
    prompt = prompts_of(RunConfig(prompt_file=tmp_path / "p.txt"), [TASK])(TASK)
    assert prompt == (Message(role="system", content="My prompt."), USER, ASSISTANT, TASK.request)


def test_earlier_turns_are_read_by_the_model_and_never_trained() -> None:
    tok = tokenizer("smollm2")
    model = ScriptedModel(["<think>t</think>\n<answer>1815</answer>"], tokenizer=tok)
    done = asyncio.run(run(TASK, model))
    assert done.prompt == WEB.messages(TASK) and model.calls[0].messages == done.prompt
    sample = to_sample(done, tok, WEB)
    trained = tok.decode([i for i, kept in zip(sample.ids, sample.mask, strict=True) if kept])
    assert "Ada" in tok.decode(sample.ids) and "Ada" not in trained and "1815" in trained


def test_a_follow_up_asks_after_the_answer() -> None:
    done = Trajectory(
        task=Task(id="a", question="Who?", files=("a.txt",), answer="Ada", profile="web"), profile="web",
        steps=(Step(agent="answer", text="Ada"),),
    )  # fmt: skip
    task = done.follow_up("And when?")
    assert task.conversation == (Message(role="user", content="Who?\nfile: a.txt"), ASSISTANT)
    assert (task.question, task.files, task.answer, task.profile) == ("And when?", ("a.txt",), (), "web")
    again = Trajectory(task=task, profile="web", steps=(Step(agent="answer", text="1815"),)).follow_up("Where?")
    assert [turn.content for turn in again.conversation][2:] == ["And when?\nfile: a.txt", "1815"]


def test_a_follow_up_of_a_run_without_an_answer_keeps_the_turns_alternating() -> None:
    silent = Trajectory(task=Task(id="a", question="Who?"), profile="web", stop=Stop.INTERRUPTED)
    task = silent.follow_up("I mean: who wrote it?")
    assert task.conversation == (USER, Message(role="assistant", content=NO_ANSWER))
    assert [turn.role for turn in WEB.messages(task)] == ["system", "user", "assistant", "user"]
    assert task.question == "I mean: who wrote it?", "what was stopped is not asked again"


def test_a_follow_up_of_a_row_with_its_own_prompt_continues_that_prompt() -> None:
    row = Task(id="a", question="Who?", prompt=(SYSTEM, Message(role="user", content="Task: Who?")))
    done = Trajectory(task=row, profile="web", steps=(Step(agent="answer", text="Ada"),))
    assert done.follow_up("When?").prompt == (*(row.prompt or ()), ASSISTANT, Message(role="user", content="When?"))


def test_the_same_question_in_two_conversations_has_two_ids() -> None:
    runs = [make_trajectory(("answer", answer)) for answer in ("Ada", "Grace")]
    ids = {done.follow_up("And when?").id for done in runs}
    rows: list[dict[str, Any]] = [{"question": "When?"}, {"question": "When?", "conversation": [USER.model_dump()]}]
    ids |= {to_task(row).id for row in rows}
    assert len(ids) == 4


def test_a_conversation_survives_files(tmp_path: Path) -> None:
    done = Trajectory(task=TASK, profile="web", steps=(Step(agent="answer", text="1815"),))
    for name in ("a.jsonl", "a.parquet"):
        write(tmp_path / name, [done, web_run()])
        assert list(read(tmp_path / name)) == [done, web_run()]
    assert '"conversation"' not in web_run().to_json()


def test_task_rows_may_have_a_conversation(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    turns = [USER.model_dump(), ASSISTANT.model_dump()]
    rows = [
        from_task(TASK),
        {"id": "2", "question": "q", "conversation": json.dumps(turns)},
        {"id": "3", "question": "q", "conversation": None},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tasks = list(read_tasks(path))
    assert tasks[0] == TASK and tasks[1].conversation == TASK.conversation and tasks[2].conversation == ()


@pytest.mark.parametrize("wrong", ["hello", 5, [{"role": "tool", "content": "x"}], [{"role": "user"}], ["x"]])
def test_a_conversation_that_is_none_is_refused_by_name(tmp_path: Path, wrong: object) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps({"question": "q", "conversation": wrong}) + "\n")
    with pytest.raises(StoreError, match=r"row 1 is not a task: its `conversation`"):
        list(read_tasks(path))


def follow_up_run() -> Trajectory:
    return Trajectory(
        task=Task(id="t", question="And when?", conversation=(SYSTEM, USER, ASSISTANT)), profile="web",
        steps=parse("<think>t</think>\n<answer>1815</answer>", WEB),
    )  # fmt: skip


def test_exports_mark_earlier_answers_as_not_trained() -> None:
    done = follow_up_run()
    messages = to_messages(done, WEB)["messages"]
    assert [(m["role"], m.get("weight")) for m in messages] == [
        ("system", None), ("user", None), ("assistant", 0), ("user", None), ("assistant", None)
    ]  # fmt: skip
    assert [(m["from"], m.get("weight")) for m in to_sharegpt(done, WEB)["conversations"]] == [
        ("human", None), ("gpt", 0), ("human", None), ("gpt", None)
    ]  # fmt: skip
    document = to_atif(done, WEB)
    assert_atif(document)
    assert [step.get("is_copied_context") for step in document["steps"]] == [None, None, True, None, None]


def test_a_conversation_survives_verl_rows() -> None:
    done = follow_up_run()
    assert to_task(to_verl(done, WEB)).conversation == done.task.conversation


def test_the_prompt_of_an_rl_row_may_be_a_conversation() -> None:
    prompt = [SYSTEM, USER, ASSISTANT, Message(role="user", content="And when?")]
    row = {"prompt": [m.model_dump() for m in prompt], "reward_model": {"ground_truth": "1815"}}
    task = to_task(row)
    assert task.question == "And when?" and task.conversation == (USER, ASSISTANT) and task.prompt == tuple(prompt)
    assert to_task({**row, "prompt": [SYSTEM.model_dump(), USER.model_dump()]}).conversation == ()


def test_alpaca_rows_have_earlier_turns_as_their_history() -> None:
    done = follow_up_run()
    row = to_alpaca(done, WEB)
    assert (row["input"], row["history"]) == ("And when?", [["Who?", "Ada"]])
    again = from_alpaca(row, WEB)
    assert again.task.conversation == (USER, ASSISTANT) and again.prompt == WEB.messages(done.task)
    assert "history" not in to_alpaca(web_run(), WEB)
    greeting = done.model_copy(update={"task": Task(id="t", question="Hi", conversation=(ASSISTANT,))})
    assert to_alpaca(greeting, WEB)["history"] == [["", "Ada"]]


def test_a_judge_reads_the_question_with_the_turns_before_it() -> None:
    assert Task(id="t", question="When?").question_in_context == "When?"
    assert TASK.question_in_context == "user: Who?\nassistant: Ada\nuser: And when?"


def test_a_template_that_demands_alternation_gets_it_where_that_is_possible() -> None:
    template = ChatTemplate(ALTERNATING, {})
    system = WEB.system_prompt
    assert template.render(asked(USER, ASSISTANT)) == f"[user]{system}\n\nWho?[assistant]Ada[user]And when?"
    assert template.render(asked(USER)) == f"[user]{system}\n\nWho?\n\nAnd when?"
    greeted = template.render(asked(ASSISTANT))
    assert greeted == f"[user]{system}[assistant]Ada[user]And when?"


def test_a_prompt_that_a_template_refuses_says_what_it_demands() -> None:
    with pytest.raises(TokenizerError, match="roles must alternate") as caught:
        ChatTemplate(ALTERNATING, {}).render([USER, USER, ASSISTANT])
    assert caught.value.hint is not None and "take turns" in caught.value.hint


def test_every_profile_takes_a_conversation() -> None:
    assert [turn.role for turn in load_profile("math").messages(TASK)] == ["system", "user", "assistant", "user"]
