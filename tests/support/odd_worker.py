"""A worker module for tests of `coa.workers`: it does what the request says."""

from __future__ import annotations

import os
import sys
import time


def prepare() -> None:
    print("prepared")  # must not be taken for an answer


def answer(request: bytes) -> bytes:
    match request.partition(b" "):
        case b"echo", _, text:
            print("noise", file=sys.stdout, flush=True)
            return text
        case b"pid", _, _:
            return str(os.getpid()).encode()
        case b"environment", _, _:
            return "\n".join(sorted(os.environ)).encode()
        case b"sleep", _, _:
            time.sleep(600)
        case b"exit", _, code:
            os._exit(int(code))
        case b"swell", _, _:
            return bytes(1 << 40)
        case b"write", _, place:
            try:
                with open(place, "wb", buffering=0) as file:
                    file.write(b"x")
            except OSError as error:
                return type(error).__name__.encode()
    return b"what?"
