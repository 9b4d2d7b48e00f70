"""A file carries the profiles of its trajectories, whoever reads it, wherever, and whatever was done to it before."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coa.errors import ProfileError
from coa.trajectory import (
    Failure,
    FailureSite,
    JsonlWriter,
    Profile,
    Shape,
    Stop,
    Trajectory,
    definitions,
    load_profile,
    profile_of,
    read,
    with_profile,
    write,
)
from coa.trajectory import profile as profiles
from coa.trajectory.formats.detect import read_trajectories
from coa.trajectory.profile import with_tool
from coa.trajectory.store import Lines, rewrite, set_aside
from support.builders import make_trajectory, web_run

WEB = load_profile("web")
BROKEN = {"stop": Stop.FAILED, "failure": Failure(site=FailureSite.MODEL, message="away")}


def variant(name: str, about: str = "Not a shipped one.") -> Profile:
    return Profile.model_validate({**WEB.model_dump(), "name": name, "about": about})


def made_with(profile: Profile, sample: int = 0) -> Trajectory:
    return with_profile(web_run(sample=sample), profile)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Forgets every profile, as a process on another machine would never have known it."""

    def forget() -> None:
        monkeypatch.setattr(definitions, "_texts", {})
        monkeypatch.setattr(profiles, "_known", {})

    return forget


def abouts(path: Path) -> list[str]:
    return [profile_of(trajectory).about for trajectory in read(path)]


def definitions_in(path: Path) -> list[bool]:
    return ["profile_definition" in json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_a_file_is_read_with_the_profiles_it_was_made_with(
    ending: str, tmp_path: Path, elsewhere: Callable[[], None]
) -> None:
    mine, yours = variant("mine"), variant("yours")
    path = tmp_path / f"t.{ending}"
    written = [made_with(mine, 0), made_with(yours, 1), made_with(mine, 2)]
    write(path, written)
    elsewhere()
    found = list(read(path))
    assert found == written
    assert [profile_of(trajectory) for trajectory in found] == [mine, yours, mine]


def test_a_definition_stands_once_beside_the_first_record_that_needs_it(tmp_path: Path) -> None:
    mine, yours = variant("mine"), variant("yours")
    path = tmp_path / "t.jsonl"
    write(path, [made_with(mine, 0), made_with(mine, 1), made_with(yours, 2), made_with(mine, 3)])
    assert definitions_in(path) == [True, False, True, False]
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["profile"] for row in rows] == ["mine", "mine", "yours", "mine"]
    assert json.loads(rows[0]["profile_definition"]) == mine.model_dump(mode="json")
    assert rows[0]["profile_hash"] == rows[1]["profile_hash"] == mine.hash != rows[2]["profile_hash"]


def test_two_files_of_different_profiles_are_joined_by_cat(tmp_path: Path, elsewhere: Callable[[], None]) -> None:
    write(tmp_path / "a.jsonl", [made_with(variant("mine", "A."), n) for n in range(2)])
    write(tmp_path / "b.jsonl", [made_with(variant("mine", "B."), n) for n in range(2)])
    joined = tmp_path / "c.jsonl"
    joined.write_bytes((tmp_path / "a.jsonl").read_bytes() + (tmp_path / "b.jsonl").read_bytes())
    elsewhere()
    assert abouts(joined) == ["A.", "A.", "B.", "B."]


def test_a_joined_file_keeps_its_profiles_as_parquet(tmp_path: Path, elsewhere: Callable[[], None]) -> None:
    for name in "AB":
        write(tmp_path / f"{name}.parquet", [made_with(variant("mine", f"{name}."))])
    tables = [pq.read_table(tmp_path / f"{name}.parquet") for name in "BA"]
    pq.write_table(pa.concat_tables(tables), tmp_path / "joined.parquet")
    elsewhere()
    assert abouts(tmp_path / "joined.parquet") == ["B.", "A."]


def test_a_shuffled_file_is_read_too(tmp_path: Path, elsewhere: Callable[[], None]) -> None:
    path = tmp_path / "t.jsonl"
    write(path, [made_with(variant("mine"), n) for n in range(3)])
    path.write_text("".join(reversed(path.read_text().splitlines(keepends=True))))
    elsewhere()
    assert [profile_of(trajectory).name for trajectory in read(path)] == ["mine", "mine", "mine"]


def test_each_writer_defines_for_itself(tmp_path: Path, elsewhere: Callable[[], None]) -> None:
    path, mine = tmp_path / "t.jsonl", variant("mine")
    with JsonlWriter(path) as first, JsonlWriter(path) as second:
        for n, out in enumerate([first, second, first, second]):
            out.write(made_with(mine, n))
    assert definitions_in(path) == [True, True, False, False]
    elsewhere()
    assert len(abouts(path)) == 4


def test_a_definition_torn_by_a_kill_is_written_again(tmp_path: Path, elsewhere: Callable[[], None]) -> None:
    path, mine = tmp_path / "t.jsonl", variant("mine")
    write(path, [made_with(mine, 0)])
    path.write_bytes(path.read_bytes()[:-40])
    write(path, [made_with(mine, 1), made_with(mine, 2)])
    elsewhere()
    assert [(t.sample, profile_of(t).name) for t in read(path)] == [(1, "mine"), (2, "mine")]


