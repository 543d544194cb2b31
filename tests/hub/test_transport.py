"""A file of a hub is the right one or none, whatever goes wrong on its way."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest

from llama_py.errors import DownloadError, LlamaError, ModelNotFoundError, ParameterError
from llama_py.models import connection
from llama_py.models.connection import HubConnection
from llama_py.models.digests import check_digest
from llama_py.models.downloads import download, pull
from llama_py.models.hub import _remote_file
from llama_py.models.hub_cache import HubCache, cache_folder, lock
from llama_py.models.references import read_reference
from llama_py.models.transport import RemoteFile, _Download
from tests.hub.hubs import COMMIT, Hub, hub
from tests.patience import PATIENCE

NAME = "x-Q8_0.gguf"
#: Moments at which processes are killed.
KILLS = int(os.environ.get("LLAMA_PY_KILLS", "3"))
SECRET = "hf_a_secret_of_this_user"


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub({NAME: b"GGUF" + random.Random(1).randbytes(700_000), "README.md": b"text"}) as server:
        for name, value in environment(server, tmp_path).items():
            monkeypatch.setenv(name, value)
        for name in ("HF_HUB_OFFLINE", "LLAMA_CACHE", "HF_HUB_CACHE", "HF_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(connection, "_SILENCE", 0.3)
        monkeypatch.setattr("llama_py.models.transport.sleep", lambda _: None)
        yield server


def environment(server: Hub, folder: Path) -> dict[str, str]:
    return {
        "HOME": str(folder),
        "HF_HOME": str(folder / "hf"),
        "HF_ENDPOINT": server.address,
        "LLAMA_PY_CACHE_DIR": str(folder / "cache"),
        "no_proxy": "127.0.0.1",
    }


def there_is_no_model(folder: Path) -> bool:
    return not [path for path in folder.rglob("*.gguf") if path.exists()]


# ---- what is right ---------------------------------------------------------------------------


@pytest.mark.parametrize("digests", ["sha256", "git", "none"])
def test_a_right_file_is_fetched_once(there: Hub, digests: str) -> None:
    there.digests = digests
    for _ in range(2):
        assert Path(download("a/b", NAME)).read_bytes() == there.files[NAME]
    assert there.bodies == 1


def test_the_cache_is_laid_out_as_the_hubs_is(there: Hub) -> None:
    path = Path(download("a/b"))
    cache = cache_folder() / "models--a--b"
    assert path == cache / "snapshots" / COMMIT / NAME
    assert path.resolve() == (cache / "blobs" / there.digest(NAME)).resolve()
    assert (cache / "refs" / "main").read_text() == COMMIT
    hub_module = pytest.importorskip("huggingface_hub")
    found = hub_module.hf_hub_download("a/b", NAME, cache_dir=cache_folder(), local_files_only=True)
    assert Path(found).read_bytes() == there.files[NAME]


def test_a_tag_and_a_commit_are_revisions(there: Hub) -> None:
    for revision in ("v1", COMMIT):
        path, _, _ = pull(read_reference(f"a/b/{NAME}@{revision}"))
        assert Path(path).read_bytes() == there.files[NAME]
    with pytest.raises(ModelNotFoundError, match="no revision 'v2'; there are: main, v1"):
        pull(read_reference("a/b@v2"))


def test_long_lists_come_in_pages(there: Hub) -> None:
    there.page = 1
    there.files.update({f"m{n}-Q4_K_M.gguf": b"GGUF" for n in range(5)})
    assert download("a/b:Q8_0").endswith(NAME)


def test_names_that_lead_elsewhere_are_no_files(there: Hub, tmp_path: Path) -> None:
    there.files["../../../../evil-Q4_K_M.gguf"] = b"GGUF"
    there.files["/tmp/evil-Q4_K_M.gguf"] = b"GGUF"
    assert download("a/b").endswith(NAME)
    assert not [*tmp_path.rglob("evil*")]


def test_all_parts_the_projector_and_the_drafter_come_along(there: Hub) -> None:
    parts = [f"big-Q4_K_M-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    more = [*parts, "mmproj-F16.gguf", "mtp-big-Q4_K_M.gguf"]
    there.files.update({name: os.urandom(1000) for name in more})
    seen: list[tuple[int, int]] = []
    model, projector, drafter = pull(
        read_reference("a/b"), lambda done, total: seen.append((done, total)), drafter=True
    )
    assert Path(model).name == parts[0]
    assert all((Path(model).parent / part).is_file() for part in parts)
    assert (Path(projector or "").name, Path(drafter or "").name) == (more[3], more[4])
    assert seen[-1] == (5000, 5000)


# ---- faults ----------------------------------------------------------------------------------

#: Faults after which a later try has the right file.
PASSING = ["cut", "reset", "stall", "whole", "range", "unranged", "etag", "503", "500", "429:0"]
#: Faults that last: the answer is another file, or none.
LASTING = ["wrong", "short", "long", "empty", "html", "total", "redirect", "403", "404", "410"]


@pytest.mark.parametrize(("first", "then"), [*product(["cut", *PASSING[1:4]], PASSING)])
def test_a_fault_that_passes_ends_with_the_right_file(there: Hub, first: str, then: str) -> None:
    there.faults = [first, then]
    assert Path(download("a/b")).read_bytes() == there.files[NAME]


@pytest.mark.parametrize(("before", "fault"), [*product(["", "cut"], LASTING)])
@pytest.mark.parametrize("local", [False, True], ids=["cache", "local_dir"])
def test_another_body_is_never_a_model(
    there: Hub, tmp_path: Path, before: str, fault: str, local: bool
) -> None:
    there.faults, there.fault = [before] if before else [], fault
    folder = tmp_path / "local" if local else None
    with pytest.raises((DownloadError, ModelNotFoundError)) as caught:
        download("a/b", NAME, local_dir=folder)
    assert NAME in str(caught.value)
    assert there_is_no_model(tmp_path)
    there.fault = ""
    assert Path(download("a/b", NAME, local_dir=folder)).read_bytes() == there.files[NAME]


@pytest.mark.parametrize("fault", ["reset", "stall", "503", "range"])
def test_a_fault_that_does_not_end_is_an_error(there: Hub, tmp_path: Path, fault: str) -> None:
    there.fault = fault
    if fault == "stall":  # half of what is left comes each time
        there.files[NAME] = there.files[NAME][:1000]
    with pytest.raises(DownloadError, match=r"bytes are there, and the next call goes on"):
        download("a/b")
    assert there_is_no_model(tmp_path)


def test_what_is_there_is_not_fetched_twice(there: Hub) -> None:
    there.faults = ["cut", "cut", "reset", "cut"]
    download("a/b")
    assert there.sent == len(there.files[NAME])


@pytest.mark.parametrize("left", ["incomplete", "1a2b3c4d.incomplete", "downloadInProgress"])
def test_what_another_program_left_is_gone_on_with(there: Hub, left: str) -> None:
    blobs = HubCache(cache_folder(), "a/b").blob("x").parent
    blobs.mkdir(parents=True)
    rest = blobs / f"{there.digest(NAME)}.{left}"
    rest.write_bytes(there.files[NAME][:500_000])
    download("a/b")
    assert there.sent == len(there.files[NAME]) - 500_000
    assert not rest.exists()


def test_a_beginning_that_is_wrong_is_fetched_anew(there: Hub) -> None:
    blobs = HubCache(cache_folder(), "a/b").blob("x").parent
    blobs.mkdir(parents=True)
    (blobs / f"{there.digest(NAME)}.incomplete").write_bytes(bytes(500_000))
    assert Path(download("a/b")).read_bytes() == there.files[NAME]


def test_a_full_disk_is_said_before(there: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("usage", (), {"free": 1000})
    monkeypatch.setattr("llama_py.models.transport.shutil.disk_usage", lambda _: usage)
    with pytest.raises(DownloadError, match="has 1,000 bytes free"):
        download("a/b")
    assert there.bodies == 0


@pytest.mark.parametrize(
    ("refusal", "kind", "words"),
    [
        ((401, {}), ModelNotFoundError, "no repository a/b, or it is private"),
        ((403, {}), ModelNotFoundError, "asks for consent"),
        ((401, {"X-Error-Code": "GatedRepo"}), ModelNotFoundError, "asks for consent"),
        ((404, {}), ModelNotFoundError, "no repository a/b"),
        ((429, {"Retry-After": "9999"}), DownloadError, "to wait for 9999 seconds"),
        ((418, {}), DownloadError, "answers 418"),
        ((503, {"Retry-After": "0"}), DownloadError, "answers 503"),
    ],
)
def test_a_refusal_is_a_clear_error(
    there: Hub, refusal: tuple[int, dict[str, str]], kind: type[LlamaError], words: str
) -> None:
    there.refusal = refusal
    with pytest.raises(kind, match=words) as caught:
        download("a/b")
    assert "\n" not in str(caught.value)


# ---- tokens ----------------------------------------------------------------------------------


def test_the_token_goes_to_the_hub_alone(
    there: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    there.token = SECRET
    with pytest.raises(ModelNotFoundError):
        download("a/b")
    monkeypatch.setenv("HF_TOKEN", SECRET)
    there.faults = ["cut"]
    caplog.set_level(1)
    download("a/b")
    assert there.tokens == {"hub"}
    assert SECRET not in caplog.text
    (Path(os.environ["HF_HOME"]) / "token").write_text(SECRET + "\n")
    monkeypatch.delenv("HF_TOKEN")
    assert connection.HubConnection()._token == SECRET


# ---- processes -------------------------------------------------------------------------------

FETCH = """
import sys
from llama_py.models.downloads import download
print(download("a/b"))
"""


def start(server: Hub, folder: Path) -> subprocess.Popen[str]:
    known = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    settings = {**known, **environment(server, folder)}
    command = [sys.executable, "-c", FETCH]
    return subprocess.Popen(
        command, env=settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_four_processes_fetch_a_file_once(there: Hub, tmp_path: Path) -> None:
    there.pause = 0.01
    running = [start(there, tmp_path) for _ in range(4)]
    paths = {each.communicate(timeout=PATIENCE)[0].strip() for each in running}
    [path] = paths
    assert Path(path).read_bytes() == there.files[NAME]
    assert there.bodies == 1


def test_files_are_removed_while_they_are_fetched(there: Hub, tmp_path: Path) -> None:
    cache, ended = HubCache(tmp_path / "race", "a/b"), threading.Event()

    def removes() -> None:
        while not ended.is_set():
            cache.remove(COMMIT, [NAME])
            ended.wait(0.02)

    with ThreadPoolExecutor(1) as pool:
        removing = pool.submit(removes)
        try:
            for _ in range(12):
                download("a/b", NAME, cache_dir=tmp_path / "race")
        finally:
            ended.set()
        removing.result()


def test_threads_remember_a_revision_at_once(tmp_path: Path) -> None:
    cache = HubCache(tmp_path, "a/b")
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(cache.remember, "main", COMMIT) for _ in range(400)]
    for job in jobs:
        job.result()
    assert cache.commit("main") == COMMIT


def test_an_interruption_ends_those_who_wait(there: Hub, tmp_path: Path) -> None:
    with lock(tmp_path / "hf/hub/.locks/models--a--b" / f"{there.digest(NAME)}.lock", lambda: None):
        waiting = start(there, tmp_path)
        until = time.monotonic() + PATIENCE
        while there.asked < 2 and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.5)
        waiting.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in waiting.communicate(timeout=5)[1]


def test_an_interruption_ends_a_pause(there: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(count: int) -> None:
        raise InterruptedError

    remote = RemoteFile(NAME, 10, "", f"{there.address}/none")
    download = _Download(HubConnection(), remote, Path("none"), interrupted)
    with pytest.raises(InterruptedError):
        download._pause(3600.0)


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [("HF_TOKEN", f"{SECRET}\nx", "HF_TOKEN"), ("HF_ENDPOINT", "hub.example", "hub.example")],
)
def test_settings_that_cannot_be_are_said(
    there: Hub, monkeypatch: pytest.MonkeyPatch, setting: str, value: str, words: str
) -> None:
    monkeypatch.setenv(setting, value)
    with pytest.raises(ParameterError, match=words) as caught:
        download("a/b")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "answer", ["{}", '{"branches": null, "tags": 3}', '{"branches": ["x"]}', "[]"]
)
def test_a_hub_that_answers_otherwise_is_an_error(
    there: Hub, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    monkeypatch.setattr(connection, "_text", lambda _: answer.encode())
    with pytest.raises(ModelNotFoundError, match="no revision"):
        download("a/b")


def test_names_that_cannot_be_are_no_files(there: Hub) -> None:
    good = {"type": "file", "path": "x.gguf", "size": 3, "oid": "a" * 40}
    assert _remote_file(good, "")
    assert not _remote_file({**good, "path": "x\ud800.gguf"}, "")
    assert not _remote_file({**good, "size": -1}, "")
    assert not _remote_file({**good, "size": True}, "")


def test_a_redirect_to_no_address_is_an_error(there: Hub) -> None:
    there.refusal = (302, {"Location": "http://[none"})
    with pytest.raises(DownloadError, match="which is not an address"):
        download("a/b")


def test_a_list_that_hardly_moves_is_given_up(there: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_LONGEST_LIST", -1.0)
    with pytest.raises(DownloadError, match="a list took more than"):
        download("a/b")


def killed_at_random(there: Hub, folder: Path, moments: int) -> None:
    """Four processes at once are killed again and again; then one is left in peace."""
    dice = random.Random(7)
    for _ in range(moments):
        running = [start(there, folder) for _ in range(4)]
        time.sleep(dice.uniform(0.2, 0.9))
        for each in running:
            each.send_signal(signal.SIGKILL)
            each.communicate()
        for path in folder.rglob("*.gguf"):
            assert path.read_bytes() == there.files[NAME]
    printed, errors = start(there, folder).communicate(timeout=PATIENCE)
    assert Path(printed.strip()).read_bytes() == there.files[NAME], errors


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_sigkill_leaves_no_broken_model(there: Hub, tmp_path: Path) -> None:
    there.files[NAME] = b"GGUF" + random.Random(2).randbytes(24 << 20)
    there.pause = 0.01
    killed_at_random(there, tmp_path, KILLS)
    assert there.sent - len(there.files[NAME]) <= KILLS * (1 << 20)


# ---- files that are there --------------------------------------------------------------------


def test_a_file_that_was_damaged_in_the_cache_is_found_out(there: Hub) -> None:
    blob = Path(download("a/b")).resolve()
    blob.write_bytes(bytes(len(there.files[NAME])))
    with pytest.raises(DownloadError, match="removed"):
        download("a/b")
    assert Path(download("a/b")).read_bytes() == there.files[NAME]


def test_a_file_that_its_owner_has_changed_is_kept(
    there: Hub, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    local = tmp_path / "local"
    path = Path(download("a/b", NAME, local_dir=local))
    path.write_bytes(b"GGUF, made here")
    later = time.time() + 60
    os.utime(path, (later, later))
    assert download("a/b", NAME, local_dir=local) == str(path)
    assert path.read_bytes() == b"GGUF, made here"
    assert "is taken as it is" in caplog.text


def test_what_was_moved_into_a_folder_is_its_owners(there: Hub, tmp_path: Path) -> None:
    local = tmp_path / "local"
    path = Path(download("a/b", NAME, local_dir=local))
    path.write_bytes(b"GGUF, made long ago")
    os.utime(path, (1e9, 1e9))
    with pytest.raises(DownloadError, match="remove it"):
        download("a/b", NAME, local_dir=local)
    assert path.read_bytes() == b"GGUF, made long ago"


def test_a_newer_file_of_the_hub_replaces_the_older(there: Hub, tmp_path: Path) -> None:
    local = tmp_path / "local"
    download("a/b", NAME, local_dir=local)
    there.files[NAME] = b"GGUF, another version"
    assert Path(download("a/b", NAME, local_dir=local)).read_bytes() == there.files[NAME]
    assert Path(download("a/b", NAME)).read_bytes() == there.files[NAME]


def test_what_was_right_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_PY_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "file"
    path.write_bytes(b"content")
    right = "ed7002b439e9ac845f22357d822bac1444730fbdb6016d3ec9432297b9ec9f73"
    check_digest(path, right, "it")
    with monkeypatch.context() as patched:
        patched.setattr("llama_py.models.digests.hash_of", pytest.fail)
        check_digest(path, right, "it")
    path.write_bytes(b"changed")
    with pytest.raises(DownloadError, match=f"its digest is not {right}"):
        check_digest(path, right, "it")
    assert not path.exists()
