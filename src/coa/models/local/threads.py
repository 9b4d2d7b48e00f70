"""Sets the number of cores for the tensor operations of the calling thread, whatever other threads use.

`torch.set_num_threads` alone is not enough. A thread adopts the number of the process at its first operation, even if
it has set another number before. And MKL has one number for all threads, unless a thread sets a local one.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch


def use_cores(count: int) -> None:
    """For this thread. It also changes the number of the process, which the starter of the thread has to restore."""
    torch.set_num_threads(count)
    torch.get_num_threads()  # adopts the number of the process now, so that it does not happen later
    library = next((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*"), None)
    own = getattr(ctypes.CDLL(str(library)), "MKL_Set_Num_Threads_Local", None) if library is not None else None
    if own is not None:
        own(count)
