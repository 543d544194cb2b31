"""The tree to move to: fetched or named, verified, and unpacked as the build would have it."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
import tarfile
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PIN = ROOT / "vendor" / "llama.cpp.toml"


class MoveError(Exception):
    """Why the pin cannot be moved, in a sentence."""


@dataclass(frozen=True)
class Tree:
    """A tree of llama.cpp.

    ``pin`` is what ``vendor/llama.cpp.toml`` would say, None for a tree that no archive carries.
    """

    path: Path
    name: str
    pin: Any = None


def _load_resolver() -> Any:
    """vendor/resolve.py is a script, not a package's module."""
    spec = importlib.util.spec_from_file_location("vendor_resolve", ROOT / "vendor" / "resolve.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


resolve = _load_resolver()


def pinned() -> Tree:
    """The tree that the build uses now."""
    pin = resolve.read_pin(PIN)
    source = resolve.resolve(pin, full=True)
    return Tree(Path(source.path), source.commit[:9], pin)


def directory(path: Path) -> Tree:
    """A tree that lies there already; nothing is verified."""
    path = path.expanduser().resolve()
    if not resolve.is_source_tree(path):
        raise MoveError(
            f"{path} is not a source of llama.cpp (no CMakeLists.txt or include/llama.h)"
        )
    commit = resolve.read_stamp(path).get("commit") or resolve.commit_of_checkout(path)
    return Tree(path, path.name if commit == "unknown" else commit[:9])


def tree_of(archive: str, commit: str | None, sha256: str | None) -> Tree:
    """The tree of an archive, unpacked into the cache.

    Args:
        archive: ``package==version`` on the package index, a ``.tar.gz``, or a tree's directory.
        commit: the tag or commit that it carries; a version that ends in a build number says it.
        sha256: what the archive has to be; that of the pin if it is the pinned one.
    """
    path = Path(archive).expanduser()
    if path.is_dir():
        return directory(path)
    package, version = _package(archive)
    now = resolve.read_pin(PIN)
    wanted = sha256
    if (package, version) == (now.archive.package, now.archive.version):
        wanted = wanted or now.archive.sha256
        commit = commit or now.commit
    with tempfile.TemporaryDirectory(prefix="llama_py-") as scratch:
        file = path if path.is_file() else _fetch(package, version, Path(scratch))
        digest = digest_of(file)
        if wanted and digest != wanted:
            raise MoveError(f"{archive} has the SHA-256 {digest}, and not {wanted}: not used")
        prefix = _prefix(file)
        found = replace(now.archive, package=package, version=version, sha256=digest, prefix=prefix)
        pin = replace(now, commit=commit or _commit(version), archive=found)
        return Tree(_unpacked(file, pin), pin.commit[:9], pin)


def _package(archive: str) -> tuple[str, str]:
    name = PurePosixPath(archive).name
    match = re.fullmatch(r"(.+?)(?:==|-(?=\d[^-]*\.tar\.gz$))(.+?)(?:\.tar\.gz)?", name)
    if match is None:
        raise MoveError(f"{archive} is neither package==version, package-version.tar.gz nor a tree")
    return match[1], match[2]


def _commit(version: str) -> str:
    build = version.rpartition(".")[2]
    if not re.fullmatch(r"\d{4,6}", build):
        raise MoveError(f"version {version} does not say which llama.cpp it carries: give --commit")
    return f"b{build}"


def _fetch(package: str, version: str, scratch: Path) -> Path:
    """The archive as the package index has it; nothing of it is run."""
    wanted = resolve.Archive(package, version, "", "")
    reasons = []
    for pip in resolve.find_pips(scratch):
        found, outcome = resolve.fetch(pip, wanted, scratch)
        if found is not None:
            return Path(found)
        reasons.append(f"{' '.join(pip)}: {outcome}")
    raise MoveError(f"{package}=={version} could not be fetched ({'; '.join(reasons)})")


def digest_of(file: Path) -> str:
    """Its SHA-256."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _prefix(file: Path) -> str:
    """The folder of llama.cpp in an archive: the outermost that looks like it."""
    with tarfile.open(file, "r:gz") as tar:
        names = {member.name for member in tar if member.isfile()}
    suffix = "/include/llama.h"
    roots = [name.removesuffix(suffix) for name in names if name.endswith(suffix)]
    roots = [root for root in roots if f"{root}/src/llama.cpp" in names]
    if not roots:
        raise MoveError(f"{file.name} holds no source of llama.cpp")
    return min(roots, key=lambda root: (root.count("/"), root))


def _unpacked(file: Path, pin: Any) -> Path:
    target: Path = resolve.cache_path(pin)
    if not resolve.is_source_tree(target):
        with resolve.staged(target) as staging:
            resolve.unpack(file, pin.archive.prefix, staging, pin.everything)
            resolve.write_stamp(staging, pin, full=True)
    return target
