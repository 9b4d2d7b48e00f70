"""The cells of the example notebook, and a program that runs them as a notebook does."""

from __future__ import annotations

import json
from typing import Final

from support.documents import ROOT

NOTEBOOK: Final = ROOT / "examples" / "first-steps.ipynb"
RUN_CELLS: Final = r"""
import ast, asyncio, json, os, re, subprocess, sys

os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]

def shell(command):
    subprocess.run(command, shell=True, check=True)

def plain(cell):  # `!command` and `%pip`, with the names in braces
    cell = re.sub(r"^( *)%pip ", r"\1!python -m pip ", cell, flags=re.MULTILINE)
    return re.sub(r"^( *)!(.*)$", r"\1shell(f'\2')", cell, flags=re.MULTILINE)

async def main():  # one namespace, inside a running loop, with `await` at the top level
    names = {"__name__": "__main__", "shell": shell}
    for number, cell in enumerate(json.load(open(sys.argv[1]))):
        code = compile(plain(cell), f"cell {number}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        waiting = eval(code, names)
        if waiting is not None:
            await waiting

asyncio.run(main())
"""
"""Takes the name of a JSON file with the cells."""


def cells() -> list[str]:
    notebook = json.loads(NOTEBOOK.read_text())
    assert all(not cell.get("outputs") for cell in notebook["cells"])
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
