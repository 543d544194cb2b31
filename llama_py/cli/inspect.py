"""``llama-py inspect``: describes a model file, or without one, the installation."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_py.cli import fit, options, projectors
from llama_py.cli.sizes import shown_bytes
from llama_py.errors import InvalidModelError, LibraryNotFoundError, ParameterError
from llama_py.version import LLAMA_CPP_COMMIT, __version__

if TYPE_CHECKING:
    from llama_py.gguf.check import GGUFInfo

__all__ = ["add_parser"]

_LONGEST_VALUE = 100


def add_parser(commands: Any) -> None:
    """Add ``inspect`` to the subcommands of ``llama-py``."""
    parser = commands.add_parser(
        "inspect",
        help="show what is in a model file, or what is installed",
        description="Show what is in a GGUF file: architecture, size, kind of memory, context "
        "length, chat template, metadata, and the projectors for pictures and sounds beside it; or "
        "what such a projector (mmproj-....gguf) is. Without a file: the version, the pinned "
        "llama.cpp, libraries, backends, devices, CPU features and build options of this "
        "installation.",
    )
    options.add_model_file(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--full", action="store_true", help="print long metadata values and the whole template"
    )
    fit.add_arguments(parser)
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    if parsed.file or parsed.model or parsed.hf:
        path = options.model_path(parsed.file or parsed.model, parsed.hf)
        projector = projectors.describe(path)
        if projector:
            report, shown = projector, _projector_text(projector, parsed.full)
        elif parsed.fit:
            report = fit.fit_report(path, parsed)
            shown = fit.fit_text(report)
        else:
            report = model_report(path)
            shown = _model_text(report, parsed.full)
    elif parsed.fit:
        raise ParameterError("--fit: give the file of a model as well")
    else:
        report = installation_report()
        shown = _installation_text(report)
    if parsed.json:
        json.dump(report, sys.stdout, indent=2, ensure_ascii=False, default=str)
        print()
    else:
        print("\n".join(shown))
    return 0


# ---- a model ---------------------------------------------------------------------------------


def model_report(path: str) -> dict[str, Any]:
    """Describe a model file, as far as that is possible without running the model."""
    from llama_py.gguf.check import check_model_file
    from llama_py.memory.kinds import traits_of

    info = check_model_file(path)

    facts = _facts(info)
    kind = traits_of(facts, swa_full=False).kind.value if facts.has_decoder else "none: an encoder"
    return {
        "path": str(info.path),
        "architecture": info.architecture,
        "name": info.metadata.get("general.name"),
        "parameters": info.n_params,
        "bytes": info.n_bytes,
        "files": len(info.shards),
        "tensors": info.n_tensors,
        "tensor_types": dict(info.tensor_types),
        "vocabulary": info.n_vocab,
        "context_length": info.context_length,
        "chat_template": info.chat_template,
        "projectors": projectors.beside(info.path, info.metadata, info.architecture),
        "memory": kind,
        "window": facts.n_swa,
        "layers": facts.n_layer,
        "defaults": _defaults(info),
        "gguf_version": info.version,
        "metadata": dict(info.metadata),
        "arrays": {name: {"type": a.type, "length": a.count} for name, a in info.arrays.items()},
    }


@dataclass(frozen=True)
class _ModelFacts:
    """Facts about a model that llama.cpp reports without reading the weights."""

    architecture: str
    n_ctx_train: int
    n_swa: int
    is_recurrent: bool
    is_hybrid: bool
    has_decoder: bool
    n_layer: int


def _facts(info: GGUFInfo) -> _ModelFacts:
    """Ask llama.cpp, which knows each architecture. No weights are read."""
    from llama_py._native import llama_h
    from llama_py.core import logs

    logs.install()
    params = llama_h.llama_model_default_params()
    params.no_alloc, params.load_mode, params.n_gpu_layers = True, 0, 0
    with logs.ErrorLines() as lines:
        model = llama_h.llama_model_load_from_file(os.fsencode(info.path), params)
    if not model:
        raise InvalidModelError(f"llama.cpp cannot load {info.path}: {lines}")
    try:
        return _ModelFacts(
            architecture=info.architecture,
            n_ctx_train=llama_h.llama_model_n_ctx_train(model),
            n_swa=llama_h.llama_model_n_swa(model),
            is_recurrent=llama_h.llama_model_is_recurrent(model),
            is_hybrid=llama_h.llama_model_is_hybrid(model),
            has_decoder=llama_h.llama_model_has_decoder(model),
            n_layer=llama_h.llama_model_n_layer(model),
        )
    finally:
        llama_h.llama_model_free(model)


def _defaults(info: GGUFInfo) -> dict[str, dict[str, Any]]:
    """The values of parameters that nobody gives, and why."""
    from llama_py.core.context import default_threads
    from llama_py.params import ContextParams

    threads = default_threads(info.n_bytes)
    rules: dict[str, tuple[Any, str]] = {
        "flash_attn": ("auto", "used where it is supported"),
        "n_threads": (threads, "one: the model is tiny" if threads == 1 else "physical cores"),
        "n_threads_batch": (threads, "like n_threads"),
        "n_ubatch": (ContextParams().n_ubatch, "llama.cpp's"),
    }
    return {name: dict(zip(("value", "from"), rule, strict=True)) for name, rule in rules.items()}


def _model_text(report: Mapping[str, Any], full: bool) -> Iterator[str]:
    types = ", ".join(f"{name} ({count})" for name, count in report["tensor_types"].items())
    window = f", window of {report['window']} tokens" if report["window"] else ""
    parts = f", {report['files']} files" if report["files"] > 1 else ""
    yield from _rows(
        [
            ("file", report["path"]),
            ("name", report["name"]),
            ("architecture", report["architecture"]),
            ("parameters", _count(report["parameters"])),
            ("size", f"{shown_bytes(report['bytes'])}{parts}"),
            ("tensors", f"{report['tensors']}: {types}"),
            ("layers", report["layers"]),
            ("memory", f"{report['memory']}{window}"),
            ("context length", report["context_length"]),
            ("vocabulary", report["vocabulary"]),
        ]
    )
    for each in report["projectors"]:
        why = f"; not used by itself: {each['unused']}" if each["unused"] else ""
        yield from _rows([("projector", f"{Path(each['path']).name}, {_senses(each)}{why}")])
    yield "\ndefaults on this machine"
    for name, default in report["defaults"].items():
        yield f"  {name} = {default['value']} ({default['from']})"
    yield from _metadata_text(report, full)
    yield "\nchat template"
    template = report["chat_template"]
    lines = ["none; ChatML is used in its place"] if template is None else template.splitlines()
    shown = lines if full else lines[:12]
    for line in shown:
        yield f"  {line if full else line[:_LONGEST_VALUE]}"
    if len(lines) > len(shown):
        yield f"  … {len(lines) - len(shown)} more lines; --full shows them"


def _metadata_text(report: Mapping[str, Any], full: bool) -> Iterator[str]:
    yield "\nmetadata"
    for key, value in sorted(report["metadata"].items()):
        if key != "tokenizer.chat_template":
            text = repr(value) if isinstance(value, str) else str(value)
            if not full and len(text) > _LONGEST_VALUE:
                text = f"{text[:_LONGEST_VALUE]}…"
            yield f"  {key} = {text}"
    for key, array in sorted(report["arrays"].items()):
        yield f"  {key} = {array['length']} x {array['type']}"


def _senses(projector: Mapping[str, Any]) -> str:
    return " and ".join(
        f"{verb} ({projector['kinds'][kind]})"
        for kind, verb in (("vision", "sees"), ("audio", "hears"))
        if kind in projector["kinds"]
    )


def _projector_text(report: Mapping[str, Any], full: bool) -> Iterator[str]:
    sizes = report["picture"]
    pixels = f"{sizes['size']} x {sizes['size']} pixels, in patches of {sizes['patch']}"
    widths = ", ".join(map(str, report["widths"]))
    yield from _rows(
        [
            ("file", report["path"]),
            ("name", report["name"]),
            ("architecture", "clip: a projector, for pictures and sounds (mmproj=)"),
            ("kind", _senses(report)),
            ("pictures", pixels if sizes["size"] else None),
            ("for models of", f"{widths} values a token" if widths else None),
            ("parameters", _count(report["parameters"])),
            ("size", shown_bytes(report["bytes"])),
            ("tensors", report["tensors"]),
        ]
    )
    yield from _metadata_text(report, full)


# ---- the installation ------------------------------------------------------------------------


def installation_report() -> dict[str, Any]:
    """Describe the installation: versions, libraries, devices, CPU features, build options."""
    from llama_py._native.loader import OPTIONAL, STEMS, build_info, library, search_directories
    from llama_py.core import backend, logs
    from llama_py.core.rules import cpu_variant, rule_states

    logs.install()
    directories = search_directories()
    report: dict[str, Any] = {
        "version": __version__,
        "llama_cpp": LLAMA_CPP_COMMIT,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "build": {**build_info(), "rules": rule_states()},
        "cpu_variant": cpu_variant(),
        "searched": [str(directory) for directory in directories],
    }
    features = backend.system_info()
    report["libraries"] = {}
    for name in STEMS:
        try:
            report["libraries"][name] = library(name)._name
        except LibraryNotFoundError:
            if name not in OPTIONAL:
                raise
    report["devices"] = backend.devices()
    report["features"] = _features(features)
    return report


def _features(line: str) -> dict[str, list[str]]:
    """Parse ``CPU : SSE3 = 1 | AVX = 1 | ...`` into backend -> features that are on."""
    found: dict[str, list[str]] = {}
    backend = "CPU"
    for part in filter(None, map(str.strip, line.split("|"))):
        head, _, rest = part.rpartition(" : ")
        backend = head.strip() or backend
        name, _, value = rest.partition("=")
        if value.strip() != "0":
            text = name.strip() if value.strip() == "1" else f"{name.strip()}={value.strip()}"
            found.setdefault(backend, []).append(text)
    return found


def _installation_text(report: Mapping[str, Any]) -> Iterator[str]:
    build = report["build"]
    options_text = " ".join(f"{k}={v}" for k, v in build.get("options", {}).items())
    backends = ", ".join(build.get("backends", [])) or "unknown"
    yield from _rows(
        [
            ("llama-py", report["version"]),
            ("llama.cpp", build.get("llama_cpp_commit") or report["llama_cpp"]),
            ("python", f"{report['python']} on {report['platform']}"),
            ("backends", backends),
            ("CPU variant", report["cpu_variant"]),
            ("build", f"{build.get('build_type', 'unknown')}, {build.get('compiler', 'unknown')}"),
            ("options", options_text or None),
            ("rules", ", ".join(f"{k} {v}" for k, v in build.get("rules", {}).items()) or None),
        ]
    )
    yield "\nlibraries"
    for name, path in report["libraries"].items():
        yield f"  {name:10} {path}"
    yield "\ndevices"
    for device in report["devices"]:
        free, total = shown_bytes(device["free_bytes"]), shown_bytes(device["total_bytes"])
        yield f"  {device['name']}: {device['description']} ({device['kind']}, {free} of {total})"
    yield "\nfeatures"
    for name, values in report["features"].items():
        yield f"  {name}: {' '.join(values)}"


# ---- text ------------------------------------------------------------------------------------


def _rows(rows: list[tuple[str, Any]]) -> Iterator[str]:
    for name, value in rows:
        if value is not None:
            yield f"{name:15} {value}"


def _count(number: int) -> str:
    for size, unit in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return str(number)
