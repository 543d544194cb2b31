"""Which file of a repository is meant, and what happens when there is none. No network is used."""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from llama_py import Llama, demo_model_path
from llama_py.compat.vision import MoondreamChatHandler
from llama_py.errors import LlamaError, ModelNotFoundError, ParameterError
from llama_py.hub import (
    DownloadError,
    HuggingFace,
    download,
    download_projector,
    projector_for,
    select,
    select_projector,
)
from tests.media.pictures import disc, png
from tests.media.projectors import tiny_projector
from tests.patience import PATIENCE
from tests.test_cli import run

#: Values of an embedding of the bundled model.
DEMO_WIDTH = 192
REPO = "owner/model-GGUF"
SPLIT = [f"Q8_0/model-Q8_0-{n:05}-of-00003.gguf" for n in (1, 2, 3)]
FILES = [
    "README.md",
    "model-Q4_K_S.gguf",
    "model-Q4_K_M.gguf",
    "model-q5_k_m.gguf",
    "model-f16.gguf",
    "mmproj-model-f16.gguf",
    *SPLIT,
]


class Shelf:
    """A hub that has files and remembers what was fetched."""

    def __init__(self, files: Sequence[str] = FILES) -> None:
        self.files = files
        self.listed = 0
        self.fetched: list[str] = []

    def list_files(self, repo_id: str) -> Sequence[str]:
        assert repo_id == REPO
        self.listed += 1
        return self.files

    def fetch(self, repo_id: str, filename: str) -> str:
        assert repo_id == REPO
        self.fetched.append(filename)
        return f"/cache/{filename}"


@pytest.mark.parametrize(
    ("reference", "filename", "expected"),
    [
        (REPO, "model-f16.gguf", ["model-f16.gguf"]),
        (REPO, "*f16.gguf", ["model-f16.gguf"]),
        (REPO, "*Q8_0*", SPLIT),
        (REPO, SPLIT[0], SPLIT),
        (REPO, None, ["model-Q4_K_M.gguf"]),
        (f"{REPO}:Q4_K_S", None, ["model-Q4_K_S.gguf"]),
        (f"{REPO}:q4_k_s", None, ["model-Q4_K_S.gguf"]),
        (f"{REPO}:Q5_K_M", None, ["model-q5_k_m.gguf"]),
        (f"{REPO}:Q8_0", None, SPLIT),
        (f"{REPO}:F16", None, ["model-f16.gguf"]),
    ],
)
def test_the_file_that_is_meant(reference: str, filename: str | None, expected: list[str]) -> None:
    shelf = Shelf()
    assert download(reference, filename, hub=shelf) == f"/cache/{expected[0]}"
    assert shelf.fetched == expected


def test_an_exact_name_needs_no_list() -> None:
    shelf = Shelf()
    download(REPO, "model-f16.gguf", ["mmproj-model-f16.gguf"], hub=shelf)
    assert shelf.listed == 0
    assert shelf.fetched == ["model-f16.gguf", "mmproj-model-f16.gguf"]


def test_additional_files_may_be_patterns() -> None:
    shelf = Shelf()
    assert download(REPO, "model-f16.gguf", ["mmproj*"], hub=shelf) == "/cache/model-f16.gguf"
    assert shelf.fetched == ["model-f16.gguf", "mmproj-model-f16.gguf"]
    with pytest.raises(ParameterError, match=r"'\*\.png'"):
        download(REPO, "model-f16.gguf", ["*.png"], hub=shelf)


def test_the_only_gguf_needs_no_name() -> None:
    only = ["config.json", "m.gguf", "mmproj.gguf"]
    assert download(REPO, hub=Shelf(only)) == "/cache/m.gguf"
    assert download(REPO, hub=Shelf(["a-Q8_0.gguf", "a-Q2_K.gguf"])) == "/cache/a-Q8_0.gguf"