def test_a_record_set_aside_leaves_its_definition_and_takes_it_along(
    tmp_path: Path, elsewhere: Callable[[], None]
) -> None:
    path, mine = tmp_path / "t.jsonl", variant("mine")
    runs = [made_with(mine, n) for n in range(4)]
    write(path, [runs[0].model_copy(update=BROKEN), runs[1], runs[2].model_copy(update=BROKEN), runs[3]])
    elsewhere()
    assert set_aside(path, [Stop.FAILED]) == 2
    assert definitions_in(path) == [True, False]
    aside = tmp_path / "aside.jsonl"
    path.with_name("t.jsonl.aside").rename(aside)
    assert definitions_in(aside) == [True, False]
    elsewhere()
    assert abouts(path) == [mine.about] * 2
    elsewhere()
    assert abouts(aside) == [mine.about] * 2


def test_an_open_writer_defines_again_in_a_file_that_took_the_place_of_its_own(
    tmp_path: Path, elsewhere: Callable[[], None]
) -> None:
    path, mine = tmp_path / "t.jsonl", variant("mine")
    with JsonlWriter(path) as out:
        out.write(made_with(mine, 0).model_copy(update=BROKEN))
        set_aside(path, [Stop.FAILED])
        out.write(made_with(mine, 1))
    elsewhere()
    assert abouts(path) == [mine.about]


def test_rewriting_keeps_definitions(tmp_path: Path, elsewhere: Callable[[], None]) -> None:
    path = tmp_path / "t.jsonl"
    write(path, [made_with(variant("mine"), n) for n in range(2)])
    elsewhere()
    rewrite(path, lambda run: run.scored("exact", 1.0))
    elsewhere()
    assert len(abouts(path)) == 2 and definitions_in(path) == [True, False]


def test_a_json_list_carries_its_profiles(tmp_path: Path, elsewhere: Callable[[], None]) -> None:
    path, lines = tmp_path / "t.json", Lines()
    written = [lines.line(made_with(variant("mine"), n)) for n in range(2)]
    path.write_bytes(b"[" + b",".join(written) + b"]")
    elsewhere()
    assert [profile_of(trajectory).name for trajectory in read_trajectories(path)] == ["mine", "mine"]


def test_a_shipped_profile_is_read_as_it_was_when_the_file_was_made(
    tmp_path: Path, elsewhere: Callable[[], None]
) -> None:
    earlier = variant("web", "As the release before had it.")
    write(tmp_path / "t.jsonl", [made_with(earlier)])
    elsewhere()
    assert abouts(tmp_path / "t.jsonl") == ["As the release before had it."]


def test_a_record_taken_out_of_its_file_is_read_only_while_its_shipped_profile_is_the_same(
    elsewhere: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    now, before = made_with(WEB).to_json(), made_with(variant("web", "Changed since.")).to_json()
    mine = made_with(variant("mine")).to_json()
    elsewhere()
    fresh = Profile.model_validate(WEB.model_dump())
    monkeypatch.setattr(profiles, "_shipped", lambda name, folder: fresh)
    assert profile_of(Trajectory.from_json(now)) == WEB
    for line in (before, mine):
        with pytest.raises(ProfileError, match=r"with the hash [0-9a-f]{16}, which its file does not define"):
            profile_of(Trajectory.from_json(line))


def test_files_of_version_1_are_read_by_the_name_of_their_profile(tmp_path: Path) -> None:
    tools = {"calc": {"does": "computes.", "shape": {"form": "line"}}}
    run = web_run(meta={"tools": tools})
    path = tmp_path / "t.jsonl"
    path.write_text(run.to_json().replace('"schema_version":2', '"schema_version":1') + "\n")
    assert list(read(path)) == [run] and run.profile_hash is None
    assert profile_of(run) == with_tool(WEB, "calc", title="calc", does="computes.", shape=Shape(form="line"))
    with pytest.raises(ProfileError, match="only the name of its profile, 'mine'"):
        profile_of(make_trajectory(profile="mine"))


def test_parquet_of_version_1_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    write(path, [web_run()])
    table = pq.read_table(path).drop_columns(["profile_hash", "profile_definition"])
    pq.write_table(table.set_column(0, "schema_version", [[1]]), path)
    assert list(read(path)) == [web_run()]


def test_a_damaged_definition_is_refused_by_name(elsewhere: Callable[[], None]) -> None:
    key = definitions.remember('{"name": "mine"}')
    run = web_run().model_copy(update={"profile": "mine", "profile_hash": key})
    with pytest.raises(ProfileError, match="the profile 'mine' that its file defines is refused"):
        profile_of(run)


def test_a_trajectory_brings_its_profile_to_another_process(elsewhere: Callable[[], None]) -> None:
    mine = variant("mine")
    data = pickle.dumps(made_with(mine))
    elsewhere()
    assert profile_of(pickle.loads(data)) == mine


def test_tools_that_joined_for_the_run_stay_under_a_newer_version_of_the_profile() -> None:
    run = made_with(with_tool(WEB, "calc", title="Calc", does="computes.", shape=Shape(form="line")))
    newer = with_profile(run, variant("web", "Newer."))
    assert profile_of(newer).about == "Newer." and "calc" in profile_of(newer).tools
    assert "calc" not in profile_of(with_profile(run, variant("other"))).tools
    assert with_profile(newer, profile_of(newer)) is newer


def test_a_changed_copy_of_a_profile_is_another_profile() -> None:
    changed = WEB.model_copy(update={"about": "Changed."})
    assert changed.hash != WEB.hash and WEB.model_copy().hash == WEB.hash
