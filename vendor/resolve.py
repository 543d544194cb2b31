#!/usr/bin/env python3
"""Finds the pinned llama.cpp source, fetching it if it has to, and prints where it is.

The pin is vendor/llama.cpp.toml. The sources are tried in this order:

1. the directory that LLAMA_PY_LLAMA_CPP_DIR names (a checkout of your own; nothing is verified);
2. vendor/llama.cpp/, which a source distribution ships;
3. the cache: $LLAMA_PY_CACHE_DIR, or else the user's cache directory;
4. the source archive of the Python package that carries the pinned commit, fetched by pip,
   compared with its SHA-256, unpacked into the cache;
5. a git clone of the pinned commit, into the cache.

A source that fails says why, in a sentence, and the next one is tried. The cache is filled by
renaming a finished directory into place: a killed run leaves nothing half-done, and two runs at
once do no harm.

    python vendor/resolve.py                 print the path
    python vendor/resolve.py --full          the same, with what tests and benchmarks read
    python vendor/resolve.py --json          path, commit and origin as JSON
    python vendor/resolve.py --copy-to DIR   copy what a build needs to DIR
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).resolve().parent
STAMP = ".llama_py_pin.json"
SOURCE_VARIABLE = "LLAMA_PY_LLAMA_CPP_DIR"
CACHE_VARIABLE = "LLAMA_PY_CACHE_DIR"


class ResolveError(Exception):
    """A source could not be used; the message is a sentence for people."""


@dataclass(frozen=True)
class Archive:
    """The Python package whose source archive carries the pinned commit."""

    package: str
    version: str
    sha256: str
    prefix: str

    @property
    def requirement(self) -> str:
        """The package as pip is asked for it."""
        return f"{self.package}=={self.version}"


@dataclass(frozen=True)
class Pin:
    """What vendor/llama.cpp.toml says."""

    commit: str
    repository: str
    archive: Archive
    build: tuple[str, ...]
    extra: tuple[str, ...]

    @property
    def everything(self) -> tuple[str, ...]:
        """The patterns of all that is unpacked into the cache."""
        return self.build + self.extra

    @property
    def fingerprint(self) -> str:
        """Changes with the commit and with what is unpacked of it."""
        text = "\n".join((self.commit, *self.everything))
        return hashlib.sha256(text.encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Source:
    """A usable llama.cpp tree: where it is, its commit as far as known, where it came from."""

    path: str
    commit: str
    origin: str


def read_pin(path: Path = HERE / "llama.cpp.toml") -> Pin:
    """Reads the pin."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    return Pin(
        commit=data["commit"],
        repository=data["repository"],
        archive=Archive(**data["archive"]),
        build=tuple(data["unpack"]["build"]),
        extra=tuple(data["unpack"]["extra"]),
    )


def say(text: str) -> None:
    """Tells the person who waits; standard output carries only the answer."""
    print(f"llama.cpp: {text}", file=sys.stderr, flush=True)


# ---- trees ------------------------------------------------------------------------------------


def is_source_tree(path: Path) -> bool:
    """Whether this looks like llama.cpp's source."""
    return all((path / name).is_file() for name in ("CMakeLists.txt", "include/llama.h"))


def read_stamp(path: Path) -> dict[str, Any]:
    """What was noted when the tree was unpacked; empty when it was not unpacked by this script."""
    try:
        stamp = json.loads((path / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def write_stamp(path: Path, pin: Pin, *, full: bool) -> None:
    """Notes which commit a tree is and how much of it is there."""
    stamp = {"commit": pin.commit, "fingerprint": pin.fingerprint, "full": full}
    (path / STAMP).write_text(json.dumps(stamp) + "\n", encoding="utf-8")


def wanted(name: str, patterns: Sequence[str]) -> bool:
    """Whether a path, relative to llama.cpp's root, is covered by one of the patterns."""
    path = PurePosixPath(name)
    candidates = [str(path), *(str(parent) for parent in path.parents)]
    return any(fnmatch.fnmatchcase(c, p) for c in candidates for p in patterns)


def commit_of_checkout(path: Path) -> str:
    """The commit of a git checkout whose root is `path`, or "unknown"."""
    command = ["git", "-C", str(path), "rev-parse", "--show-toplevel", "HEAD"]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    # A tree inside somebody else's repository must not take that repository's commit for its own.
    if len(lines) != 2 or Path(lines[0]).resolve() != path.resolve():
        return "unknown"
    return lines[1]


def copy_tree(source: Path, target: Path, patterns: Sequence[str]) -> None:
    """Copies the files that the patterns cover."""
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source).as_posix()
        if path.is_file() and wanted(name, patterns):
            destination = target / name
            destination.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, destination)


