"""``LLAMA_PY_DEVICE=rpc``: the device is this machine's processor, behind an RPC server.

It has memory of its own, needs no driver, and computes as the CPU does, to the bit.
"""

from __future__ import annotations

import atexit
import os

from llama_py import rpc
from tests.rpc.servers import Server

if os.environ.get("LLAMA_PY_DEVICE") == "rpc":
    server = Server("--memory", "1GiB")
    atexit.register(server.close)
    rpc.add_server(server.endpoint)
