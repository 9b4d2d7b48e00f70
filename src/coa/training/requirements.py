"""What training needs of this machine, checked before torch is imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from coa.errors import TrainingError


@contextmanager
def loading_torch() -> Iterator[None]:
    """Around the import of what trains: settings that torch reads on import, and a clear error where it is missing."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # waiting threads must not spin
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        yield
    except ImportError as error:
        raise TrainingError(
            f"training needs torch, transformers and peft ({error})",
            hint=f"{sys.executable} -m pip install 'chain-of-agents[train]'",
        ) from error
