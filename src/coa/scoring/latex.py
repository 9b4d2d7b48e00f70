r"""Spellings of formulas that occur in published gold answers and that math-verify cannot read, in ones that it can.

Nothing is guessed: each rule has one meaning in LaTeX or in the notation of contests. `m_{\max }` is a name, `58\choose
22` a binomial, `2\mathbb{Z}` a set and not the number 2, `t(0,4]` an interval whose "in" was lost.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from coa.scoring.answers import plain

_DELIMITED: Final = re.compile(r"\$\$(.*)\$\$|\$(.*)\$|\\\((.*)\\\)|\\\[(.*)\\\]", re.DOTALL)
_FORMULAS: Final = re.compile(r"\$\$.+?\$\$|\$.+?\$|\\\(.+?\\\)|\\\[.+?\\\]", re.DOTALL)
_COMMAND: Final = re.compile(r"\\[A-Za-z]+")
_WORDS: Final = re.compile(r"\\(?:text|mathrm|textbf)\s*\{[^{}]*\}|\\[A-Za-z]+")
_LOST_IN: Final = re.compile(r"(?:\\?[A-Za-z]+(?:_\{?\w+\}?)?)\s*(\([^()\[\]]+,[^()\[\]]+\]|\[[^()\[\]]+,[^()\[\]]+\))")
_SPELLINGS: Final = (
    (re.compile(r"_\s*\{?\s*\\(max|min|sup|inf|lim)(?![A-Za-z])\s*\}?"), r"_{\1}"),
    (re.compile(r"_\s*\{\s*\\(?:text|mathrm|operatorname)\s*\{\s*(\w+)\s*\}\s*\}"), r"_{\1}"),
    (re.compile(r"\\operatorname\s*\{\s*(arc(?:sin|cos|tan|cot|sec|csc))\s*\}"), r"\\\1"),
    (re.compile(r"(?<=\d)\s*\\mathbb\s*\{?\s*([A-Z])\s*\}?"), r" \1_{bb}"),
    (re.compile(r"(\\frac\s*\{[^{}]*\}\s*\{[^{}]*\})\s*\\mathbb\s*\{?\s*([A-Z])\s*\}?"), r"\1 \2_{bb}"),
    (re.compile(r"(?<![\\A-Za-z])exp\s*\[([^\[\]]*)\]"), r"\\exp(\1)"),
    (re.compile("×"), r"\\times "),
    (re.compile("·"), r"\\cdot "),
    (re.compile(r"(?<=\^)(-\d+)"), r"{\1}"),
)
_GREEK: Final = re.compile("[α-νξ-ρσ-ωΓΔΘΛΞΠΣΦΨΩ]")
_LABEL: Final = re.compile(r"(?:^|(?<=[\s;,.:$]))\(?([A-Za-z]|[ivx]{2,4})\)")
_SEQUENCES: Final = ("abcdefgh", ("i", "ii", "iii", "iv", "v", "vi", "vii", "viii"))


def spelled(text: str) -> str:
    """A formula, or prose with formulas in it, in spellings that can be read."""
    text = _GREEK.sub(lambda found: f"\\{_letter(found.group())} ", plain(text).strip())
    for spelling, instead in _SPELLINGS:
        text = spelling.sub(instead, text)
    return text


def readable_form(formula: str) -> str:
    """What is meant by a formula that cannot be read as it stands."""
    text = bare(formula)
    if found := _LOST_IN.fullmatch(text):
        return found.group(1)
    if "\\choose" in text and _outside_braces(text, "\\choose"):
        return f"{{{text}}}"  # it takes all of its group
    return text if is_formula(formula) else formula


def bare(text: str) -> str:
    r"""Without the dollars, the `\(` or the stop around all of it."""
    text = text.removesuffix(".").strip()
    found = _DELIMITED.fullmatch(text)
    inside = next((part for part in found.groups() if part is not None), "") if found else text
    if "$" in inside or r"\(" in inside or r"\[" in inside:
        return text  # several formulas
    return inside.removesuffix(r"\]").strip()


def is_formula(text: str) -> bool:
    """Whether it is a formula as a whole. A number in one that cannot be read is not the answer."""
    inside = bare(text.strip())
    return inside != text.strip().removesuffix(".").strip() or (
        _COMMAND.search(inside) is not None and not re.search(r"[A-Za-z]{2}", _WORDS.sub(" ", inside))
    )


def without_formulas(text: str) -> str:
    return _FORMULAS.sub(" ", text)


def parts(text: str) -> dict[str, str]:
    """The parts of an answer with labels, such as (a) Yes; (b) 4. Empty if it has none, or only one."""
    labels = list(_LABEL.finditer(text))
    for sequence in _SEQUENCES:
        chosen: list[re.Match[str]] = []
        for label in labels:
            if len(chosen) < len(sequence) and label.group(1).casefold() == sequence[len(chosen)]:
                chosen.append(label)
        if len(chosen) > 1 and not text[: chosen[0].start()].strip(" $*"):
            ends = [label.start() for label in chosen[1:]] + [len(text)]
            return {
                label.group(1).casefold(): text[label.end() : end].strip(" \t\n;,.:*")
                for label, end in zip(chosen, ends, strict=True)
            }
    return {}


def _letter(greek: str) -> str:
    name = unicodedata.name(greek).rpartition(" ")[2].replace("LAMDA", "LAMBDA").lower()
    return name if greek.islower() else name.capitalize()


def _outside_braces(text: str, command: str) -> bool:
    before = text[: text.index(command)]
    return before.count("{") == before.count("}")
