"""Give large blocks of memory back to the system as soon as they are freed.

glibc allocates a block outside its heap only above a threshold, which it raises up to 32 MB as blocks are freed. A
layer's activations are a few megabytes: they share the heap with what outlives them, and the heap grows with every
pass. At 4,096 tokens, SmolLM2 reached a peak of 5.3 GB in two updates, with 2.9 GB in use; with the threshold set to
8 MB it is 3.4 GB.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Final

_MAPPED_FROM: Final = 8 << 20
"""Smaller blocks belong to short samples, for which mapping each one would cost more time than the memory is worth."""
_KEPT: Final = 512 << 20
"""Free memory at the end of the heap that is kept for the next pass."""
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3


def give_back_large_blocks() -> bool:
    """Whether it was set: not where malloc is another, nor where the user has set it already."""
    chosen = any(name.startswith("MALLOC_") for name in os.environ) or "malloc" in os.environ.get("GLIBC_TUNABLES", "")
    chosen = chosen or "LD_PRELOAD" in os.environ  # as other mallocs come
    if chosen or not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return (
        mallopt is not None and bool(mallopt(_MMAP_THRESHOLD, _MAPPED_FROM)) and bool(mallopt(_TRIM_THRESHOLD, _KEPT))
    )
