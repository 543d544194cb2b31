"""The resolver of llama.cpp's source: the order, the checks, and what a failure leaves behind."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import threading
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from llama_py import version

ROOT = Path(__file__).resolve().parents[2]
TREE = {
    "CMakeLists.txt": "project(x)",
    "LICENSE": "MIT",
    "include/llama.h": "/* */",
    "src/llama.cpp": "int x;",
    "docs/big.md": "not wanted",
    "models/templates/a.jinja": "{{ a }}",
}


def load_script() -> ModuleType:
    """vendor/resolve.py is a script, not a package's module."""
    spec = importlib.util.spec_from_file_location("resolve", ROOT / "vendor" / "resolve.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["resolve"] = module
    spec.loader.exec_module(module)
    return module


resolve: Any = load_script()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No source anywhere: an empty vendor/, an empty cache, no variables."""
    monkeypatch.delenv(resolve.SOURCE_VARIABLE, raising=False)
    monkeypatch.setenv(resolve.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(resolve, "HERE", tmp_path / "vendor")
    return tmp_path


@pytest.fixture
def pin() -> Any:
    """The real pin, with an archive and a repository that cannot be reached."""
    real = resolve.read_pin()
    return replace(
        real,
        repository="/nonexistent/llama.cpp",
        archive=replace(real.archive, prefix="pkg/vendor/llama.cpp"),
        build=("CMakeLists.txt", "LICENSE", "include", "src"),
        extra=("models/templates",),
    )


def write_tree(directory: Path) -> Path:
    for name, text in TREE.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory


def write_archive(path: Path, prefix: str, files: dict[str, str] = TREE) -> str:
    """A source archive as the package index has it; returns its SHA-256."""
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(f"{prefix}/{name}")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def offer(monkeypatch: pytest.MonkeyPatch, home: Path, pin: Any, **change: str) -> Any:
    """Makes `pip download` give a small archive; returns the pin for it."""
    archive = home / "archive.tar.gz"
    sha256 = write_archive(archive, pin.archive.prefix)
    monkeypatch.setattr(resolve, "download", lambda *_: archive)
    return replace(pin, archive=replace(pin.archive, **{"sha256": sha256, **change}))


def files_of(path: Path) -> set[str]:
    return {p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file()}


def test_the_pin_is_complete() -> None:
    pin = resolve.read_pin()
    assert re.fullmatch(r"b\d+|[0-9a-f]{40}", pin.commit)
    assert re.fullmatch(r"[0-9a-f]{64}", pin.archive.sha256)
    assert pin.archive.prefix.startswith(f"{pin.archive.package}-{pin.archive.version}/")
    assert {"CMakeLists.txt", "LICENSE", "common", "ggml", "include", "src"} <= {*pin.build}
    assert not {*pin.build} & {*pin.extra}


def test_the_package_says_what_is_pinned() -> None:
    """``system_fingerprint`` begins as llama-server's: with the build."""
    pin = resolve.read_pin()
    assert pin.commit[:9] == version.LLAMA_CPP_COMMIT
    assert re.match(rf"(b0-)?{version.LLAMA_CPP_COMMIT}-llama_py-", version.FINGERPRINT)
    assert re.match(r"b\d+-", version.FINGERPRINT)


def test_the_whole_pin_is_there() -> None:
    """Every pattern stands for something, or a list that nobody looks at grows old."""
    pin = resolve.read_pin()
    source = resolve.resolve(pin, full=True)
    if source.commit != pin.commit:
        pytest.skip(f"{source.path} is another llama.cpp")
    for pattern in pin.everything:
        assert [*Path(source.path).glob(pattern)], pattern
    assert (Path(source.path) / "tools" / "quantize" / "quantize.cpp").is_file()
    assert (Path(source.path) / "convert_hf_to_gguf.py").is_file()


def test_a_fetch_says_what_it_fetches(
    home: Path, pin: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    resolve.resolve(offer(monkeypatch, home, pin))
    said = capsys.readouterr().err
    assert pin.commit[:9] in said
    assert pin.archive.requirement in said


def test_the_variable_comes_first(home: Path, pin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tree(home / "vendor" / "llama.cpp")
    mine = write_tree(home / "mine")
    monkeypatch.setenv(resolve.SOURCE_VARIABLE, str(mine))
    found = resolve.resolve(pin)
    assert (found.path, found.commit) == (str(mine), "unknown")


def test_a_wrong_variable_is_an_error(
    home: Path, pin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(home / "vendor" / "llama.cpp")
    monkeypatch.setenv(resolve.SOURCE_VARIABLE, str(home / "nowhere"))
    with pytest.raises(SystemExit, match=r"nowhere is not a llama\.cpp source tree.*unset it"):
        resolve.resolve(pin)


def test_vendor_comes_before_the_cache(home: Path, pin: Any) -> None:
    write_tree(resolve.cache_path(pin))
    resolve.write_stamp(resolve.cache_path(pin), pin, full=True)
    vendored = write_tree(home / "vendor" / "llama.cpp")
    assert resolve.resolve(pin).path == str(vendored)


def test_vendor_of_another_commit_is_not_used(
    home: Path, pin: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    vendored = write_tree(home / "vendor" / "llama.cpp")
    resolve.write_stamp(vendored, replace(pin, commit="f" * 40), full=False)
    cached = write_tree(resolve.cache_path(pin))
    resolve.write_stamp(cached, pin, full=True)
    assert resolve.resolve(pin).path == str(cached)
    assert "holds another commit" in capsys.readouterr().err


def test_a_build_only_tree_is_not_full(home: Path, pin: Any) -> None:
    cached = write_tree(resolve.cache_path(pin))
    resolve.write_stamp(cached, pin, full=True)
    resolve.vendor_copy(pin, resolve.resolve(pin), home / "vendor" / "llama.cpp")
    assert resolve.resolve(pin).origin == "vendor/llama.cpp"
    assert resolve.resolve(pin, full=True).path == str(cached)


def test_the_archive_fills_the_cache(home: Path, pin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pin = offer(monkeypatch, home, pin)
    found = resolve.resolve(pin)
    assert found.commit == pin.commit
    assert files_of(Path(found.path)) == set(TREE) - {"docs/big.md"} | {resolve.STAMP}
    assert [p.name for p in (home / "cache").iterdir()] == [Path(found.path).name]
    assert resolve.resolve(pin).origin == "cache"


def test_a_wrong_checksum_is_refused(
    home: Path, pin: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pin = offer(monkeypatch, home, pin, sha256="0" * 64)
    with pytest.raises(SystemExit) as failure:
        resolve.resolve(pin)
    assert not resolve.cache_path(pin).exists()
    assert "Trying a git clone next." in capsys.readouterr().err
    message = str(failure.value)
    assert "not the pinned" in message
    assert "git could not fetch" in message
    assert resolve.SOURCE_VARIABLE in message


def test_a_killed_run_leaves_nothing_half_done(
    home: Path, pin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pin = offer(monkeypatch, home, pin)
    write = resolve.extract
    calls = []

    def interrupted(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        write(*arguments)

    monkeypatch.setattr(resolve, "extract", interrupted)
    with pytest.raises(KeyboardInterrupt):
        resolve.resolve(pin)
    assert list((home / "cache").iterdir()) == []
    monkeypatch.setattr(resolve, "extract", write)
    assert resolve.resolve(pin).commit == pin.commit


def test_concurrent_runs_agree(home: Path, pin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pin = offer(monkeypatch, home, pin)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(resolve.resolve(pin))) for _ in "1234"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {f.path for f in found} == {str(resolve.cache_path(pin))}
    assert len(found) == 4
    assert [p.name for p in (home / "cache").iterdir()] == [resolve.cache_path(pin).name]


@pytest.mark.parametrize("name", ["../evil", "src/../../evil"])
def test_paths_stay_inside(home: Path, pin: Any, name: str) -> None:
    archive = home / "archive.tar.gz"
    write_archive(archive, pin.archive.prefix, {name: "x"})
    with pytest.raises(resolve.ResolveError, match=r"outside|holds no"):
        resolve.unpack(archive, pin.archive.prefix, home / "target", ("*",))
    assert not (home / "evil").exists()


def test_git_is_the_last_resort(home: Path, pin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = write_tree(home / "repository")
    git = ["git", "-C", str(repository), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for step in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *step], check=True)
    commit = resolve.commit_of_checkout(repository)
    pin = replace(pin, repository=str(repository), commit=commit)
    monkeypatch.setattr(resolve, "find_pips", lambda _: iter(()))
    found = resolve.resolve(pin)
    assert found.commit == commit
    assert "include/llama.h" in files_of(Path(found.path))
    assert "docs/big.md" not in files_of(Path(found.path))


def test_a_tree_inside_another_repository_has_no_commit(home: Path) -> None:
    outer = write_tree(home / "outer")
    subprocess.run(["git", "-C", str(outer), "init", "-q"], check=True)
    assert resolve.commit_of_checkout(outer / "src") == "unknown"


def test_every_pip_failing_is_reported(
    home: Path, pin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = [sys.executable, "-c", "raise SystemExit('no pip here')"]
    monkeypatch.setattr(resolve, "find_pips", lambda _: iter([broken]))
    with pytest.raises(resolve.ResolveError, match="no pip here"):
        resolve.download(pin.archive, home)


def test_an_isolated_interpreter_still_finds_a_pip(home: Path) -> None:
    first = next(resolve.find_pips(home))
    assert first == [sys.executable, "-m", "pip"]
    others = list(resolve.find_pips(home))
    assert others[-1][0].startswith(str(home))
    assert resolve.run([*others[-1], "--version"]) == ""


def test_the_command_line(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = write_tree(home / "mine")
    environment = {**os.environ, resolve.SOURCE_VARIABLE: str(mine)}
    command = [sys.executable, str(ROOT / "vendor" / "resolve.py")]

    def answer(*arguments: str) -> str:
        result = subprocess.run(
            [*command, *arguments], env=environment, check=True, capture_output=True, text=True
        )
        return result.stdout.strip()

    assert answer() == str(mine)
    assert json.loads(answer("--json"))["path"] == str(mine)
    answer("--copy-to", str(home / "copy"))
    assert "models/templates/a.jinja" not in files_of(home / "copy")
    assert "include/llama.h" in files_of(home / "copy")


@pytest.mark.parametrize("right", [True, False], ids=["pinned", "another"])
def test_nothing_of_an_archive_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, right: bool
) -> None:
    """``pip download`` runs an archive's build for its metadata: not needed, and it may fail."""
    ran, links, scratch = (tmp_path / name for name in ("ran", "links", "scratch"))
    links.mkdir()
    scratch.mkdir()
    setup = f"open({str(ran)!r}, 'w').close()\nraise SystemExit('no Cython')\n"
    archive = links / "some_package-1.0.tar.gz"
    sha256 = write_archive(archive, "some_package-1.0", {"setup.py": setup})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    # The build would run in this environment, so that nothing has to be fetched for it.
    monkeypatch.setenv("PIP_NO_BUILD_ISOLATION", "0")
    monkeypatch.setattr(resolve, "find_pips", lambda _: [[sys.executable, "-m", "pip"]])
    wanted = resolve.Archive(
        "some-package", "1.0", sha256 if right else "0" * 64, "some_package-1.0"
    )
    found = resolve.download(wanted, scratch)
    if right:
        resolve.check_sha256(found, wanted.sha256)
    else:
        with pytest.raises(resolve.ResolveError, match="not the pinned"):
            resolve.check_sha256(found, wanted.sha256)
    assert not ran.exists()
