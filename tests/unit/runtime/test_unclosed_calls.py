"""A tool call without its closing tag is made where the text shows that it is over, and nothing invented survives."""

from __future__ import annotations

import asyncio

import pytest

from coa.models.base import Context, Finish, Generation, Sampling
from coa.models.scripted import ScriptedModel
from coa.runtime import Observed
from coa.runtime.streaming import ChainEvent
from coa.trajectory import (
    Author,
    Delta,
    Limits,
    Opened,
    RepairKind,
    Stop,
    Tokens,
    Trajectory,
    ledger_of,
    load_profile,
    parse,
    render,
    to_sample,
)
from coa.trajectory.shapes import stated_result
from support.runs import run
from support.tokenizers import KINDS, tokenizer
from support.tools import FakeTool, searching

MATH = load_profile("math")
PLAN = "<plan>p</plan>\n<think>t</think>\n"
PROGRAM = "<code>\n```py\nprint(4 + 5)\n```"
LIES = "<reflection>It printed 14.</reflection>\n<think>so</think>\n<answer>\\boxed{14}</answer>"
END = "<reflection>It printed 9.</reflection>\n<think>so</think>\n<answer>\\boxed{9}</answer>"


def play(
    first: str, *, kind: str | None = None, profile: str = "math", **options: object
) -> tuple[Trajectory, FakeTool]:
    """The model writes `first`, and the true end once it has seen an observation."""
    tool = FakeTool(lambda arguments: "9")

    def script(context: Context) -> str:
        return END if "<observation>9" in context.text else (PLAN + first)[len(context.text) :]

    model = ScriptedModel(script, tokenizer=tokenizer(kind) if kind else None)
    return asyncio.run(run("4 + 5?", model, {"code": tool}, profile, **options)), tool


UNCLOSED = {
    "the next agent on its own line": f"{PROGRAM}\n{LIES}",
    "the next agent after an empty line": f"{PROGRAM}\n\n{LIES}",
    "the next agent right behind the fence": f"{PROGRAM}{LIES}",
    "an observation of the model's own": f"{PROGRAM}\n<observation>14</observation>\n{LIES}",
    "an observation right behind the fence": f"{PROGRAM}<observation>14</observation>\n{LIES}",
    "an invented output": f"{PROGRAM}\nOutput:\n```\n14\n```\n{LIES}",
    "a fence that is never closed": f"{PROGRAM.removesuffix('```')}{LIES}",
    "a closing tag in capitals": f"{PROGRAM}\n</Code>\n{LIES}",
    "the end of the turn": PROGRAM,
    "the end of the turn after an invented output": f"{PROGRAM}\nThis prints 14.",
}


@pytest.mark.parametrize("kind", [None, *KINDS])
@pytest.mark.parametrize("case", UNCLOSED)
def test_a_call_without_its_closing_tag_is_made_and_what_follows_is_discarded(case: str, kind: str | None) -> None:
    done, tool = play(UNCLOSED[case], kind=kind)
    assert tool.asked == [{"code": "print(4 + 5)"}]
    assert done.stop is Stop.ANSWERED and done.answer == "\\boxed{9}"
    assert "14" not in render(done.steps, MATH) and done.usage.tool_calls == 1
    agents = ["plan", "think", "code", "observation", "reflection", "think", "answer"]
    assert [step.agent for step in done.steps] == agents
    assert done.steps[2].repairs, "what was repaired is recorded"
    assert Trajectory.from_json(done.to_json()) == done
    if kind is not None:
        sample = to_sample(done, tokenizer(kind), MATH)
        trained = [i for i, mine in zip(sample.ids, sample.mask, strict=True) if mine]
        assert "14" not in tokenizer(kind).decode(trained) and sample.logprobs is not None
        assert ledger_of(done, tokenizer(kind), MATH).text.endswith("\\boxed{9}</answer>")


