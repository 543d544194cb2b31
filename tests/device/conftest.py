"""``LLAMA_PY_DEVICE=rpc``: the device is this machine's processor, behind an RPC server.

It has memory of its own, needs no driver, and computes as the CPU does, to the bit.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys

import pytest

from llama_py import rpc
from tests.rpc.servers import Server

if os.environ.get("LLAMA_PY_DEVICE") == "rpc":
    server = Server("--memory", "1GiB")
    atexit.register(server.close)
    rpc.add_server(server.endpoint)

#: Of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4


@pytest.fixture(autouse=True, scope="session")
def freed_memory_is_kept() -> None:
    """Mesa's driver in software takes memory for each dispatch and frees it: half of its time is
    the system's, for new pages, if it is given back each time."""
    if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt"):
        mallopt = ctypes.CDLL(None).mallopt
        for name, value in ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, 1 << 30), (_M_TOP_PAD, 64 << 20)):
            mallopt(name, value)
