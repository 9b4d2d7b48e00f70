"""How many cores the calling thread's tensor operations use, whatever other threads use.

`torch.set_num_threads` alone does not do it. A thread takes the process's number over at its first operation, even if
it has chosen another before; and MKL knows one number for all threads, unless a thread tells it its own.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch


def use_cores(count: int) -> None:
    """For this thread. The process's number is changed, too: whoever starts threads sets it back."""
    torch.set_num_threads(count)
    torch.get_num_threads()  # takes the number over now, so that it is not taken over later
    library = next((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*"), None)
    own = getattr(ctypes.CDLL(str(library)), "MKL_Set_Num_Threads_Local", None) if library is not None else None
    if own is not None:
        own(count)