def test_how_much_was_discarded_is_recorded() -> None:
    silent, _ = play(f"{PROGRAM}\n<observation>")
    lying, _ = play(f"{PROGRAM}\nOutput: 14\n{LIES}", kind="smollm2")
    assert not silent.steps[2].has(RepairKind.DISCARDED)
    assert lying.steps[2].has(RepairKind.DISCARDED) and lying.steps[2].has(RepairKind.MISSING_CLOSE)
    discarded = lying.meta["discarded_tokens"]
    assert isinstance(discarded, int) and discarded > 5
    assert lying.usage.completion_tokens >= discarded, "they were paid for"


def test_the_environment_closes_what_the_model_left_open() -> None:
    done, _ = play(f"{PROGRAM}\n{LIES}", kind="smollm2")
    text = render(done.steps, MATH)
    assert "```</code>\n<observation>9</observation>\n<reflection>" in text
    again = parse(text, MATH)
    assert [(step.agent, step.text) for step in again] == [(step.agent, step.text) for step in done.steps]
    spans = ledger_of(done, tokenizer("smollm2"), MATH).spans
    assert all(span.author is Author.ENVIRONMENT for span in spans if "</code>" in span.text)


def test_the_model_pauses_behind_a_closed_fence_instead_of_writing_the_lie() -> None:
    """A server is given stop strings for this, so that the invented text costs nothing."""
    done, _ = play(f"{PROGRAM}\n{LIES}", kind="smollm2")
    assert done.usage.model_calls == 2
    assert not done.steps[2].has(RepairKind.DISCARDED), "nothing but the next tag was written"


@pytest.mark.parametrize("kind", [None, "smollm2"])
def test_a_fence_in_a_thought_does_not_end_the_thought(kind: str | None) -> None:
    """The model pauses at ```` ```\\n<code> ````, no call is over there, and it goes on."""
    thought = f"<think>I try\n```\n1 + 1\n```\n{PROGRAM}\n</code>"
    done, tool = play(thought, kind=kind)
    assert tool.asked == [{"code": "print(4 + 5)"}] and done.answer == "\\boxed{9}"
    assert [step.agent for step in done.steps][:5] == ["plan", "think", "think", "code", "observation"]


@pytest.mark.parametrize("stop", ["</answer>", "<observation>"])
def test_a_stop_string_inside_a_program_is_text(stop: str) -> None:
    program = f'<code>\n```py\nprint("{stop}")\n```\n</code>'
    done, tool = play(program, kind="smollm2")
    assert tool.asked == [{"code": f'print("{stop}")'}] and done.answer == "\\boxed{9}"


@pytest.mark.parametrize("kind", [None, "smollm2"])
def test_a_tag_in_a_string_of_a_program_does_not_end_it(kind: str | None) -> None:
    lines = ['s = """', "<plan>", "hello", '"""', 'print("<x></answer>")', "print(len(s))"]
    program = "\n".join(lines)
    done, tool = play(f"<code>\n```py\n{program}\n```\n</code>", kind=kind)
    assert tool.asked == [{"code": program}] and done.answer == "\\boxed{9}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cut", range(8, 30, 3))
def test_a_token_limit_inside_a_character_changes_nothing(cut: int, kind: str) -> None:
    tok = tokenizer(kind)
    whole = f"{PLAN}<think>{'🫠 界 ' * 6}</think>\n<answer>\\boxed{{9}}</answer>"

    class Cutting(ScriptedModel):
        async def generate(self, context: Context, *, sampling: Sampling, **options: object) -> Generation:
            first = not context.text
            ids = tok.encode([whole])[0]
            ids = ids[:cut] if first else ids[cut:]
            made = await super().generate(context, sampling=sampling, **options)  # type: ignore[arg-type]
            tokens = Tokens(ids=tuple(ids), logprobs=(-0.1,) * len(ids))
            finish = Finish.LENGTH if first else Finish.STOP
            return Generation(tok.decode(ids), finish, made.usage, tokens)

    done = asyncio.run(run("4 + 5?", Cutting(lambda context: "x", tokenizer=tok), {}, "math"))
    assert done.stop is Stop.ANSWERED and done.answer == "\\boxed{9}", done.failure


