"""A grammar as text for servers: a right-recursive rule per state, and literals where only one text is possible."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

from coa.trajectory.grammar.language import DEAD, DONE, Grammar, Language

_ASCII: Final = range(128)


def to_gbnf(grammar: Grammar) -> str:
    """The notation of llama.cpp, which xgrammar (vLLM, SGLang) reads too."""
    language, start = grammar.language, grammar.start
    if grammar.tight:
        return f"root ::= {_literal(_shortest(language, start))}\n"
    rules: dict[int, str] = {}
    waiting = [start]
    while waiting:
        state = waiting.pop()
        if state in rules:
            continue
        ways = []
        for target, chars, others in _ways(language, state):
            text, end = _straight(language, target)
            ways.append(_chars(chars, others) + (" " + _literal(text) if text else "") + _rule(end))
            if end != DONE:
                waiting.append(end)
        rules[state] = " | ".join(ways)
    lines = [f"root ::={_rule(start)}", *(f"s{state} ::= {ways}" for state, ways in rules.items())]
    return "\n".join(lines) + "\n"


def _rule(state: int) -> str:
    return "" if state == DONE else f" s{state}"


def _ways(language: Language, state: int) -> list[tuple[int, list[int], bool]]:
    """The next states of a state, each with its ASCII characters and whether all other characters lead there too."""
    targets: dict[int, tuple[list[int], bool]] = {}
    for code in _ASCII:
        if (target := language.table[state * 256 + code]) != DEAD:
            targets.setdefault(target, ([], False))[0].append(code)
    if (other := language.other[state]) != DEAD:
        targets[other] = (targets.get(other, ([], False))[0], True)
    return [(target, chars, others) for target, (chars, others) in targets.items()]


def _straight(language: Language, state: int) -> tuple[str, int]:
    """The text that has to come next, if only one is possible, and the state after it."""
    text = ""
    while state != DONE:
        ways = _ways(language, state)
        if len(ways) != 1 or len(ways[0][1]) != 1 or ways[0][2]:
            break
        text += chr(ways[0][1][0])
        state = ways[0][0]
    return text, state


def _shortest(language: Language, state: int) -> str:
    text = ""
    while state != DONE:
        ways = [way for way in _ways(language, state) if way[1]]
        target, chars, _ = min(ways, key=lambda way: language.distance[way[0]])
        text += chr(chars[-1])
        state = target
    return text


def _chars(chars: Sequence[int], others: bool) -> str:
    """A character class. Characters beyond ASCII can be written only as the complement of a class."""
    listed = [code for code in _ASCII if code not in chars] if others else chars
    return f"[{'^' if others else ''}{''.join(_ranges(listed))}]"


def _ranges(codes: Iterable[int]) -> Iterable[str]:
    for _, group in groupby(enumerate(codes), key=lambda pair: pair[1] - pair[0]):
        run = [code for _, code in group]
        yield _escaped(run[0]) if len(run) == 1 else f"{_escaped(run[0])}-{_escaped(run[-1])}"


def _literal(text: str) -> str:
    return '"' + "".join(_escaped(ord(char)) for char in text) + '"'


def _escaped(code: int) -> str:
    """With four digits, because xgrammar reads on after `\\x3C` as long as hexadecimal digits follow: `\\x3Ccode`."""
    return chr(code) if chr(code).isalnum() else f"\\u{code:04X}"
