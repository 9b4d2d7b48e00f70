"""Data files of a data set on the hub: downloaded, or taken from the cache if the hub does not answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from coa import hub
from coa.errors import StoreError

Choice = Callable[[list[str]], Iterable[str]]
"""Selects the wanted paths from all paths of the data set."""


def hub_files(name: str, wanted: Choice) -> list[Path]:
    from huggingface_hub import hf_hub_download

    if (folder := hub.find(name, "dataset", StoreError)) is not None:
        return _in_folder(folder, wanted)
    try:
        listed = hub.files(name, "dataset")
        return [Path(hf_hub_download(name, file, repo_type="dataset")) for file in wanted(listed)]
    except Exception as error:  # network, gated, misspelled: the library's errors have no common base
        if found := cached_files(name, wanted):
            return found
        raise StoreError(
            f"cannot get the data set {name!r} from the hub: {type(error).__name__}: {error}",
            hint="check the name and the connection, log in with `hf auth login`, or download it and give its folder",
        ) from error


def cached_files(name: str, wanted: Choice) -> list[Path]:
    """Files of an earlier download. This uses no network."""
    folder = hub.downloaded(name, "dataset")
    return [] if folder is None else _in_folder(folder, wanted)


def _in_folder(folder: Path, wanted: Choice) -> list[Path]:
    listed = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
    return [folder / file for file in wanted(listed)]
