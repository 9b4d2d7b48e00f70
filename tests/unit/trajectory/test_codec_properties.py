"""The codec's promises, on any text that can be thought of."""

from hypothesis import given, settings
from hypothesis import strategies as st

from coa.trajectory import (
    Author,
    Closed,
    Delta,
    Event,
    Opened,
    Parser,
    Profile,
    Step,
    load_profile,
    neutralise,
    parse,
    readable,
    render,
)
from support.builders import ANY_TEXT, TAGGY, steps

PROFILES = [load_profile(name) for name in ("web", "code", "all", "nano")]
profiles = st.sampled_from(PROFILES)


def essence(parsed: tuple[Step, ...]) -> list[tuple[str, Author, str]]:
    return [(step.agent, step.author, step.text) for step in parsed]


def joined(events: list[Event]) -> list[Event]:
    """Events with neighbouring deltas of one agent put together."""
    out: list[Event] = []
    for event in events:
        last = out[-1] if out else None
        if isinstance(event, Delta) and isinstance(last, Delta) and last.agent == event.agent:
            out[-1] = Delta(event.agent, last.text + event.text)
        else:
            out.append(event)
    return out


@settings(max_examples=300, deadline=None)
@given(st.data(), profiles)
def test_trajectory_to_text_to_trajectory_is_the_identity(data: st.DataObject, profile: Profile) -> None:
    written = data.draw(steps(profile))
    assert essence(parse(render(written, profile), profile)) == essence(written)
    assert all(step.surface is None for step in parse(render(written, profile), profile))


@settings(max_examples=500, deadline=None)
@given(ANY_TEXT, profiles)
def test_any_text_parses_and_is_written_back_as_it_was(text: str, profile: Profile) -> None:
    assert render(parse(text, profile), profile) == text


@settings(max_examples=500, deadline=None)
@given(ANY_TEXT, profiles)
def test_model_output_is_all_the_models_and_nothing_is_lost(text: str, profile: Profile) -> None:
    parser = Parser(profile)
    parser.feed(text)
    parser.finish()
    assert render(parser.steps, profile) == text
    assert all(step.author is Author.MODEL for step in parser.steps)


@settings(max_examples=500, deadline=None)
@given(TAGGY, st.lists(st.integers(1, 7), min_size=1), st.booleans(), profiles)
def test_chunks_of_any_size_give_what_the_whole_gives(
    text: str, sizes: list[int], transcript: bool, profile: Profile
) -> None:
    whole, pieces = Parser(profile, transcript=transcript), Parser(profile, transcript=transcript)
    events = whole.feed(text) + whole.finish()
    chunked: list[Event] = []
    position, turn = 0, 0
    while position < len(text):
        size = sizes[turn % len(sizes)]
        chunked += pieces.feed(text[position : position + size])
        position, turn = position + size, turn + 1
    chunked += pieces.finish()
    assert pieces.steps == whole.steps
    assert joined(chunked) == joined(events)
    assert [e.step.agent for e in events if isinstance(e, Closed)] == [step.agent for step in whole.steps]
    assert sum(isinstance(e, Opened) for e in events) >= len(whole.steps)


@settings(max_examples=300, deadline=None)
@given(ANY_TEXT, profiles)
def test_neutralised_text_holds_no_tag_and_is_readable_again(text: str, profile: Profile) -> None:
    safe = neutralise(text, profile)
    assert readable(safe, profile) == text
    parser = Parser(profile)
    parser.feed(f"<think>{safe}</think>")
    parser.finish()
    assert len(parser.steps) == 1 and not [r for r in parser.steps[0].repairs if r.kind != "crlf"]


@given(st.text(st.characters(), max_size=40))
def test_lone_surrogates_do_not_stop_the_reader(text: str) -> None:
    parse(text + "\ud800<think>", PROFILES[0])


@settings(max_examples=300, deadline=None)
@given(ANY_TEXT, st.data(), profiles, st.booleans())
def test_a_quiet_parser_reads_the_same_steps_at_once_or_in_pieces(
    text: str, data: st.DataObject, profile: Profile, transcript: bool
) -> None:
    cut = data.draw(st.integers(0, len(text)))
    quiet, whole = (Parser(profile, transcript=transcript, quiet=quiet) for quiet in (True, False))
    assert quiet.feed(text) == []
    whole.feed(text[:cut])
    whole.feed(text[cut:])
    assert quiet.open_agent == whole.open_agent
    assert quiet.finish() == []
    whole.finish()
    assert quiet.steps == whole.steps