@pytest.mark.parametrize(
    ("reference", "filename", "words"),
    [
        (f"{REPO}:Q2_K", None, ["Q2_K", "model-Q4_K_M.gguf", "model-f16.gguf"]),
        (f"{REPO}:Q4_K", None, ["no file in owner/model-GGUF is of Q4_K;", "model-Q4_K_M.gguf"]),
        (REPO, "*Q2*", ["'*Q2*'", "model-Q4_K_M.gguf"]),
        (REPO, "*Q4*", ["2 files", "model-Q4_K_M.gguf", "model-Q4_K_S.gguf"]),
        ("model", None, ["owner/name"]),
        ("a/b/c", None, ["owner/name"]),
        (f"{REPO}:", None, ["owner/name:QUANT"]),
        (f"{REPO}:Q8_0", "x.gguf", ["Q8_0", "x.gguf"]),
    ],
)
def test_an_error_names_what_there_is(
    reference: str, filename: str | None, words: list[str]
) -> None:
    shelf = Shelf()
    with pytest.raises(ParameterError) as caught:
        download(reference, filename, hub=shelf)
    for word in words:
        assert word in str(caught.value)
    assert shelf.fetched == []


@pytest.mark.parametrize("quantization", ["Q4_K", "Q4", "4_K_M", "K_M"])
def test_part_of_a_quantizations_name_is_another_one(quantization: str) -> None:
    """The only file may not be taken for one that was not asked for."""
    shelf = Shelf(["README.md", "model-Q4_K_M.gguf"])
    with pytest.raises(ParameterError, match=quantization):
        download(f"{REPO}:{quantization}", hub=shelf)
    assert shelf.fetched == []


def test_nothing_usual_among_several_is_an_error() -> None:
    with pytest.raises(ParameterError, match="2 files"):
        select(["a-Q2_K.gguf", "a-Q3_K.gguf"], None, None, REPO)
    with pytest.raises(ParameterError, match="no GGUF files at all"):
        select(["model.safetensors"], None, None, REPO)


def test_a_split_model_with_a_part_missing_is_an_error() -> None:
    with pytest.raises(ParameterError, match=r"lacks .*00002-of-00003"):
        select([SPLIT[0], SPLIT[2]], None, "Q8_0", REPO)


def test_long_lists_are_cut() -> None:
    many = [f"m{n}-Q2_K.gguf" for n in range(50)]
    with pytest.raises(ParameterError, match="and 20 more"):
        select(many, "nothing*", None, REPO)


# ---- projectors ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "beside", "expected"),
    [
        (["m.gguf", "mmproj.gguf"], "m.gguf", ["mmproj.gguf"]),
        (["mmproj-Q8_0.gguf", "mmproj-F16.gguf", "mmproj-BF16.gguf"], "", ["mmproj-F16.gguf"]),
        (["mmproj-F32.gguf", "mmproj-bf16.gguf", "mmproj-q8_0.gguf"], "", ["mmproj-q8_0.gguf"]),
        (
            ["x-2b-mmproj-f16.gguf", "x-7b-mmproj-f16.gguf"],
            "x-7b-Q8_0.gguf",
            ["x-7b-mmproj-f16.gguf"],
        ),
        (["a/mmproj-f16.gguf", "b/mmproj-f32.gguf"], "b/m.gguf", ["b/mmproj-f32.gguf"]),
        (["a/mmproj-f16.gguf"], "b/m.gguf", ["a/mmproj-f16.gguf"]),
        (["mmproj-one.gguf", "mmproj-two.gguf"], "m.gguf", ["mmproj-one.gguf", "mmproj-two.gguf"]),
        (["m.gguf", "mmproj.txt"], "m.gguf", []),
    ],
)
def test_the_projector_that_is_meant(files: list[str], beside: str, expected: list[str]) -> None:
    assert select_projector(files, beside) == expected


def test_a_projector_by_name_or_pattern() -> None:
    shelf = Shelf()
    assert download_projector(REPO, "mmproj-model-f16.gguf", hub=shelf).endswith("-f16.gguf")
    assert shelf.listed == 0
    assert download_projector(f"{REPO}:Q8_0", "mmproj*", hub=shelf).endswith("-f16.gguf")
    assert download_projector(REPO, hub=shelf) == "/cache/mmproj-model-f16.gguf"
    with pytest.raises(ParameterError, match=r"'\*none\*'; there are: mmproj-model-f16.gguf"):
        download_projector(REPO, "*none*", hub=shelf)
    with pytest.raises(ParameterError, match="say which"):
        download_projector(REPO, hub=Shelf(["mmproj-a.gguf", "mmproj-b.gguf"]))


