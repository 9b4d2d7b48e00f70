"""Records docs/images/run-nano.svg: a terminal in which `coa run --model nano` answers a question.

    .venv/bin/python scripts/recording.py

The command runs in a real terminal (tmux, `sudo apt-get install tmux`), whose screen is read ten times a second. Each
line of the picture appears when it appeared there. The command runs once before, because its first run converts the
weights and builds the world. Record on an idle machine: the picture shows how long the answer took.

The picture is one SVG file without scripts or fonts. It begins with the last screen, which is also what a still shows.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from xml.sax.saxutils import escape, quoteattr

from rich.ansi import AnsiDecoder
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT: Final = Path(__file__).resolve().parents[1]
PICTURE: Final = ROOT / "docs" / "images" / "run-nano.svg"
COMMAND: Final = "coa run --model nano --temperature 0 --seed 3"
COLUMNS: Final = 80
ROWS: Final = 40
EVERY_S: Final = 0.1
BEFORE_S: Final = 3.0
"""How long the last screen is shown first. A renderer that draws only the first moment shows the whole run."""
AFTER_S: Final = 6.0
MOST_S: Final = 180.0
_ADVANCE: Final = 8.0
_LINE: Final = 18
_PAD: Final = 18
_THEME: Final = TerminalTheme(
    (22, 25, 37),
    (231, 233, 242),
    [(22, 25, 37), (255, 138, 128), (126, 211, 133), (240, 196, 96),
     (128, 170, 255), (214, 150, 255), (104, 211, 224), (231, 233, 242)],
    [(150, 157, 178), (255, 158, 148), (146, 231, 153), (255, 214, 120),
     (148, 190, 255), (230, 170, 255), (130, 228, 240), (255, 255, 255)],
)  # fmt: skip


class Frame(NamedTuple):
    """The lines of the screen, with their escape sequences, from a moment on."""

    at_s: float
    lines: tuple[str, ...]


class Shown(NamedTuple):
    """A line of the screen while it did not change. `until_s` is None for the lines of the last screen."""

    row: int
    line: str
    from_s: float
    until_s: float | None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PICTURE, help="the SVG file to write")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        subprocess.run(shlex.split(COMMAND), cwd=folder, env=environment, check=True, capture_output=True)
        frames = record(COMMAND, Path(folder), environment)
    picture = drawn(frames, COMMAND)
    given.out.write_text(picture, encoding="utf-8")
    print(f"{given.out}: {len(frames)} screens in {frames[-1].at_s:.1f} s, {len(picture) / 1000:.0f} kB")


def record(command: str, folder: Path, environment: dict[str, str]) -> list[Frame]:
    """What a terminal shows from the moment at which the command is entered until the prompt is there again."""
    if not shutil.which("tmux"):
        raise SystemExit("there is no tmux; install it with: sudo apt-get install tmux")
    tmux = ["tmux", "-L", f"coa-recording-{os.getpid()}", "-f", os.devnull]
    shell = ["env", "PS1=$ ", "bash", "--norc", "--noprofile"]
    size = ["-x", str(COLUMNS), "-y", str(ROWS)]
    subprocess.run([*tmux, "new-session", "-d", *size, *shell], cwd=folder, env=environment, check=True)
    try:
        return list(_followed(tmux, command))
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)


def _followed(tmux: Sequence[str], command: str) -> Iterator[Frame]:
    def screen() -> tuple[str, ...]:
        found = subprocess.run([*tmux, "capture-pane", "-e", "-p"], capture_output=True, text=True, check=True)
        return tuple(found.stdout.rstrip("\n").split("\n"))

    def ready(lines: Sequence[str]) -> bool:
        return bool(lines) and _plain(lines[-1]).rstrip() == "$"

    while not ready(screen()):
        time.sleep(EVERY_S)
    subprocess.run([*tmux, "send-keys", "-l", command], check=True)
    while not _plain(screen()[-1]).startswith(f"$ {command}"):
        time.sleep(EVERY_S)
    began, last = time.monotonic(), screen()
    yield Frame(0.0, last)
    subprocess.run([*tmux, "send-keys", "Enter"], check=True)
    while (now := time.monotonic() - began) < MOST_S:
        lines = screen()
        if lines != last:
            last = lines
            yield Frame(now, lines)
        if len(lines) > 1 and ready(lines):
            return
        time.sleep(EVERY_S)
    raise SystemExit(f"the command has not ended after {MOST_S:.0f} s")


def _plain(line: str) -> str:
    return Text.from_ansi(line).plain


def spans(frames: Sequence[Frame]) -> list[Shown]:
    """Each row's lines, with the time for which each was shown. Empty lines are left out."""
    found = []
    for row in range(max(len(frame.lines) for frame in frames)):
        line, since = "", 0.0
        for frame in frames:
            now = frame.lines[row] if row < len(frame.lines) else ""
            if now != line:
                if _plain(line).strip():
                    found.append(Shown(row, line, since, frame.at_s))
                line, since = now, frame.at_s
        if _plain(line).strip():
            found.append(Shown(row, line, since, None))
    return found