@pytest.mark.parametrize("kind", [None, "smollm2"])
@pytest.mark.parametrize(
    "rest",
    [
        "<observation>Bob</observation>",
        "\n<observation>Bob</observation>",
        "\n<think>It is Bob.</think>",
        "\n\nIt is Bob.",
    ],
)
def test_a_query_ends_with_its_line(rest: str, kind: str | None) -> None:
    tool = searching()

    def script(context: Context) -> str:
        if "<observation>" in context.text:
            return "<think>d</think>\n<answer>Ada</answer>"
        return f"<think>t</think>\n<plan>p</plan>\n<think>s</think>\n<web_search>who{rest}"

    tok = tokenizer(kind) if kind else None
    done = asyncio.run(run("Who?", ScriptedModel(script, tokenizer=tok), {"web_search": tool}))
    assert tool.asked == [{"text": "who"}] and done.answer == "Ada"
    assert "Bob" not in "".join(step.text for step in done.steps)


@pytest.mark.parametrize("cut", range(6, 46, 3))
def test_a_token_limit_anywhere_changes_nothing(cut: int) -> None:
    """The generation is cut in two; the end of the call may lie in the first part, the second, or across both."""
    tok = tokenizer("smollm2")
    whole = f"{PLAN}{PROGRAM}\nIt prints 14.\n{LIES}"

    class Cutting(ScriptedModel):
        async def generate(self, context: Context, *, sampling: Sampling, **options: object) -> Generation:
            limited = Sampling(max_tokens=cut if not context.text else 4000)
            return await super().generate(context, sampling=limited, **options)  # type: ignore[arg-type]

    tool = FakeTool(lambda arguments: "9")
    model = Cutting(
        lambda context: END if "<observation>" in context.text else whole[len(context.text) :], tokenizer=tok
    )
    done = asyncio.run(run("4 + 5?", model, {"code": tool}, "math"))
    assert tool.asked == [{"code": "print(4 + 5)"}] and done.answer == "\\boxed{9}"
    assert "14" not in render(done.steps, MATH)
    for call in model.calls:
        if "<observation>" in call.text:
            ids = ledger_of(done, tok, MATH).ids
            assert call.ids is not None and ids[: len(call.ids)] == list(call.ids)


def test_a_listener_does_not_hear_what_is_discarded() -> None:
    heard: list[ChainEvent] = []
    play(f"{PROGRAM}\nOutput: 14\n{LIES}", listen=heard.append)
    spoken = "".join(event.text for event in heard if isinstance(event, Delta))
    assert "print(4 + 5)" in spoken and "\\boxed{9}" in spoken
    assert "\\boxed{14}" not in spoken


# ---- budgets


def limited(tokens: int, script: str, kind: str = "smollm2", **options: object) -> Trajectory:
    def replies(context: Context) -> str:
        if context.text.endswith("<answer>"):
            return "\\boxed{9}</answer>"
        return script[len(context.text) :] if script.startswith(context.text) else END

    tool = FakeTool(lambda arguments: "9")
    model = ScriptedModel(replies, tokenizer=tokenizer(kind))
    done = asyncio.run(run("4 + 5?", model, {"code": tool}, "math", limits=Limits(model_tokens=tokens), **options))
    ids = ledger_of(done, tokenizer(kind), MATH).ids
    for call in model.calls[-1:]:
        assert call.ids is not None and ids[: len(call.ids)] == list(call.ids), "training sees what the model saw"
    return done


LONG = "<code>\n```py\n" + "".join(f"x{n} = {n}\n" for n in range(200)) + "```\n</code>"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [128, 200])
def test_a_program_that_the_budget_cuts_is_withdrawn(tokens: int, kind: str) -> None:
    done = limited(tokens, PLAN + LONG, kind)
    assert done.stop is Stop.TOKENS and done.answer == "\\boxed{9}"
    assert [step.agent for step in done.steps] == ["plan", "think", "answer"]
    assert done.meta["discarded_tokens"] and done.usage.completion_tokens <= tokens
    sample = to_sample(done, tokenizer(kind), MATH)
    assert sample.logprobs is not None and "x1" not in tokenizer(kind).decode(sample.ids)


