"""How well the main text of a page is found, beside plain trafilatura, on pages whose main text is known."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable

from trafilatura import extract

from coa.tools.documents.html import read_html

_WORDS = [
    "harbour", "keeper", "lantern", "island", "council", "winter", "bridge", "engineer", "market", "valley", "archive",
    "river", "copper", "festival", "museum", "glass", "railway", "garden", "letter", "mountain", "orchard", "printer",
]  # fmt: skip
Template = Callable[[str, str], str]


def _sentences(rng: random.Random, count: int) -> list[str]:
    return [
        f"The {rng.choice(_WORDS)} of the {rng.choice(_WORDS)} was {rng.choice(['built', 'sold', 'moved', 'rebuilt'])} "
        f"in {rng.randint(1700, 2020)}, when the {rng.choice(_WORDS)} needed {rng.randint(2, 90)} new "
        f"{rng.choice(_WORDS)}s for the {rng.choice(_WORDS)}."
        for _ in range(count)
    ]


def _menu(rng: random.Random) -> str:
    items = "".join(f'<li><a href="/{n}">{rng.choice(_WORDS)} {rng.choice(_WORDS)}</a></li>' for n in range(12))
    return f'<nav class="menu"><ul>{items}</ul></nav>'


TEMPLATES: dict[str, Template] = {
    "article": lambda body, rest: f"<body>{rest}<article>{body}</article><footer>Imprint and contact</footer></body>",
    "main": lambda body, rest: f"<body><header>{rest}</header><main>{body}</main></body>",
    "divs": lambda body, rest: (
        f'<body><div id="nav">{rest}</div><div id="content"><div class="post">{body}</div></div>'
        '<div class="sidebar">Subscribe to our newsletter</div></body>'
    ),
    "table": lambda body, rest: f"<body><table><tr><td>{rest}</td><td>{body}</td></tr></table></body>",
    "bare": lambda body, rest: f"<body>{body}</body>",
}


def _pages() -> list[tuple[str, str, str]]:
    """(name, HTML, its main text)"""
    pages = []
    for name, template in TEMPLATES.items():
        for length in (1, 2, 6, 25):
            rng = random.Random(f"{name}{length}")
            sentences = _sentences(rng, length)
            body = "".join(f"<p>{sentence}</p>" for sentence in sentences)
            pages.append((f"{name} {length}", f"<html><head><title>t</title></head>{template(body, _menu(rng))}</html>",
                          " ".join(sentences)))  # fmt: skip
    return pages


def _f1(found: str, wanted: str) -> float:
    have, want = (Counter(re.findall(r"\w+", text.lower())) for text in (found, wanted))
    common = sum((have & want).values())
    return 2 * common / (have.total() + want.total()) if common else 0.0


def test_main_text_is_found_at_least_as_well_as_by_plain_trafilatura() -> None:
    ours, plain = [], []
    for name, page, wanted in _pages():
        ours.append(_f1(read_html(page, "http://site.test/p").text, wanted))
        plain.append(_f1(extract(page, url="http://site.test/p") or "", wanted))
        assert ours[-1] >= plain[-1] - 0.02, name
    assert sum(ours) >= sum(plain)
    assert sum(ours) / len(ours) > 0.9


def test_short_pages_lose_nothing_of_their_text() -> None:
    for name, page, wanted in _pages():
        if name.endswith((" 1", " 2")):
            found = set(re.findall(r"\w+", read_html(page, "").text))
            assert set(re.findall(r"\w+", wanted)) <= found, name
