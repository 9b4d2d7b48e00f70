"""Fictional towns: tasks that no model can know the answers of, and the two tools that solve them.

python towns.py 140 100      # writes 100 tasks to train.jsonl and 40 to test.jsonl
"""

import json
import random
import re
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path

HEADS = re.findall(r"\w+", "Os Br Kal Ver Mor Tan Lin Dor Hal Pel Sar Win Gal Ner Fen Rud Tor Bel Car Vas")
TAILS = re.findall(r"\w+", "trel nov den wick mar lund ford stad mouth bury grad holm tal ridge haven")
KINDS: list[tuple[str, str, Callable[[int, int], int]]] = [
    ("inhabitants", "How many people live in {a} and {b} together?", lambda x, y: x + y),
    ("founded", "How many years after {a} was {b} founded?", lambda x, y: y - x),
    ("elevation", "How many metres higher is {a} than {b}?", lambda x, y: x - y),
]

_rng = random.Random(7)
_names = sorted(head + tail for head, tail in product(HEADS, TAILS))
_rng.shuffle(_names)
_names = _names[:120]
TOWNS = {
    name: {
        "inhabitants": _rng.randrange(1200, 98000),
        "founded": _rng.randrange(850, 1890),
        "elevation": _rng.randrange(12, 2100),
    }
    for name in _names
}


def tasks(count: int) -> list[dict[str, str]]:
    """The first `count` tasks. Every answer is a positive number."""
    rows: list[dict[str, str]] = []
    seen: set[tuple[str, str, str]] = set()
    while len(rows) < count:
        fact, text, value = KINDS[len(rows) % len(KINDS)]
        a, b = _rng.sample(_names, 2)
        if value(TOWNS[a][fact], TOWNS[b][fact]) <= 0:
            a, b = b, a
        answer = value(TOWNS[a][fact], TOWNS[b][fact])
        if answer > 0 and (fact, a, b) not in seen:
            seen.add((fact, a, b))
            question = text.format(a=a, b=b)
            rows.append({"id": f"t{len(rows) + 1:03d}", "question": question, "answer": str(answer)})
    return rows


def lookup(towns: str) -> str:
    """Facts about towns: inhabitants, founding year, elevation. Give the names, separated by commas."""
    known = {name.casefold(): name for name in TOWNS}
    found = []
    for town in towns.replace(" and ", ",").split(","):
        name = known.get(town.strip(" .'\"").casefold())
        if name is None:
            found.append(f"No town is called {town.strip()}.")
        else:
            facts = TOWNS[name]
            found.append(
                f"{name}: {facts['inhabitants']} inhabitants, founded in {facts['founded']}, "
                f"elevation {facts['elevation']} m."
            )
    return "\n".join(found)


def calculator(expression: str) -> str:
    """Value of an arithmetic expression in numbers, such as 512 - 100."""
    plain = expression.replace(",", "").replace(" ", "")
    if not re.fullmatch(r"[\d+\-*/().]+", plain) or "**" in plain:
        return "Error: only numbers and + - * / are allowed."
    try:
        return str(eval(plain, {"__builtins__": {}}))
    except (ArithmeticError, SyntaxError, TypeError) as error:
        return f"Error: {type(error).__name__}"


if __name__ == "__main__":
    rows, cut = tasks(int(sys.argv[1])), int(sys.argv[2])
    for file, part in (("train.jsonl", rows[:cut]), ("test.jsonl", rows[cut:])):
        Path(file).write_text("".join(json.dumps(row) + "\n" for row in part))
