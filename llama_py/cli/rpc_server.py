"""``llama-py rpc-server``: the devices of this machine, for models of other machines."""

from __future__ import annotations

import argparse
import ipaddress
import sys
from typing import Any

from llama_py.cli.elsewhere import with_aliases
from llama_py.cli.sizes import read_bytes, shown_bytes
from llama_py.errors import ParameterError

__all__ = ["add_parser"]

_WARNING = """\
WARNING: this listens at {host}, beyond this machine. The protocol has no keys and no encryption,
and believes what it is sent: whoever reaches the port can use the memory of this machine, read the
conversations that are computed here, and may crash the server. Keep it in a network of your
own{hint}.
"""


def add_parser(commands: Any) -> None:
    """Add ``rpc-server`` to the subcommands of ``llama-py``."""
    parser = commands.add_parser(
        "rpc-server",
        help="lend this machine's devices to models on other machines",
        description="Offer the devices of this machine to models of other machines, which name it "
        "with --rpc HOST:PORT. It serves several clients side by side.",
    )
    parser.add_argument(
        "-H", "--host", default="127.0.0.1", help="address to listen at (default: %(default)s)"
    )
    parser.add_argument(
        "-p", "--port", type=int, default=50052, help="port (default: %(default)s; 0: a free one)"
    )
    parser.add_argument(
        "--allow",
        default="",
        metavar="ADDRESSES",
        help="addresses and networks whose clients are served, with commas: 10.0.0.2,10.1.0.0/16",
    )
    parser.add_argument(
        *with_aliases("-d", "--device"),
        dest="device",
        default="",
        metavar="NAMES",
        help="devices to offer, by their names in llama-py devices (default: the GPUs, or the CPU)",
    )
    parser.add_argument(
        "--memory",
        default="",
        metavar="SIZE",
        help="most memory for all clients together, of each device: 8GiB, or CUDA0=8GiB,CUDA1=4GiB "
        "(default: what there is; of the CPU three quarters)",
    )
    parser.add_argument(
        "-t",
        "--threads",
        type=int,
        default=0,
        metavar="N",
        help="threads of a CPU (default: cores)",
    )
    parser.add_argument(
        "--cache", metavar="FOLDER", help="keep large tensors here, so that they are sent only once"
    )
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    from llama_py.core import backend
    from llama_py.core.rpc_serving import RpcService, ServiceSettings

    if parsed.threads < 0 or not 0 <= parsed.port < 65536:
        raise ParameterError("--threads must be at least 0, and --port from 0 to 65535")
    backend.start()
    memory = {}
    for each in _names(parsed.memory):
        name, _, size = each.rpartition("=")
        try:
            memory[name] = read_bytes(size)
        except ValueError:
            raise ParameterError(f"--memory: {size!r} is not a size such as 8GiB") from None
    service = RpcService(
        ServiceSettings(
            host=parsed.host,
            port=parsed.port,
            allow=_names(parsed.allow),
            devices=_names(parsed.device),
            memory=memory,
            n_threads=parsed.threads,
            cache=parsed.cache,
        )
    )
    host, port = service.address
    if not ipaddress.ip_address(host).is_loopback:
        hint = "" if parsed.allow else ", and say who may come with --allow"
        print(_WARNING.format(host=host, hint=hint), file=sys.stderr)
    for device in service.devices:
        free = device["free_bytes"]
        free = free if device["limit_bytes"] is None else min(free, device["limit_bytes"])
        print(f"{device['name']}  {device['description']}: {shown_bytes(free)}")
    print(f"listening at {host}:{port} (Ctrl-C ends it)", flush=True)
    try:
        service.run()
    finally:
        service.close()
    return 0


def _names(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]
