"""The Hugging Face hub: which names may be on it, and whether it has them.

The hub's own library asks a hub that does not answer again and again, for a minute and more. That is right in the
middle of a download and wrong for a mistyped name, so one quick question comes first: `find` asks the hub once and
waits a few seconds at most. If the hub cannot be reached, an earlier download serves.
"""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Final, Literal

from coa.errors import CoaError

Kind = Literal["model", "dataset"]
PATIENCE_S: Final = 5.0
_NOUN: Final = {"model": "model", "dataset": "data set"}
_FILES: Final = re.compile(r".*\.(bin|csv|gguf|gz|html|jsonl?|md|parquet|pt|py|safetensors|toml|txt|ya?ml|zip)")
_LOGIN_HINT: Final = "check the name; what is private or gated needs `hf auth login`"
_REACH_HINT: Final = "check the connection and the name, or download it elsewhere and give its folder"
_here: dict[tuple[str, Kind], tuple[str, ...]] = {}
"""What the hub has said that it has, with the paths of its files."""


def is_path(name: str, kind: Kind = "model") -> bool:
    """Whether a name can only be a path: `./x`, `a/b/c`, `x.gguf`, or `runs/x` where there is a folder `runs`.

    What was downloaded from the hub under this name is still found, whatever folders there are.
    """
    if name.startswith((".", "/", "~")) or name.endswith("/") or name.count("/") > 1 or "\\" in name:
        return True
    if _FILES.fullmatch(name.lower()):
        return True
    return "/" in name and Path(name).parent.is_dir() and downloaded(name, kind) is None


def find(name: str, kind: Kind, error: type[CoaError], *, what: str | None = None) -> Path | None:
    """The folder of an earlier download if the hub cannot be asked; None if the hub has it and it can be downloaded.

    `what` is wanted of it, such as "the tokenizer of"; errors name it.
    """
    if (name, kind) in _here:
        return None
    problem = _ask(name, kind)
    if problem is None:
        return None
    if (folder := downloaded(name, kind)) is not None:
        return folder
    reason, hint = problem
    raise error(f"cannot get {what or f'the {_NOUN[kind]}'} {name!r} from the hub: {reason}", hint=hint)


def files(name: str, kind: Kind) -> list[str]:
    """The paths of all files, as the hub listed them when `find` asked it."""
    return list(_here.get((name, kind), ()))


def downloaded(name: str, kind: Kind) -> Path | None:
    """The folder of an earlier download, complete or not. This uses no network."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, repo_type=kind, local_files_only=True))
    except Exception:  # it is not in the cache; the library has many errors for that
        return None


def _ask(name: str, kind: Kind) -> tuple[str, str] | None:
    """One question: why the hub does not give it, and what to do; None if it does."""
    from huggingface_hub import constants

    found: list[tuple[str, str] | None] = []

    def ask() -> None:
        found.append(_answer(name, kind))

    # In a thread, because looking up the hub's address has no time limit of its own.
    asking = threading.Thread(target=ask, name="coa-hub", daemon=True)
    asking.start()
    asking.join(PATIENCE_S + 1)
    return found[0] if found else (f"{constants.ENDPOINT} did not answer in {PATIENCE_S:g} seconds", _REACH_HINT)


def _answer(name: str, kind: Kind) -> tuple[str, str] | None:
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    try:
        found = HfApi().repo_info(name, repo_type=kind, timeout=PATIENCE_S)
        _here[name, kind] = tuple(sorted(file.rfilename for file in getattr(found, "siblings", None) or ()))
    except GatedRepoError:
        place = f"{constants.ENDPOINT}/{'datasets/' if kind == 'dataset' else ''}{name}"
        return f"the {_NOUN[kind]} is gated", f"accept its terms at {place}, then `hf auth login`"
    except RepositoryNotFoundError:
        return f"there is no such {_NOUN[kind]}, or you may not read it", _LOGIN_HINT
    except HFValidationError:
        return "this is no name that the hub could have", _LOGIN_HINT
    except OfflineModeIsEnabled:
        return "HF_HUB_OFFLINE is set, and it was not downloaded before", "unset HF_HUB_OFFLINE, or give a folder"
    except HfHubHTTPError as error:
        return f"{constants.ENDPOINT} answers {error.response.status_code}", _REACH_HINT
    except TimeoutError:
        return f"{constants.ENDPOINT} did not answer in {PATIENCE_S:g} seconds", _REACH_HINT
    except Exception as error:  # the HTTP library below has errors of its own
        late = "Timeout" in type(error).__name__
        reason = f"did not answer in {PATIENCE_S:g} seconds" if late else f"cannot be reached ({error})"
        return f"{constants.ENDPOINT} {reason}", _REACH_HINT
    return None
