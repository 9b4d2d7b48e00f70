"""What went wrong, in words, for errors that the library did not expect: what it is, and what a person can do about it.

`COA_DEBUG=1` prints the traceback of any error as well. The traceback of an error that nobody expected, which is a bug,
is kept in a file.
"""

from __future__ import annotations

import errno
import os
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from coa.cli.output import echo_text
from coa.errors import CoaError, not_installed, refused

_MEMORY: Final = "use a smaller model or less data at a time, lower --concurrency, or use a machine with more memory"
_DAMAGED: Final = "the file is damaged or incomplete: download or make it again"
_WRITING: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EEXIST)
_KINDS: Final = {
    "torch.OutOfMemoryError": ("the accelerator has too little memory", _MEMORY),
    "builtins.MemoryError": ("there is too little memory", _MEMORY),
    "builtins.RecursionError": ("the data are nested too deeply to be read", "check the file that was read last"),
    "builtins.UnicodeDecodeError": ("a text file is not in UTF-8", "convert it: iconv -f latin1 -t utf-8 FILE"),
    "builtins.UnicodeEncodeError": ("a text cannot be written as UTF-8", "set PYTHONIOENCODING=utf-8"),
    "json.decoder.JSONDecodeError": ("a file is not valid JSON", _DAMAGED),
    "pyarrow.lib.ArrowException": ("a Parquet file cannot be read or written", _DAMAGED),
    "safetensors_rust.SafetensorError": ("a file of weights cannot be read or written", _DAMAGED),
    "sqlite3.Error": ("a cache file cannot be used", "remove the .sqlite file of this run, or choose another --out"),
}
"""Errors of Python and of libraries, by full name, with what they mean here and what to do."""
_LIBRARY: Final = {"site-packages", "coa"}
"""Folders whose code is not the user's, wherever they are."""


def explained(error: BaseException) -> CoaError:
    """The error as one that can be shown to a person."""
    if os.environ.get("COA_DEBUG"):
        echo_text("".join(traceback.format_exception(error)).rstrip("\n"), err=True)
    leaves = list(_leaves(error))
    for leaf in leaves:
        if isinstance(leaf, CoaError):
            return leaf
    return _explained(leaves[0])


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors of a group of concurrent tasks; any other error itself."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error


def _explained(error: BaseException) -> CoaError:
    if isinstance(error, OSError) and (error.errno is not None or error.filename is not None):
        doing = "write" if error.errno in _WRITING else "read or write"
        return refused(f"{doing} {error.filename}" if error.filename else f"{doing} a file", error, CoaError)
    if isinstance(error, ImportError) and (missing := not_installed(error)) is not None:
        return missing
    for kind in type(error).__mro__:
        if meaning := _KINDS.get(f"{kind.__module__}.{kind.__qualname__}"):
            detail = _one_line(error)
            return CoaError(f"{meaning[0]}: {detail}" if detail else meaning[0], hint=meaning[1])
    what = ": ".join(filter(None, (type(error).__name__, _one_line(error))))
    return CoaError(f"coa failed unexpectedly: {what}{_place(error)}", hint=_report(error))


def _one_line(error: BaseException, most: int = 300) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= most else f"{text[:most]}..."


def _place(error: BaseException) -> str:
    """The innermost line of the user's or of coa's own code that the error went through."""
    frames = [(Path(frame.filename), frame.lineno) for frame in reversed(traceback.extract_tb(error.__traceback__))]
    for folder, prefix in ((Path.cwd(), ""), (Path(__file__).parents[1], "coa/")):
        for file, line in frames:
            if file.is_relative_to(folder) and (prefix or not _LIBRARY & {*file.parts}):
                return f" (in {prefix}{file.relative_to(folder)}, line {line})"
    return ""


def _report(error: BaseException) -> str:
    """Keep the traceback in a file, and say where."""
    again = "COA_DEBUG=1 before the command prints the traceback"
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="coa-traceback-", suffix=".txt", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as file:
            traceback.print_exception(error, file=file)
    except OSError:
        return f"if it is not a mistake in code of your own, please report it. {again}"
    return (
        f"if it is not a mistake in code of your own, please report it with {file.name}, which holds the traceback; "
        "COA_DEBUG=1 before the command prints it"
    )
