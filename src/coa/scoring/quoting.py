"""Text that a judge reads as data: quoted so that nothing in it can end the quotation or look like a turn."""

from __future__ import annotations

import json
import re
from typing import Final

from coa.trajectory.types import clean_text

# What chat templates and our own grammar are made of: <|...|>, <s>, </think>, [INST].
_MARKUP: Final = re.compile(r"<(?=[|/A-Za-z!])|\[(?=/?(?:INST|SYS))")
_LINE_ENDS: Final = re.compile("[\x7f-\x9f\u2028\u2029]")


def quoted(text: str) -> str:
    """A JSON string on one line. It decodes to the text exactly."""
    line = json.dumps(clean_text(text), ensure_ascii=False)
    return _LINE_ENDS.sub(_escaped, _MARKUP.sub(_escaped, line))


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found.group()):04x}"
