"""Files of the task, and no others; images from there or from the web."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from pydantic import JsonValue

from coa.errors import ToolError
from coa.tools import Observation, Tool, ToolContext
from coa.tools.base import close_tool
from coa.tools.cache import Cache
from coa.tools.endpoint import ChatEndpoint
from coa.tools.read_file import ReadFile, open_read_file
from coa.tools.recorded import RecordedTool, replayed
from coa.tools.task_files import NoSuchFile, TaskFiles
from coa.tools.visual_inspector import VisualInspector, open_visual_inspector
from coa.trajectory import Reading, Task, load_profile
from coa.trajectory.shapes import read
from support import papers
from support.site import Names, Recorder, Site, answer, moved


def asking(*files: str) -> ToolContext:
    return ToolContext(Task(id="t", question="?", files=files))


def look_up(root: Path, listed: str, name: str | None = None, **options: Any) -> bytes:
    return TaskFiles(root, **options).read(asking(listed), name or listed)[1]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "secret.txt").write_text("secret")
    folder = tmp_path / "files"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "a.txt").write_text("inside")
    return folder


def test_a_listed_file_is_found_by_its_path_or_its_name(root: Path) -> None:
    assert look_up(root, "sub/a.txt") == b"inside"
    assert look_up(root, "sub/a.txt", "a.txt") == b"inside"
    assert look_up(root, str(root / "sub" / "a.txt")) == b"inside"
    (root / "link.txt").symlink_to(root / "sub" / "a.txt")
    assert look_up(root, "link.txt") == b"inside", "links that stay inside are as good as files"


@pytest.mark.parametrize("name", ["other.txt", "../secret.txt", "/etc/passwd", "sub/../sub/a.txt", "", "sub", "~/x"])
def test_what_the_task_does_not_list_is_not_opened(root: Path, name: str) -> None:
    with pytest.raises(NoSuchFile, match="not a file of this task"):
        TaskFiles(root).read(asking("sub/a.txt"), name)
    with pytest.raises(NoSuchFile, match="no files"):
        TaskFiles(root).read(asking(), name)


def test_what_the_task_lists_outside_the_root_is_not_opened_either(root: Path) -> None:
    (root / "out.txt").symlink_to(root.parent / "secret.txt")
    (root / "outdir").symlink_to(root.parent)
    for listed in ("../secret.txt", str(root.parent / "secret.txt"), "out.txt", "outdir/secret.txt", "/etc/passwd"):
        with pytest.raises(NoSuchFile, match="outside"):
            look_up(root, listed)


def test_what_is_no_regular_file_or_too_large_is_told(root: Path) -> None:
    os.mkfifo(root / "pipe")
    (root / "loop").symlink_to(root / "loop")
    for listed, why in (("pipe", "regular"), ("sub", "regular"), ("gone", "not there"), ("loop", "not there")):
        with pytest.raises(NoSuchFile, match=why):
            look_up(root, listed)
    with pytest.raises(NoSuchFile, match="5"):
        look_up(root, "sub/a.txt", max_bytes=5)
    with pytest.raises(NoSuchFile, match="not there"):
        look_up(root, "nul\x00.txt")


def test_a_file_that_could_never_be_read_is_told_to_the_person_who_names_it(root: Path) -> None:
    TaskFiles(root).check(asking("sub/a.txt").task)
    for listed in ("gone.txt", "../secret.txt", "sub"):
        with pytest.raises(ToolError) as error:
            TaskFiles(root).check(asking("sub/a.txt", listed).task)
        assert "COA_FILES_ROOT" in str(error.value.hint)


def read_file(root: Path, name: str, **arguments: Any) -> Observation:
    tool = ReadFile(TaskFiles(root), max_characters=arguments.pop("most", 16_000))
    return asyncio.run(tool.call({"file_path": name, **arguments}, asking(name)))


def test_an_attachment_is_read_without_a_file_on_disk(root: Path) -> None:
    (root / "a.txt").write_text("on disk")
    context = ToolContext(
        Task(id="t", question="?", files=("a.txt",)), attachments={"a.txt": b"attached", "b.txt": b""}
    )
    files = TaskFiles(root, max_bytes=8)
    assert files.read(context, "a.txt") == ("a.txt", b"attached")
    assert files.all(context, 100) == ({"a.txt": b"attached"}, [])
    assert files.fingerprint(context, "a.txt") != files.fingerprint(asking("a.txt"), "a.txt")
    with pytest.raises(NoSuchFile, match="not a file of this task"):
        files.read(context, "b.txt")
    with pytest.raises(NoSuchFile, match="8 bytes; files up to 7"):
        TaskFiles(root, max_bytes=7).read(context, "a.txt")


def test_files_of_many_kinds_are_read(root: Path) -> None:
    kinds: dict[str, tuple[bytes, str]] = {
        "t.csv": (b"name,height\nVell,41\n", "Vell,41"),
        "t.xlsx": (papers.xlsx(), "Vell,41"),
        "t.docx": (papers.docx(), "The council met"),
        "t.pptx": (papers.pptx(), "Depth nine metres"),
        "t.pdf": (papers.pdf("The tide turns"), "The tide turns"),
        "t.txt": (b"plain words", "plain words"),
        "t.json": (b'{"a": 1}', '{"a": 1}'),
        "t.py": (b"print('hello')", "print('hello')"),
        "t.html": (b"<p>A paragraph of the page</p>", "A paragraph of the page"),
        "t.zip": (papers.archive(a_csv=b"1,2"), "# a.csv\n1,2"),
        "empty.txt": (b"", "it is empty"),
    }
    for name, (body, text) in kinds.items():
        (root / name).write_bytes(body)
        seen = read_file(root, name)
        assert seen.ok and text in seen.text and f"file: {name}" in seen.text, name


def test_a_long_file_is_read_piece_by_piece(root: Path) -> None:
    (root / "long.txt").write_text("".join(f"{n:04d}" for n in range(1000)))
    first = read_file(root, "long.txt", most=1000)
    assert '[characters 0 to 1,000 of 4,000; go on with "start": 1000]' in first.text
    second = read_file(root, "long.txt", most=1000, start=1000)
    assert "\n0250" in second.text and "0249" not in second.text
    last = read_file(root, "long.txt", most=1000, start=3500)
    assert "[characters 3,500 to 4,000 of 4,000]" in last.text
    assert "ends at character 4,000" in read_file(root, "long.txt", start=9000).text


def test_what_cannot_be_read_is_an_observation(root: Path) -> None:
    (root / "picture.png").write_bytes(papers.PNG)
    (root / "sound.mp3").write_bytes(b"ID3\x00\x00\x01")
    assert "visual_inspector" in read_file(root, "picture.png").text
    assert "no readable text" in read_file(root, "sound.mp3").text
    seen = read_file(root, "../secret.txt")
    assert not seen.ok and "outside" in seen.text and "secret" not in seen.text.replace("secret.txt", "")


def test_the_folder_of_the_files_comes_from_the_setting_or_the_environment(root: Path) -> None:
    (root / "b.txt").write_text("here")
    for tool in (open_read_file(str(root), {}), open_read_file(None, {"COA_FILES_ROOT": str(root)})):
        assert "here" in asyncio.run(tool.call({"file_path": "b.txt"}, asking("b.txt"))).text
    with pytest.raises(ToolError):
        open_read_file(str(root / "gone"), {})


# ---- images


def inspect(
    root: Path, place: str, *, status: int = 200, question: str = "What is it?"
) -> tuple[Observation, list[Any]]:
    asked: list[Any] = []
    recorder = Recorder()

    async def chat(request: web.Request) -> web.StreamResponse:
        asked.append(await request.json())
        if status != 200:
            return web.json_response({"error": {"message": "no vision here"}}, status=status)
        return web.json_response({"choices": [{"message": {"content": "A small dot."}}]})

    site = Site(
        {
            "/v1/chat/completions": chat,
            "/dot.png": answer(papers.PNG, "text/plain"),
            "/page": answer("<html>not an image</html>", "image/png"),
            "/inside": moved("http://169.254.169.254/x.png"),
            "/huge": answer(papers.PNG + b"\x00" * (9 << 20), "image/png"),
        }
    )

    async def go() -> Observation:
        async with site.running():
            tool = VisualInspector(
                ChatEndpoint(f"http://127.0.0.1:{site.port}", "eye", "key"),
                fetcher=site.fetcher(Names(), recorder),
                files=TaskFiles(root),
            )
            where = place.replace("{site}", site.url)
            seen = await tool.call({"file_path": where, "question": question}, asking("dot.png", "../secret.txt"))
            await tool.close()
            return seen

    seen = asyncio.run(go())
    assert set(recorder.asked) <= {"127.0.0.1"}
    return seen, asked


@pytest.mark.parametrize("place", ["dot.png", "{site}/dot.png"])
def test_an_image_of_the_task_or_of_the_web_is_shown_to_the_model(root: Path, place: str) -> None:
    (root / "dot.png").write_bytes(papers.PNG)
    seen, asked = inspect(root, place)
    assert seen.ok and seen.text.endswith("A small dot.")
    text, image = asked[0]["messages"][0]["content"]
    assert text["text"] == "What is it?" and asked[0]["model"] == "eye"
    assert image["image_url"]["url"] == "data:image/png;base64," + base64.b64encode(papers.PNG).decode()


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("other.png", "not a file of this task"),
        ("../secret.txt", "outside"),
        ("/etc/passwd", "not a file of this task"),
        ("file:///etc/passwd", "http"),
        ("http://127.0.0.1/x.png", "public"),
        ("{site}/inside", "169.254.169.254"),
        ("{site}/page", "not a PNG"),
        ("{site}/huge", "larger than"),
        ("{site}/missing", "404"),
    ],
)
def test_nothing_else_is_looked_at(root: Path, place: str, why: str) -> None:
    (root / "dot.png").write_bytes(papers.PNG)
    seen, asked = inspect(root, place)
    assert not seen.ok and why in seen.text and asked == []


def test_an_endpoint_that_refuses_is_an_observation(root: Path) -> None:
    (root / "dot.png").write_bytes(papers.PNG)
    seen, _ = inspect(root, "dot.png", status=400)
    assert not seen.ok and "no vision here" in seen.text


def test_the_inspector_takes_what_the_profile_asks_for_and_needs_a_model() -> None:
    shape = load_profile("all").shape("visual_inspector")
    reading = read(shape, '```json\n{"file_path": "a.png", "question": "?"}\n```')
    assert isinstance(reading, Reading) and set(reading.arguments) == set(VisualInspector.shape.fields)
    with pytest.raises(ToolError) as error:
        open_visual_inspector(None, {})
    assert "COA_VISION_URL" in str(error.value.hint)
    assert open_visual_inspector("url=http://127.0.0.1:1,model=m", {}).timeout_s > 60


# ---- recorded


def recorded(cache_file: Path, name: str, tool: Tool, task: str = "t") -> Observation:
    async def go() -> Observation:
        cache = Cache(cache_file)
        try:
            context = ToolContext(Task(id=task, question="?", files=("dot.png",)))
            return await RecordedTool(name, tool, cache).call({"file_path": "dot.png"}, context)
        finally:
            await close_tool(tool)
            cache.close()

    return asyncio.run(go())


def from_recording(cache_file: Path, name: str, task: str = "t") -> str:
    async def go() -> str:
        cache = Cache(cache_file, read_only=True)
        try:
            context = ToolContext(Task(id=task, question="?", files=("dot.png",)), "another thought")
            return (await replayed(cache, [name]).tools[name].call({"file_path": "dot.png"}, context)).text
        finally:
            cache.close()

    return asyncio.run(go())


def test_a_recording_never_takes_one_folders_file_for_anothers(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
        (folder / "dot.png").write_text(f"the file of {folder.name}")
    kept = tmp_path / "kept.sqlite"
    for folder in folders:
        seen = recorded(kept, "read_file", ReadFile(TaskFiles(folder)), folder.name)
        assert f"the file of {folder.name}" in seen.text
    again = recorded(kept, "read_file", ReadFile(TaskFiles(folders[0])), "three")
    assert again.meta["cache"] == "hit" and "the file of one" in again.text, "the same content is the same file"
    for folder in folders:
        (folder / "dot.png").unlink()
        assert f"the file of {folder.name}" in from_recording(kept, "read_file", folder.name)
    assert "the file of one" in from_recording(kept, "read_file", "three")


def test_a_file_that_has_changed_is_read_again_and_replayed_as_it_is_now(tmp_path: Path) -> None:
    kept = tmp_path / "kept.sqlite"
    for text in ("before", "after"):
        (tmp_path / "dot.png").write_text(text)
        assert recorded(kept, "read_file", ReadFile(TaskFiles(tmp_path))).text.endswith(text)
    assert from_recording(kept, "read_file").endswith("after")


def test_a_password_in_the_address_of_the_model_is_not_in_the_recording(tmp_path: Path) -> None:
    tool = open_visual_inspector("url=http://me:sk-123@127.0.0.1:1/v1,model=m", {"COA_FILES_ROOT": str(tmp_path)})

    async def go() -> Observation:
        cache = Cache(tmp_path / "kept.sqlite")
        try:
            setting = "url=http://me:sk-123@127.0.0.1:1/v1,model=m"
            recording = RecordedTool("visual_inspector", tool, cache, setting)
            return await recording.call({"file_path": "dot.png"}, asking("dot.png"))
        finally:
            await close_tool(tool)
            cache.close()

    assert not asyncio.run(go()).ok
    assert not [file for file in tmp_path.glob("kept.sqlite*") if b"sk-123" in file.read_bytes()]


def test_recorded_looks_at_an_image_are_told_apart_by_what_it_shows(tmp_path: Path) -> None:
    looks: list[str] = []

    class Looking(VisualInspector):
        async def call(self, arguments: Mapping[str, JsonValue], context: ToolContext) -> Observation:
            looks.append(str(arguments["file_path"]))
            return Observation(f"look {len(looks)}")

    for content in (papers.PNG, papers.PNG, papers.PNG + b"\x00"):
        (tmp_path / "dot.png").write_bytes(content)
        tool = Looking(ChatEndpoint("http://127.0.0.1:1"), files=TaskFiles(tmp_path))
        recorded(tmp_path / "kept.sqlite", "visual_inspector", tool)
    assert len(looks) == 2 and from_recording(tmp_path / "kept.sqlite", "visual_inspector") == "look 2"