def drawn(frames: Sequence[Frame], title: str) -> str:
    """An SVG picture that plays the frames. Without animation, only the last screen is visible."""
    # A style that begins in a line can go on in the next, so a screen is decoded as a whole.
    decoded = [
        Frame(frame.at_s, tuple(map(_as_ansi, AnsiDecoder().decode("\n".join(frame.lines))))) for frame in frames
    ]
    shown = spans(decoded)
    length = BEFORE_S + frames[-1].at_s + AFTER_S
    times = sorted({(one.from_s, one.until_s) for one in shown if one.from_s > 0 or one.until_s is not None},
                   key=lambda pair: (pair[0], pair[1] or length))  # fmt: skip
    names = {pair: f"t{number}" for number, pair in enumerate(times)}
    width = round(2 * _PAD + COLUMNS * _ADVANCE)
    height = 2 * _PAD + _LINE * (max(one.row for one in shown) + 1)
    background, foreground = _THEME.background_color.hex, _THEME.foreground_color.hex
    last = "\n".join(_plain(line).rstrip() for line in frames[-1].lines)
    rules = [rule for pair in times for rule in _rules(names[pair], *pair, length)]
    texts = [_text(one, names.get((one.from_s, one.until_s), "")) for one in shown]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            ' role="img" aria-labelledby="title desc">',
            f'<title id="title">{escape(title)}</title>',
            f'<desc id="desc">{escape(last)}</desc>',
            "<style>",
            f"  text {{ fill: {foreground}; font-size: 13px; white-space: pre;"
            ' font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }',
            "  .past { opacity: 0; }",
            *rules,
            "  @media (prefers-reduced-motion: reduce) { text { animation: none !important; } }",
            "</style>",
            f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8" fill="{background}"'
            ' stroke="#444b60"/>',
            *texts,
            "</svg>",
            "",
        ]
    )


def _as_ansi(text: Text) -> str:
    """A decoded line with all of its styles in itself."""
    console = Console(color_system="truecolor", force_terminal=True, width=10 * COLUMNS, legacy_windows=False)
    with console.capture() as captured:
        console.print(text, end="", soft_wrap=True)
    return captured.get()


def _rules(name: str, from_s: float, until_s: float | None, length_s: float) -> Iterator[str]:
    """When a line is visible, again and again. Lines of the last screen are, too, before the recording begins."""
    moments = {0.0: int(until_s is None), BEFORE_S: 0, BEFORE_S + from_s: 1}
    moments |= {length_s: 1} if until_s is None else {BEFORE_S + until_s: 0, length_s: 0}
    steps = " ".join(f"{100 * at / length_s:.2f}% {{ opacity: {seen} }}" for at, seen in moments.items())
    yield f"  .{name} {{ animation: {name} {length_s:.2f}s step-end infinite; }}"
    yield f"  @keyframes {name} {{ {steps} }}"


def _text(shown: Shown, name: str) -> str:
    y = _PAD + _LINE * shown.row + 14
    classes = " ".join(filter(None, [name, "" if shown.until_s is None else "past"]))
    parts, column = [], 0
    for segment in Text.from_ansi(shown.line).render(Console()):
        words = segment.text.rstrip("\n")
        if words.strip():
            indent = len(words) - len(words.lstrip())
            parts.append(_tspan(words.strip(), column + indent, segment))
        column += len(words)
    marked = f" class={quoteattr(classes)}" if classes else ""
    return f'<text y="{y}"{marked}>{"".join(parts)}</text>'


def _tspan(words: str, column: int, segment: Segment) -> str:
    style = segment.style or Style()
    look = ""
    if style.color is not None and not style.color.is_default:
        look += f' fill="{style.color.get_truecolor(_THEME).hex}"'
    if style.bold:
        look += ' font-weight="600"'
    # The length keeps the columns where they are, whatever font the reader's machine has.
    place = f'x="{_PAD + column * _ADVANCE:g}" textLength="{len(words) * _ADVANCE:g}"'
    return f"<tspan {place}{look}>{escape(words)}</tspan>"


if __name__ == "__main__":
    main()