@contextlib.contextmanager
def staged(target: Path) -> Iterator[Path]:
    """A temporary directory beside `target` that takes its place if all goes well."""
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        staging.chmod(0o755)
        yield staging
        put_in_place(staging, target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def put_in_place(staging: Path, target: Path) -> None:
    """Renames a finished tree into place; a concurrent run that was faster is as good."""
    try:
        staging.rename(target)
    except OSError:
        if not is_source_tree(target):
            raise


# ---- the sources, in order --------------------------------------------------------------------


def from_environment(pin: Pin, full: bool) -> Source | None:
    """1. The directory that the user named. A wrong one is an error, not a reason to go on."""
    named = os.environ.get(SOURCE_VARIABLE)
    if not named:
        return None
    path = Path(named).expanduser().resolve()
    if not is_source_tree(path):
        raise SystemExit(
            f"{SOURCE_VARIABLE}={named} is not a llama.cpp source tree (no CMakeLists.txt or "
            f"include/llama.h there). Point it at a checkout of {pin.repository}, or unset it."
        )
    commit = read_stamp(path).get("commit") or commit_of_checkout(path)
    return Source(str(path), commit, SOURCE_VARIABLE)


def from_source_distribution(pin: Pin, full: bool) -> Source | None:
    """2. vendor/llama.cpp beside this script."""
    path = HERE / "llama.cpp"
    if not is_source_tree(path):
        return None
    stamp = read_stamp(path)
    if stamp and stamp.get("commit") != pin.commit:
        raise ResolveError(f"{path} holds another commit than the pinned one and is not used.")
    if full and stamp and not stamp.get("full"):
        return None
    return Source(str(path), stamp.get("commit") or commit_of_checkout(path), "vendor/llama.cpp")


def from_cache(pin: Pin, full: bool) -> Source | None:
    """3. What an earlier run has unpacked."""
    path = cache_path(pin)
    if not is_source_tree(path) or read_stamp(path).get("fingerprint") != pin.fingerprint:
        return None
    return Source(str(path), pin.commit, "cache")


def from_package_archive(pin: Pin, full: bool) -> Source | None:
    """4. The source archive of the package that carries the commit."""
    target = cache_path(pin)
    say(f"fetching {pin.commit[:9]} (source archive of {pin.archive.requirement})")
    with tempfile.TemporaryDirectory(prefix="llama_py-") as scratch:
        archive = download(pin.archive, Path(scratch))
        check_sha256(archive, pin.archive.sha256)
        with staged(target) as staging:
            unpack(archive, pin.archive.prefix, staging, pin.everything)
            write_stamp(staging, pin, full=True)
    return Source(str(target), pin.commit, f"source archive of {pin.archive.requirement}")


def from_git(pin: Pin, full: bool) -> Source | None:
    """5. The repository itself."""
    target = cache_path(pin)
    say(f"cloning {pin.repository} at {pin.commit[:9]}")
    with tempfile.TemporaryDirectory(prefix="llama_py-") as scratch, staged(target) as staging:
        clone(pin, Path(scratch))
        copy_tree(Path(scratch), staging, pin.everything)
        if not is_source_tree(staging):
            raise ResolveError(f"the clone of {pin.repository} lacks CMakeLists.txt or llama.h.")
        write_stamp(staging, pin, full=True)
    return Source(str(target), pin.commit, pin.repository)


# ---- cache ------------------------------------------------------------------------------------


def user_cache_directory() -> Path:
    """The platform's directory for data that can be fetched again."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def cache_path(pin: Pin) -> Path:
    """Where the pinned tree is cached; another commit or another selection has another path."""
    named = os.environ.get(CACHE_VARIABLE)
    root = Path(named).expanduser() if named else user_cache_directory() / "llama_py"
    return root.resolve() / f"llama.cpp-{pin.commit[:9]}-{pin.fingerprint}"


# ---- fetching ---------------------------------------------------------------------------------


#: Run by an interpreter that has pip: finds a source archive as pip is configured to (indexes,
#: certificates, credentials), and only stores it. ``pip download`` would also run its build.
FETCH = """
import sys
from pip._internal.commands import create_command

name, version, target = sys.argv[1:]
command = create_command("download")
options, _ = command.parse_args(["--no-binary", ":all:"])
with command.main_context():
    session = command.get_default_session(options)
    finder = command._build_package_finder(options, session)
    links = [
        candidate.link
        for candidate in finder.find_all_candidates(name)
        if str(candidate.version) == version and candidate.link.filename.endswith(".tar.gz")
    ]
    if not links:
        sys.exit(f"no source archive of {name} {version} was found")
    with session.get(links[0].url_without_fragment, stream=True) as response:
        response.raise_for_status()
        with open(target, "wb") as file:
            while block := response.raw.read(1 << 20):
                file.write(block)
"""


def download(archive: Archive, scratch: Path) -> Path:
    """Fetches the archive with the first pip that works, and runs nothing of it."""
    reasons = []
    for pip in find_pips(scratch):
        found, outcome = fetch(pip, archive, scratch)
        if found is None:
            found, outcome = pip_download(pip, archive, scratch)
        if found is not None:
            return found
        reasons.append(f"{' '.join(pip)}: {outcome}")
    raise ResolveError("pip could not download the archive (" + "; ".join(reasons) + ").")


def fetch(pip: Sequence[str], archive: Archive, scratch: Path) -> tuple[Path | None, str]:
    """The archive as the index has it, or None and why not; its digest is not looked at."""
    if pip[1:] != ["-m", "pip"]:
        return None, "not an interpreter"
    target = scratch / f"{archive.package}-{archive.version}.fetched"
    outcome = run([pip[0], "-c", FETCH, archive.package, archive.version, str(target)])
    return (target, "") if outcome == "" and target.is_file() else (None, outcome)


def pip_download(pip: Sequence[str], archive: Archive, scratch: Path) -> tuple[Path | None, str]:
    """The same by ``pip download``, for a pip whose insides are others than expected."""
    # With its digest, pip compares before it unpacks, and runs nothing of another archive.
    wanted = scratch / "requirement.txt"
    wanted.write_text(f"{archive.requirement} --hash=sha256:{archive.sha256}\n", encoding="utf-8")
    arguments = ["download", "--no-deps", "--no-binary", ":all:", "--dest", str(scratch)]
    arguments += ["--require-hashes", "--requirement", str(wanted)]
    outcome = run([*pip, *arguments])
    found = sorted(scratch.glob("*.tar.gz"))
    return (found[0], "") if found else (None, outcome)


def find_pips(scratch: Path) -> Iterator[list[str]]:
    """Commands that may run pip, likeliest first.

    In pip's own build isolation, and in an environment that uv made, this interpreter may have no
    pip: then the interpreter below it, a pip on the path, or a fresh environment has one.
    """
    base = getattr(sys, "_base_executable", None) or sys.executable
    for interpreter in dict.fromkeys((sys.executable, base)):
        yield [interpreter, "-m", "pip"]
    on_path = shutil.which("pip3") or shutil.which("pip")
    if on_path:
        yield [on_path]
    environment = scratch / "venv"
    if run([base, "-m", "venv", str(environment)]) == "":
        bindir = "Scripts" if sys.platform == "win32" else "bin"
        yield [str(environment / bindir / "python"), "-m", "pip"]


def run(command: Sequence[str]) -> str:
    """Runs a command outside of any build isolation; returns "" or the last line it complained."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "PYTHONNOUSERSITE", "__PYVENV_LAUNCHER__")
    environment = {k: v for k, v in os.environ.items() if k not in hidden}
    try:
        result = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
    except OSError as error:
        return str(error)
    if result.returncode == 0:
        return ""
    lines = (result.stderr or result.stdout).strip().splitlines()
    return lines[-1] if lines else f"exit status {result.returncode}"


def check_sha256(archive: Path, expected: str) -> None:
    """Refuses an archive that is not the pinned one."""
    digest = hashlib.sha256()
    with archive.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != expected:
        raise ResolveError(
            f"{archive.name} has the SHA-256 {digest.hexdigest()}, not the pinned {expected}; "
            "it is not used."
        )


def unpack(archive: Path, prefix: str, target: Path, patterns: Sequence[str]) -> None:
    """Takes the files that the patterns cover out of the archive."""
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            name = member.name.removeprefix(prefix + "/")
            if member.isfile() and name != member.name and wanted(name, patterns):
                extract(tar, member, target, name)
    if not is_source_tree(target):
        raise ResolveError(f"{archive.name} holds no llama.cpp below {prefix}.")


def extract(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path, name: str) -> None:
    """Writes one regular file, and only below the target."""
    if ".." in PurePosixPath(name).parts:
        raise ResolveError(f"the archive names a path outside of its directory: {member.name}.")
    content = tar.extractfile(member)
    assert content is not None  # a regular file has content
    destination = target / name
    destination.parent.mkdir(parents=True, exist_ok=True)
    with content, destination.open("wb") as out:
        shutil.copyfileobj(content, out)


def clone(pin: Pin, directory: Path) -> None:
    """Checks the pinned commit out, without its history."""
    git = ["git", "-C", str(directory)]
    steps = (
        [*git, "init", "--quiet"],
        [*git, "fetch", "--quiet", "--depth", "1", pin.repository, pin.commit],
        [*git, "-c", "advice.detachedHead=false", "checkout", "--quiet", "FETCH_HEAD"],
    )
    for step in steps:
        complaint = run(step)
        if complaint:
            raise ResolveError(f"git could not fetch {pin.repository}: {complaint}.")


# ---- all together -----------------------------------------------------------------------------

SOURCES: tuple[tuple[Callable[[Pin, bool], Source | None], str], ...] = (
    (from_environment, ""),
    (from_source_distribution, "Trying the cache next."),
    (from_cache, ""),
    (from_package_archive, "Trying a git clone next."),
    (from_git, ""),
)


def resolve(pin: Pin, *, full: bool = False) -> Source:
    """The first source that works.

    Args:
        pin: what to look for.
        full: also ask for what only tests and benchmarks read.

    Raises:
        SystemExit: no source works; the message says what was tried and what to do.
    """
    reasons = []
    for source, following in SOURCES:
        try:
            found = source(pin, full)
        except (ResolveError, OSError, tarfile.TarError) as error:
            reasons.append(str(error))
            say(f"{error} {following}".rstrip())
        else:
            if found is not None:
                return found
    raise SystemExit(
        "The llama.cpp source could not be found or fetched:\n  - "
        + "\n  - ".join(reasons)
        + f"\nFetch commit {pin.commit} of {pin.repository} where there is a network, unpack it, "
        f"and set {SOURCE_VARIABLE} to its directory."
    )


def vendor_copy(pin: Pin, source: Source, target: Path) -> None:
    """Copies what a build needs to `target`, unless it is there already."""
    if read_stamp(target).get("fingerprint") == pin.fingerprint:
        return
    if target.resolve() == Path(source.path):
        return
    with staged(target) as staging:
        copy_tree(Path(source.path), staging, pin.build)
        write_stamp(staging, pin, full=False)
        shutil.rmtree(target, ignore_errors=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Find or fetch the pinned llama.cpp source.")
    parser.add_argument("--full", action="store_true", help="with what tests and benchmarks read")
    parser.add_argument("--json", action="store_true", help="print path, commit and origin")
    parser.add_argument("--copy-to", type=Path, metavar="DIR", help="copy what a build needs")
    options = parser.parse_args(arguments)
    pin = read_pin()
    source = resolve(pin, full=options.full)
    if options.copy_to:
        vendor_copy(pin, source, options.copy_to)
    print(json.dumps(asdict(source)) if options.json else source.path)


if __name__ == "__main__":
    main()