def test_no_projector_and_several(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert projector_for(REPO, "/cache/m.gguf", hub=Shelf(["m.gguf"])) is None
    found = projector_for(REPO, "/cache/model-f16.gguf", hub=Shelf())
    assert found == "/cache/mmproj-model-f16.gguf"
    assert (
        projector_for(REPO, "/cache/m.gguf", hub=Shelf(["mmproj-a.gguf", "mmproj-b.gguf"])) is None
    )
    assert "mmproj-a.gguf, mmproj-b.gguf; say which with mmproj=" in caplog.text
    own = tmp_path / "mine.gguf"
    own.touch()
    assert projector_for(REPO, "/cache/m.gguf", own, hub=Shelf()) == str(own)


# ---- huggingface_hub -------------------------------------------------------------------------


class RepositoryNotFoundError(Exception):
    """Named as in huggingface_hub."""


class GatedRepoError(RepositoryNotFoundError):
    """Named as in huggingface_hub."""


class EntryNotFoundError(Exception):
    """Named as in huggingface_hub."""


class FakeModule(types.ModuleType):
    """The functions of huggingface_hub that are called."""

    def __init__(self, folder: Path, error: Exception | None = None) -> None:
        super().__init__("huggingface_hub")
        self.folder = folder
        self.error = error
        self.cached = False
        self.calls: list[dict[str, Any]] = []

    def HfApi(self) -> FakeModule:
        return self

    def list_repo_files(self, _repo: str) -> list[str]:
        if self.error is not None:
            raise self.error
        return [path.name for path in self.folder.iterdir()]

    def hf_hub_download(self, repo: str, filename: str, **options: Any) -> str:
        if self.error is not None and not self.cached:
            raise self.error
        self.calls.append({"repo": repo, "filename": filename, **options})
        return str(self.folder / filename)

    def snapshot_download(self, _repo: str, **options: Any) -> str:
        assert options["local_files_only"]
        if not self.cached:
            raise FileNotFoundError("not in the cache")
        return str(self.folder)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeModule:
    module = FakeModule(tmp_path)
    (tmp_path / "demo-Q8_0.gguf").symlink_to(demo_model_path())
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    return module


def test_from_pretrained_downloads_and_loads(fake: FakeModule, tmp_path: Path) -> None:
    with Llama.from_pretrained(
        "a/b", "*Q8_0.gguf", local_dir=tmp_path, cache_dir=tmp_path / "c", n_ctx=256
    ) as llm:
        assert llm.n_vocab() > 0
    assert fake.calls == [
        {
            "repo": "a/b",
            "filename": "demo-Q8_0.gguf",
            "local_dir": tmp_path,
            "cache_dir": tmp_path / "c",
        }
    ]


def test_from_pretrained_finds_the_projector(fake: FakeModule) -> None:
    (fake.folder / "mmproj-tiny-f16.gguf").symlink_to(tiny_projector("mlp", DEMO_WIDTH))
    for given, seen in ({}, True), ({"mmproj": None}, False), ({"mmproj": "*tiny*"}, True):
        with Llama.from_pretrained("a/b", "*Q8_0.gguf", n_ctx=256, **given) as llm:
            media = llm.runtime.loaded.media
            assert media is not None
            assert (media.path is not None) == seen
    assert [call["filename"] for call in fake.calls].count("mmproj-tiny-f16.gguf") == 2


def test_the_command_line_finds_the_projector(fake: FakeModule) -> None:
    (fake.folder / "mmproj-tiny-f16.gguf").symlink_to(tiny_projector("mlp", DEMO_WIDTH))
    picture = fake.folder / "disc.png"
    picture.write_bytes(png(disc()))
    done = run("chat", "--hf", "a/b:Q8_0", "--image", str(picture), "-n", "4", "--stats", "What?")
    assert done.returncode == 0, done.stderr
    assert "0 tokens reused" in done.stderr
    configured = run("serve", "--hf", "a/b:Q8_0", "--print-config")
    assert f'mmproj = "{fake.folder / "mmproj-tiny-f16.gguf"}"' in configured.stdout


def test_a_handler_of_the_drop_in_comes_from_the_hub(fake: FakeModule) -> None:
    (fake.folder / "tiny-mmproj-f16.gguf").touch()
    handler = MoondreamChatHandler.from_pretrained("a/b", "*mmproj*", verbose=False)
    assert Path(handler.clip_model_path).name == "tiny-mmproj-f16.gguf"
    with pytest.raises(ValueError, match=r"no files in a/b fit '\*none\*'"):
        MoondreamChatHandler.from_pretrained("a/b", "*none*")


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (RepositoryNotFoundError("404"), ModelNotFoundError, "no repository a/b"),
        (GatedRepoError("403"), ModelNotFoundError, "asks for consent"),
        (EntryNotFoundError("404"), ModelNotFoundError, "no file x.gguf in a/b"),
        (ConnectionError("Network is unreachable\nlong story"), DownloadError, "unreachable"),
        (OSError(28, "No space left on device"), DownloadError, "No space left"),
    ],
)
def test_what_the_hub_refuses_is_a_clear_error(
    fake: FakeModule, error: Exception, kind: type[LlamaError], words: str
) -> None:
    fake.error = error
    with pytest.raises(kind, match=words) as caught:
        download("a/b", "x.gguf")
    assert "\n" not in str(caught.value)


