"""The story of a run as clients get it: complete, in order, and the same however the model streams."""

import asyncio
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from coa.models.base import Context, Finish, Generation, OnText, Sampling
from coa.models.scripted import ScriptedModel
from coa.runtime import Chain, Setting
from coa.serve.events import ItemBegan, ItemDone, ItemKind, ItemText, RunEvent, ToolReturned
from coa.serve.narrator import Narrator
from coa.trajectory import Author, Limits, Stop, Trajectory, load_profile
from support.served import PageTool

PROFILE = load_profile("nano")
WORDS = st.text("ab <>&\n\u00e9/", min_size=1, max_size=12).map(str.strip).filter(bool)


class Streaming(ScriptedModel):
    """Shows its text in pieces, and stops after `most` characters of a reply at the latest, to be asked to go on."""

    def __init__(self, script: Sequence[str], sizes: Sequence[int], most: int | None = None) -> None:
        super().__init__(script)
        self._sizes, self._most, self._rest = sizes, most, ""

    async def generate(
        self, context: Context, *, stop: Sequence[str], sampling: Sampling, on_text: OnText = None
    ) -> Generation:
        if self._rest:
            text, finish = self._rest, Finish.STOP
            usage = (await ScriptedModel([text]).generate(context, stop=(), sampling=sampling)).usage
        else:
            made = await super().generate(context, stop=stop, sampling=sampling)
            text, finish, usage = made.text, made.finish, made.usage
        self._rest = ""
        if self._most is not None and len(text) > self._most:
            text, self._rest, finish = text[: self._most], text[self._most :], Finish.LENGTH
        shown = 0
        for size in self._sizes:
            shown = min(shown + size, len(text))
            if on_text is not None:
                on_text(text[:shown])
        if on_text is not None:
            on_text(text)
        return Generation(text, finish, usage)


def narrated(model: ScriptedModel, limits: Limits | None = None) -> tuple[list[RunEvent], Trajectory]:
    events: list[RunEvent] = []
    narrator = Narrator(PROFILE, (), events.append)
    setting = Setting(model, {"web_search": PageTool()}, PROFILE, limits=limits)
    trajectory = asyncio.run(Chain("q?", setting, listen=narrator).run())
    narrator.conclude(trajectory)
    return events, trajectory


def check_order(events: Sequence[RunEvent]) -> None:
    """One item after another; a result belongs to the call before it."""
    open_item, last, ended = None, -1, -1
    for event in events:
        if isinstance(event, ItemBegan):
            assert open_item is None and event.item == last + 1
            open_item, last = event.item, event.item
        elif isinstance(event, ItemText):
            assert event.item == open_item and event.text
        elif isinstance(event, ItemDone):
            assert event.item == open_item
            open_item, ended = None, event.item
        elif isinstance(event, ToolReturned):
            assert open_item is None and event.item == ended
    assert open_item is None


def texts(events: Sequence[RunEvent]) -> list[tuple[str, str]]:
    """Agent and text of each item, added up from its pieces."""
    found: list[tuple[str, str]] = []
    for event in events:
        if isinstance(event, ItemBegan):
            found.append((event.agent, ""))
        elif isinstance(event, ItemText):
            found[-1] = (found[-1][0], found[-1][1] + event.text)
    return found


@given(
    thoughts=st.lists(WORDS, min_size=1, max_size=3),
    query=WORDS.filter(lambda text: "\n" not in text),
    answer=WORDS,
    sizes=st.lists(st.integers(1, 9), max_size=60),
    most=st.none() | st.integers(3, 40),
)
def test_items_are_the_steps_of_the_run_however_the_model_streams(
    thoughts: list[str], query: str, answer: str, sizes: list[int], most: int | None
) -> None:
    first = "\n".join(f"<think>{text}</think>" for text in thoughts) + f"\n<web_search>{query}</web_search>"
    events, trajectory = narrated(
        Streaming([first, f"<plan>{thoughts[0]}</plan>\n<answer>{answer}</answer>"], sizes, most)
    )
    check_order(events)
    recorded = [(step.agent, step.text.strip()) for step in trajectory.steps if step.author is Author.MODEL]
    assert [(agent, text) for agent, text in texts(events)] == recorded
    results = [event for event in events if isinstance(event, ToolReturned)]
    assert len(results) == sum(step.agent == "observation" and "seconds" in step.meta for step in trajectory.steps)


def test_a_call_that_cannot_be_made_gets_the_note_as_its_result() -> None:
    events, _ = narrated(ScriptedModel(["<crawl_page>https://a.example</crawl_page>", "<answer>x</answer>"]))
    check_order(events)
    done = next(event for event in events if isinstance(event, ItemDone))
    result = next(event for event in events if isinstance(event, ToolReturned))
    assert done.arguments is None and "not available" in result.step.text


def test_an_answer_that_the_environment_wrote_is_an_item() -> None:
    events, trajectory = narrated(ScriptedModel(["<suggested_answer>7</suggested_answer>", *["" for _ in range(6)]]))
    check_order(events)
    assert trajectory.answer == "7" and texts(events)[-1] == ("answer", "7")
    assert [event.kind for event in events if isinstance(event, ItemBegan)][-1] is ItemKind.ANSWER


def test_a_call_that_the_budget_withdraws_ends_without_a_result() -> None:
    limits = Limits(model_tokens=140, context_tokens=2000)
    long = "<think>a</think>\n<web_search>" + "word " * 400
    events, trajectory = narrated(ScriptedModel([long, "done</answer>"]), limits)
    check_order(events)
    assert trajectory.stop is Stop.TOKENS and trajectory.answer == "done"
    assert [agent for agent, _ in texts(events)] == ["think", "web_search", "answer"]
    assert not any(isinstance(event, ToolReturned) for event in events)


def test_a_model_that_does_not_answer_when_it_has_to_gives_each_step_once_and_no_empty_answer() -> None:
    limits = Limits(tool_calls=0, model_tokens=2000, context_tokens=4000)
    events, trajectory = narrated(
        ScriptedModel(lambda context: "<think>hm</think>\n<web_search>tower</web_search>"), limits
    )
    check_order(events)
    recorded = [(step.agent, step.text) for step in trajectory.steps if step.author is Author.MODEL]
    assert ("answer", "") in recorded and trajectory.stop is Stop.TOOL_CALLS
    assert texts(events) == [step for step in recorded if step != ("answer", "")]
