"""Which file of a repository is meant, and what happens when there is none. No network is used."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from llama_py import Llama, demo_model_path
from llama_py.compat.vision import MoondreamChatHandler
from llama_py.errors import ParameterError
from llama_py.models.downloads import download, download_projector, projector_for
from llama_py.models.selection import select, select_drafter, select_projector
from tests.hub.hubs import COMMIT, Hub, hub
from tests.hub.test_transport import environment
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
        self.fetched: list[str] = []

    def list_files(self, repo: str, revision: str = "main") -> Sequence[str]:
        assert (repo, revision) == (REPO, "main")
        return self.files

    def fetch(self, repo: str, names: Sequence[str], revision: str = "main") -> list[str]:
        assert (repo, revision) == (REPO, "main")
        self.fetched += names
        return [f"/cache/{name}" for name in names]


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


def test_nothing_usual_among_several_is_the_first_and_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert select(["a-Q3_K.gguf", "a-Q2_K.gguf"], None, None, REPO) == ["a-Q2_K.gguf"]
    assert "a-Q2_K.gguf is taken; there are: a-Q2_K.gguf, a-Q3_K.gguf" in caplog.text
    with pytest.raises(ParameterError, match="no GGUF files at all"):
        select(["model.safetensors"], None, None, REPO)


def test_of_one_quantization_the_plainest_name_is_taken() -> None:
    files = ["x-UD-Q4_K_M.gguf", "x-Q4_K_M.gguf", "sub/x-Q4_K_M.gguf"]
    assert select(files, None, "Q4_K_M", REPO) == ["x-Q4_K_M.gguf"]


@pytest.mark.parametrize("name", ["mtp-x.gguf", "eagle3-x.gguf", "x-imatrix.gguf", "mmproj-x.gguf"])
def test_what_is_beside_a_model_is_not_one(name: str) -> None:
    assert select([name, "x-Q2_K.gguf"], None, None, REPO) == ["x-Q2_K.gguf"]


def test_the_drafter_of_a_models_folder_and_quantization_comes_first() -> None:
    files = ["dflash-Q8_0.gguf", "q/mtp-Q8_0.gguf", "q/mtp-Q4_K_M.gguf"]
    assert select_drafter(files, "q/x-Q4_K_M.gguf") == "q/mtp-Q4_K_M.gguf"
    assert select_drafter(files, "x-Q8_0.gguf") == "dflash-Q8_0.gguf"
    assert select_drafter(["x.gguf"], "x.gguf") is None


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


# ---- where a model is named ------------------------------------------------------------------


@pytest.fixture
def hub_of_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that has the bundled model and a projector for it, in its environment."""
    files = {
        "demo-Q8_0.gguf": Path(demo_model_path()).read_bytes(),
        "mmproj-tiny-f16.gguf": Path(tiny_projector("mlp", DEMO_WIDTH)).read_bytes(),
    }
    with hub(files) as server:
        for name, value in environment(server, tmp_path).items():
            monkeypatch.setenv(name, value)
        yield server


def sees(llm: Llama) -> bool:
    media = llm.runtime.loaded.media
    return media is not None and media.path is not None


def test_from_pretrained_downloads_and_loads(hub_of_demo: Hub, tmp_path: Path) -> None:
    with Llama.from_pretrained("a/b", "*Q8_0.gguf", local_dir=tmp_path / "l", n_ctx=256) as llm:
        assert llm.model_path == str(tmp_path / "l" / "demo-Q8_0.gguf")
    assert hub_of_demo.bodies == 2  # the model, and its projector


@pytest.mark.parametrize("name", ["a/b", "a/b:Q8_0", "hf.co/a/b", "hf:a/b/demo-Q8_0.gguf@main"])
def test_a_reference_stands_wherever_a_path_may(hub_of_demo: Hub, name: str) -> None:
    with Llama(name, n_ctx=256) as llm:
        assert Path(llm.model_path).name == "demo-Q8_0.gguf"
        assert sees(llm)
    assert hub_of_demo.tokens == set()


def test_from_pretrained_finds_the_projector(hub_of_demo: Hub) -> None:
    for given, seen in ({}, True), ({"mmproj": None}, False), ({"mmproj": "*tiny*"}, True):
        with Llama.from_pretrained("a/b", "*Q8_0.gguf", n_ctx=256, **given) as llm:
            assert sees(llm) == seen
    assert hub_of_demo.bodies == 2


def test_the_command_line_finds_the_projector(hub_of_demo: Hub, tmp_path: Path) -> None:
    picture = tmp_path / "disc.png"
    picture.write_bytes(png(disc()))
    for named in (["--hf", "a/b:Q8_0"], ["-m", "a/b"]):
        done = run("chat", *named, "--image", str(picture), "-n", "4", "--stats", "What?")
        assert done.returncode == 0, done.stderr
        assert "0 tokens reused" in done.stderr
        configured = run("serve", *named, "--print-config")
        assert 'mmproj-tiny-f16.gguf"' in configured.stdout


def test_a_handler_of_the_drop_in_comes_from_the_hub(hub_of_demo: Hub) -> None:
    handler = MoondreamChatHandler.from_pretrained("a/b", "*mmproj*", verbose=False)
    assert Path(handler.clip_model_path).name == "mmproj-tiny-f16.gguf"
    with pytest.raises(ValueError, match=r"no files in a/b fit '\*none\*'"):
        MoondreamChatHandler.from_pretrained("a/b", "*none*")


@pytest.mark.parametrize("offline", ["0", "1"])
def test_without_a_network_there_is_one_clear_line(tmp_path: Path, offline: str) -> None:
    stored = tmp_path / "hub" / "models--a--b"
    (stored / "refs").mkdir(parents=True)
    (stored / "refs" / "main").write_text(COMMIT)
    (stored / "snapshots" / COMMIT).mkdir(parents=True)
    (stored / "snapshots" / COMMIT / "x-Q8_0.gguf").symlink_to(demo_model_path())
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        settings = {
            **{name: value for name, value in os.environ.items() if "proxy" not in name.lower()},
            "HF_HOME": str(tmp_path),
            "HF_ENDPOINT": f"http://127.0.0.1:{closed.getsockname()[1]}",
            "HF_HUB_OFFLINE": offline,
        }
        command = [sys.executable, "-c", OFFLINE]
        done = subprocess.run(
            command, env=settings, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    assert done.returncode == 0, done.stderr
    listed, named, cached = done.stdout.splitlines()
    assert listed.startswith("a/none cannot be downloaded: ")
    assert named.startswith("a/none cannot be downloaded: ")
    assert "offline mode is enabled" in listed if offline == "1" else "be reached" in listed
    assert "it is not in the cache" in named
    assert Path(cached).name == "x-Q8_0.gguf"
    said = "the hub cannot be reached; files of a/b come from the cache\n"
    assert done.stderr == ("" if offline == "1" else said)


OFFLINE = """
import time
from llama_py.errors import DownloadError
from llama_py.models.downloads import download

time.sleep = lambda seconds: print("waits", seconds)  # for the next try
for name in (None, "x.gguf"):
    try:
        download("a/none", name)
    except DownloadError as error:
        print(error)
print(download("a/b:Q8_0"))
"""