def test_a_bug_is_not_hidden(fake: FakeModule) -> None:
    fake.error = KeyError("bug")
    with pytest.raises(KeyError):
        download("a/b", "x.gguf")


def test_without_a_network_the_cache_is_searched(fake: FakeModule) -> None:
    fake.error = ConnectionError("no route to host")
    with pytest.raises(DownloadError, match="no route"):
        download("a/b:Q8_0")
    fake.cached = True
    assert Path(download("a/b:Q8_0")).name == "demo-Q8_0.gguf"


@pytest.mark.parametrize("offline", ["0", "1"])
def test_without_a_network_there_is_one_clear_line(tmp_path: Path, offline: str) -> None:
    """huggingface_hub tries five times again, and tells of each; nobody answers at this port."""
    pytest.importorskip("huggingface_hub")
    stored = tmp_path / "hub" / "models--a--b"
    (stored / "refs").mkdir(parents=True)
    (stored / "refs" / "main").write_text("abc")
    (stored / "snapshots" / "abc").mkdir(parents=True)
    (stored / "snapshots" / "abc" / "x-Q8_0.gguf").symlink_to(demo_model_path())
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        environment = {
            **{name: value for name, value in os.environ.items() if "proxy" not in name.lower()},
            "HF_HOME": str(tmp_path),
            "HF_ENDPOINT": f"http://127.0.0.1:{closed.getsockname()[1]}",
            "HF_HUB_OFFLINE": offline,
        }
        command = [sys.executable, "-c", OFFLINE]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    assert done.returncode == 0, done.stderr
    listed, named, cached = done.stdout.splitlines()
    assert listed.startswith("a/none cannot be downloaded: ")
    assert named.startswith("a/none/x.gguf cannot be downloaded: ")
    assert "offline mode is enabled" in listed if offline == "1" else "be reached" in listed
    assert "it is not in the cache" in named
    assert Path(cached).name == "x-Q8_0.gguf"
    assert done.stderr == "the hub cannot be reached; files of a/b come from the cache\n"


OFFLINE = """
import time
from llama_py.errors import DownloadError
from llama_py.hub import download

time.sleep = lambda seconds: print("waits", seconds)  # for the next try
for name in (None, "x.gguf"):
    try:
        download("a/none", name)
    except DownloadError as error:
        print(error)
print(download("a/b:Q8_0"))
"""


def test_a_missing_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(DownloadError, match=r"pip install 'llama-py\[hub\]'"):
        download("a/b", "x.gguf")


def test_the_real_package_has_what_is_called() -> None:
    hub: Any = pytest.importorskip("huggingface_hub")
    assert callable(hub.hf_hub_download)
    assert callable(hub.snapshot_download)
    assert callable(hub.HfApi.list_repo_files)
    errors = importlib.import_module("huggingface_hub.errors")
    for name in ("RepositoryNotFoundError", "GatedRepoError", "EntryNotFoundError"):
        assert issubclass(getattr(errors, name), Exception)
    HuggingFace()
