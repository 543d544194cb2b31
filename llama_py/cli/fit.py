"""``llama-py inspect --fit``: what a model would take on each device, before it is loaded."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from llama_py.cli import options
from llama_py.cli.elsewhere import with_aliases
from llama_py.cli.sizes import shown_bytes
from llama_py.options import LOAD

__all__ = ["add_arguments", "fit_report", "fit_text"]

#: Options of ``Llama`` that decide how much memory a model takes.
_DECIDING = (
    "n_gpu_layers",
    "n_cpu_moe",
    "cpu_moe",
    "override_tensors",
    "devices",
    "rpc_servers",
    "tensor_split",
    "split_mode",
    "n_ctx",
    "flash_attn",
    "kv_unified",
    "type_k",
    "type_v",
)
_WHAT = ("weights", "cells", "buffers", "total")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--fit``, and the options that decide."""
    group = parser.add_argument_group("memory")
    group.add_argument(
        "--fit",
        action="store_true",
        help="show how much memory the model would take on each device, and whether it is there; "
        "no weights are read",
    )
    usual = LOAD["n_seq_max"].default()
    group.add_argument(
        *with_aliases("--n-seq-max"),
        dest="n_seq_max",
        metavar="N",
        type=int,
        help=f"conversations in memory at once (default: {usual})",
    )
    for option in LOAD:
        if option.name in _DECIDING:
            options.add_flag(group, option, LOAD)


def fit_report(path: str, parsed: argparse.Namespace) -> dict[str, Any]:
    """Memory needed, and memory available.

    Raises:
        LlamaError: an option is wrong, or the model could not be loaded.
    """
    from llama_py.core import backend
    from llama_py.core.device_memory import fitted, measured
    from llama_py.core.host.machine import available_bytes
    from llama_py.core.placement import gpus
    from llama_py.params import ContextParams, ModelParams

    names = [*_DECIDING, "n_seq_max"]
    given = {name: getattr(parsed, name) for name in names if getattr(parsed, name) is not None}
    arguments: Mapping[str, Any] = LOAD.complete({"n_ctx": 0, **given})
    own = ContextParams.__dataclass_fields__
    context = ContextParams(**{name: arguments[name] for name in own if name in arguments})
    backend.start()
    params = ModelParams.of(arguments)
    if params.n_gpu_layers < 0:
        params = fitted(path, params, context)
    found = measured(path, params, context)
    free = {device["name"]: device["free_bytes"] for device in gpus(params)}
    free["CPU"] = available_bytes()
    rows = [
        {"device": each.device, **{what: getattr(each, what) for what in _WHAT}}
        | {"free_bytes": free.get(each.device, 0)}
        for each in found.devices
    ]
    return {
        "path": path,
        "n_ctx": found.n_ctx,
        "n_seq_max": arguments["n_seq_max"],
        "n_gpu_layers": params.n_gpu_layers,
        "n_cpu_moe": params.n_cpu_moe,
        "devices": rows,
        "fits": all(row["total"] <= row["free_bytes"] for row in rows),
    }


def fit_text(report: Mapping[str, Any]) -> Iterator[str]:
    """The report as a table."""
    heads = ("device", *_WHAT, "free now")
    table = [heads]
    for row in report["devices"]:
        sizes = [row[what] for what in _WHAT] + [row["free_bytes"]]
        table.append((row["device"], *map(shown_bytes, sizes)))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        cells = [line[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        yield "  ".join(cells)
    many = f" of {report['n_seq_max']} sequences" if report["n_seq_max"] > 1 else ""
    if report["n_gpu_layers"] > 0 or report["n_cpu_moe"]:
        yield f"\nn_gpu_layers={report['n_gpu_layers']} n_cpu_moe={report['n_cpu_moe']}"
    yield f"\nfor a context of {report['n_ctx']:,} tokens{many}: " + (
        "it fits" if report["fits"] else "it does not fit; take a smaller -c, -ctk q8_0, or -ngl"
    )