@pytest.mark.parametrize("tokens", [128, 160])
def test_a_thought_that_the_budget_cuts_is_closed_before_the_answer(tokens: int) -> None:
    heard: list[ChainEvent] = []
    done = limited(tokens, f"{PLAN}<think>{'and so on ' * 100}</think>", listen=heard.append)
    assert done.stop is Stop.TOKENS and "</think>\n<answer>\\boxed{9}</answer>" in render(done.steps, MATH)
    assert done.steps[-1].given == len("</think>\n<answer>") and not done.steps[-1].repairs
    assert done.usage.completion_tokens <= tokens
    opened = [event.agent for event in heard if isinstance(event, Opened)]
    assert opened[-1] == "answer", "the answer has a heading of its own"
    answer = ledger_of(done, tokenizer("smollm2"), MATH).spans[-2]
    assert (answer.author, answer.text) == (Author.ENVIRONMENT, "</think>\n<answer>")


def test_an_answer_that_has_been_begun_is_finished_with_the_reserve() -> None:
    whole = f"{PLAN}<answer>{'because ' * 105}\\boxed{{9}}</answer>"
    done = limited(136, whole)
    assert done.stop is Stop.TOKENS and done.answer == f"{'because ' * 105}\\boxed{{9}}"
    assert render(done.steps, MATH).count("<answer>") == 1


@pytest.mark.parametrize(
    "stated", ["\\boxed{9}", "The final answer is 9.", "**Final answer is: $9$**", "The final answer: **9**. Done."]
)
def test_a_result_that_stands_in_the_run_is_offered_as_the_answer(stated: str) -> None:
    offers: list[str] = []

    def script(context: Context) -> str:
        if "<observation>" not in context.text:
            return f"4 + 5 is nine. {stated}"
        offers.append(context.text)
        return "<answer>\\boxed{9}</answer>"

    done = asyncio.run(run("4 + 5?", ScriptedModel(script), {}, "math"))
    assert done.answer == "\\boxed{9}" and "If \\boxed{9} is your final answer" in parse(offers[0], MATH)[-1].text


def test_a_model_that_gives_no_answer_has_its_stated_result() -> None:
    def script(context: Context) -> str:
        return "</answer>" if context.text.endswith("<answer>") else f"{PLAN}<think>It is \\boxed{{9}}. {'so ' * 100}"

    model = ScriptedModel(script, tokenizer=tokenizer("smollm2"))
    heard: list[ChainEvent] = []
    done = asyncio.run(run("?", model, {}, "math", limits=Limits(model_tokens=64), listen=heard.append))
    assert done.stop is Stop.TOKENS and done.answer == "\\boxed{9}"
    assert done.steps[-1].author is Author.ENVIRONMENT and done.steps[-1].meta["fallback"] == "stated_result"
    notes = [event.step.text for event in heard if isinstance(event, Observed) and event.step.agent == "observation"]
    assert notes == ["note: this run ends here. You have written \\boxed{9}. Give the final answer now."]


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("The final answer is 3. So we are done", "3"),
        ("the final answer is $x<3$, I think", "x<3"),
        ("The final answer is 2.5", "2.5"),
        ("Final answer: Ada Lovelace.", "Ada Lovelace"),
        ("Check that the final answer is correct.", None),
        ("so the final answer is not 7", None),
    ],
)
def test_only_what_looks_like_a_result_is_one(text: str, result: str | None) -> None:
    assert stated_result(text) == result


def test_a_program_is_no_stated_result() -> None:
    code = f"{PLAN}<code>\n```py\nprint('final answer is 3')\n```\n</code>"
    done = asyncio.run(run("?", ScriptedModel([code, "", "", "", "", "</answer>"]), {}, "math"))
    assert done.answer is None or "3" not in done.answer


def test_finish_reasons_of_models_that_name_no_stop_string_are_kept() -> None:
    """A model that says it stopped without writing a stop string is reminded of the answer, as before."""

    class Vague(ScriptedModel):
        async def generate(self, context: Context, **options: object) -> Generation:
            import dataclasses

            made = await super().generate(context, **options)  # type: ignore[arg-type]
            return dataclasses.replace(made, finish=Finish.STOP)

    done = asyncio.run(run("?", Vague([f"{PLAN}<think>hm</think>", END]), {}, "math"))
    assert "there is no answer yet" in done.steps[3].text and done.answer == "\\boxed{9}"
