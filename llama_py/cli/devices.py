"""``llama-py devices``: what there is to compute with, and why something is not used."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from llama_py.cli.sizes import shown_bytes

if TYPE_CHECKING:
    from llama_py.core.device_report import DeviceReport

__all__ = ["add_parser"]


def add_parser(commands: Any) -> None:
    """Add ``devices`` to the subcommands of ``llama-py``."""
    parser = commands.add_parser(
        "devices",
        help="show what models can be loaded on, and why a GPU is not used",
        description="Show the devices that this installation sees, with their memory, and which of "
        "them models are loaded on; the GPUs of this machine; and why one of them is not used.",
    )
    parser.add_argument(
        "--rpc",
        default="",
        metavar="SERVERS",
        help="look for these RPC servers as well: HOST:PORT,HOST:PORT",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    from llama_py._native.loader import build_info
    from llama_py.core.device_report import device_report

    servers = [each.strip() for each in parsed.rpc.split(",") if each.strip()]
    report = device_report(build_info().get("backends", []), servers)
    if parsed.json:
        json.dump(report.as_dict(), sys.stdout, indent=2)
        print()
    else:
        print("\n".join(_lines(report)))
    return 0


def _lines(report: DeviceReport) -> Iterator[str]:
    width = max(len(device["name"]) for device in report.devices)
    for device in report.devices:
        free, total = shown_bytes(device["free_bytes"]), shown_bytes(device["total_bytes"])
        use = "not used, because there is a better one"
        if device["kind"] == "cpu":
            use = "holds whatever is not on a GPU"
        elif device["used"]:
            use = "models are loaded here (n_gpu_layers says how much of them)"
        yield f"{device['name']:{width}}  {device['description']}"
        yield f"{'':{width}}  {device['kind']}, {free} of {total} free; {use}"
    for gpu in report.gpus:
        driver = f"driver: {gpu.driver}" if gpu.driver else "no driver"
        yield f"\nin this machine: {' '.join(filter(None, (gpu.vendor, gpu.id)))} ({driver})"
    if not report.gpus and not report.backends:
        yield "\nno GPU is seen in this machine, and this build has no GPU backend"
    elif report.backends:
        yield f"\nbuilt for: {', '.join(report.backends)}"
    for hint in report.hints:
        yield f"\n{hint}"
