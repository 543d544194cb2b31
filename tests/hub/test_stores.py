"""What other programs have here is found under their names, used in place, and left as it is."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from llama_py import Llama, demo_model_path
from llama_py.errors import ModelNotFoundError, ParameterError
from llama_py.models.downloads import pull
from llama_py.models.references import read_reference
from llama_py.models.resolve import resolve
from llama_py.models.stores.catalog import find, stored_models
from llama_py.models.stores.stored import StoredModel
from tests.hub.hubs import hub
from tests.hub.test_transport import environment
from tests.hub.trees import hub_tree, llama_cpp_tree, lm_studio_tree, ollama_model, written
from tests.test_cli import run

DATA = b"GGUF" + bytes(range(200))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without any models."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LLAMA_PY_CACHE_DIR", str(tmp_path / "own"))
    for name in (
        *("LLAMA_CACHE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"),
        *("OLLAMA_MODELS", "LLAMA_PY_MODELS_DIR", "LLAMA_ARG_MODELS_DIR"),
    ):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def model(name: str) -> StoredModel:
    found = find(name, stored_models())
    assert found is not None, [each.name for each in stored_models()]
    return found


# ---- layouts ---------------------------------------------------------------------------------


@pytest.mark.parametrize("links", [True, False], ids=["links", "moved"])
def test_the_cache_of_the_hub(home: Path, links: bool) -> None:
    files = {"x-Q8_0.gguf": DATA, "sub/x-Q4_K_M.gguf": DATA + b"1", "mmproj-F16.gguf": b"GGUFp"}
    snapshot = hub_tree(home / ".cache/huggingface/hub", "o/n-GGUF", files, links=links)
    found = model("o/n-GGUF:Q8_0")
    assert found == model("x-q8_0") == model("x-Q8_0.gguf")
    assert (found.path, found.projector) == (snapshot / "x-Q8_0.gguf", snapshot / "mmproj-F16.gguf")
    assert bool(found.digest) == links
    assert model("o/n-GGUF:Q4_K_M").path == snapshot / "sub/x-Q4_K_M.gguf"
    with pytest.raises(ParameterError, match="means 2 models"):
        find("n-GGUF", stored_models())


def test_all_revisions_and_all_caches(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = home / ".cache/huggingface/hub"
    hub_tree(cache, "o/n", {"x-Q8_0.gguf": DATA}, commit="b" * 40)
    hub_tree(cache, "o/n", {"x-Q8_0.gguf": DATA + b"newer"})
    monkeypatch.setenv("LLAMA_CACHE", str(home / "llama"))
    hub_tree(home / "llama", "o/m", {"y.gguf": DATA + b"y"})
    assert model("o/n:Q8_0").size == len(DATA) + 5
    assert model(f"o/n:Q8_0@{'b' * 40}").size == len(DATA)
    assert model("o/m/y.gguf").path.is_file()


def test_the_older_cache_of_llama_cpp(home: Path) -> None:
    cache = home / ".cache/llama.cpp"
    path = llama_cpp_tree(cache, "o/n-GGUF", "x-Q8_0.gguf", "Q8_0", DATA)
    (cache / "o_n_other.gguf").write_bytes(DATA + b"2")
    assert model("o/n-GGUF:Q8_0").path == path
    assert model("o_n_other").source == "llama.cpp"


@pytest.mark.parametrize(
    ("stored", "tag", "names"),
    [
        ("registry.ollama.ai/library/qwen2.5", "0.5b", ["qwen2.5:0.5b"]),
        ("registry.ollama.ai/library/smol", "latest", ["smol:latest", "smol"]),
        ("registry.ollama.ai/somebody/smol", "1b", ["somebody/smol:1b"]),
        ("hf.co/o/n-GGUF", "Q8_0", ["hf.co/o/n-GGUF:Q8_0"]),
    ],
)
def test_the_models_of_ollama(home: Path, stored: str, tag: str, names: list[str]) -> None:
    layers = {"model": DATA, "projector": b"GGUFp", "template": b"{{ .Prompt }}", "system": b"Hi"}
    path = ollama_model(home / ".ollama/models", stored, layers, tag=tag)
    for name in names:
        assert model(name).path == path
        located = resolve(name)
        assert (located.path, bool(located.projector)) == (str(path), True)
    assert [kind for kind, _ in model(names[0]).notes] == ["template", "system"]


def test_models_of_ollama_that_cannot_be_loaded_say_why(home: Path) -> None:
    root = home / ".ollama/models"
    library = "registry.ollama.ai/library"
    ollama_model(root, f"{library}/mlx", {"tensor": b"1", "json": b"{}"})
    ollama_model(root, f"{library}/st", {"license": b"x"}, form="safetensors")
    ollama_model(root, f"{library}/gone", {"model": DATA}).unlink()
    ollama_model(root, f"{library}/half", {"model": DATA + b"3"}).write_bytes(DATA)
    broken = root / "manifests" / library / "broken" / "latest"
    broken.parent.mkdir()
    broken.write_text("{")
    reasons = {each.name: each.problem for each in stored_models()}
    assert "tensors for MLX" in reasons["mlx:latest"]
    assert "safetensors" in reasons["st:latest"]
    assert "missing" in reasons["gone:latest"]
    assert f"{len(DATA)} of {len(DATA) + 1} bytes" in reasons["half:latest"]
    assert "manifest" in reasons["broken:latest"]
    with pytest.raises(ModelNotFoundError, match=r"mlx of Ollama cannot be loaded: .*MLX"):
        Llama("mlx")


@pytest.mark.parametrize("place", [".lmstudio/models", ".cache/lm-studio/models", "moved"])
def test_the_models_of_lm_studio(home: Path, place: str) -> None:
    if place == "moved":
        (home / ".lmstudio").mkdir()
        settings = {"downloadsFolder": str(home / place)}
        (home / ".lmstudio/settings.json").write_text(json.dumps(settings))
    folder = lm_studio_tree(home / place, "pub/n-GGUF", {"x-Q8_0.gguf": DATA, "odd.gguf": b"GGUF"})
    assert model("pub/n-GGUF:Q8_0").path == folder / "x-Q8_0.gguf"
    assert model("odd").path == folder / "odd.gguf"


def test_folders_that_are_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = home / "mine"
    split = {f"big-0000{n}-of-00003.gguf": DATA * n for n in (1, 2, 3)}
    lm_studio_tree(root, "deep/er", {**split, "mmproj-big.gguf": b"GGUFp"})
    lm_studio_tree(root, "half", {"h-00001-of-00002.gguf": DATA})
    monkeypatch.setenv("LLAMA_PY_MODELS_DIR", os.pathsep.join([str(root), "/nowhere"]))
    whole = model("big")
    assert (whole.size, whole.problem) == (6 * len(DATA), "")
    assert whole.projector is not None
    assert model("h").problem == "1 of its 2 parts are missing"


def test_links_that_lead_nowhere_or_in_a_circle_are_left_out(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = home / "mine"
    root.mkdir()
    (root / "gone.gguf").symlink_to(home / "nothing")
    (root / "circle").symlink_to(root)
    os.mkfifo(root / "pipe.gguf")
    monkeypatch.setenv("LLAMA_PY_MODELS_DIR", str(root))
    assert stored_models() == []


# ---- one copy --------------------------------------------------------------------------------


def test_files_that_differ_in_the_middle_are_two_models(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_PY_MODELS_DIR", str(home / "mine"))
    ends = b"GGUF" + bytes(1 << 20)
    for name in ("one", "two"):
        path = home / "mine" / f"{name}.gguf"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(ends + name.encode() * (1 << 18) + ends)
    assert model("one") != model("two")


def test_equal_contents_are_one_model(home: Path) -> None:
    hub_tree(home / ".cache/huggingface/hub", "o/n", {"x-Q8_0.gguf": DATA})
    ollama_model(home / ".ollama/models", "registry.ollama.ai/library/x", {"model": DATA})
    lm_studio_tree(home / ".lmstudio/models", "o/n", {"x-Q8_0.gguf": DATA})
    [only] = stored_models()
    assert (only.source, len(only.others)) == ("hub", 2)
    assert find("x:latest", [only]) is only


@pytest.mark.parametrize("store", ["ollama", "lm_studio", "llama_cpp", "other cache"])
def test_what_another_program_has_is_used_in_place(
    home: Path, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    with hub({"x-Q8_0.gguf": DATA}) as server:
        for name, value in environment(server, home).items():
            monkeypatch.setenv(name, value)
        theirs = home / store
        if store == "ollama":
            monkeypatch.setenv("OLLAMA_MODELS", str(theirs))
            path = ollama_model(theirs, "registry.ollama.ai/library/x", {"model": DATA})
        elif store == "lm_studio":
            theirs = home / ".lmstudio/models"
            path = lm_studio_tree(theirs, "a/b", {"x-Q8_0.gguf": DATA}) / "x-Q8_0.gguf"
        elif store == "llama_cpp":
            theirs = home / ".cache/llama.cpp"
            path = llama_cpp_tree(theirs, "a/b", "x-Q8_0.gguf", "Q8_0", DATA)
        else:
            theirs = home / ".cache/huggingface/hub"
            path = hub_tree(theirs, "a/b", {"x-Q8_0.gguf": DATA}) / "x-Q8_0.gguf"
        before = written(theirs)
        assert pull(read_reference("a/b"))[0] == str(path)
        assert server.bodies == 0
        assert written(theirs) == before
        path.resolve().write_bytes(bytes(len(DATA)))  # no more what the hub names
        assert Path(pull(read_reference("a/b"))[0]).read_bytes() == DATA
        assert server.bodies == 1


# ---- commands --------------------------------------------------------------------------------


def test_the_commands(home: Path) -> None:
    demo = Path(demo_model_path()).read_bytes()
    snapshot = hub_tree(home / ".cache/huggingface/hub", "o/demo", {"demo-Q8_0.gguf": demo})
    ollama_model(
        home / ".ollama/models",
        "registry.ollama.ai/library/other",
        {"model": DATA, "system": b"You are a pirate."},
    )
    listed = run("list").stdout.splitlines()
    assert [line.split()[0] for line in listed] == ["NAME", "o/demo:Q8_0", "other:latest"]
    assert json.loads(run("list", "--json").stdout)[0]["path"] == str(snapshot / "demo-Q8_0.gguf")
    assert "You are a pirate." in run("show", "other").stdout
    assert run("where", "o/demo:q8_0").stdout.strip() == str(snapshot / "demo-Q8_0.gguf")
    assert run("verify").stdout.splitlines() == ["o/demo:Q8_0: right", "other:latest: right"]
    assert "4" in run("chat", "demo-Q8_0", "What is 2 + 2?", "--temperature", "0").stdout
    refused = run("rm", "other")
    assert (refused.returncode, "belongs to Ollama" in refused.stderr) == (2, True)
    assert "are free again" in run("rm", "o/demo:Q8_0").stdout
    assert not (home / ".cache/huggingface/hub/models--o--demo").exists()
    missing = run("show", "oter")
    assert (missing.returncode, "did you mean other:latest?" in missing.stderr) == (2, True)


@pytest.mark.skipif(sys.platform != "linux", reason="names of other systems are texts")
def test_odd_names_and_sizes_do_not_break_the_list(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_PY_MODELS_DIR", str(home / "mine"))
    (home / "mine").mkdir()
    for number, name in enumerate((b"\xff.gguf", b"a\x1b[31mred\nline.gguf")):
        Path(os.fsdecode(bytes(home / "mine") + b"/" + name)).write_bytes(DATA + bytes(number))
    path = home / ".ollama/models/manifests/registry.ollama.ai/library/huge/latest"
    path.parent.mkdir(parents=True)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:" + "a" * 64}
    path.write_text(json.dumps({"layers": [{**layer, "size": 10**400}]}))
    for command in ("list", "verify"):
        names = {line.split("  ")[0].split(": ")[0] for line in run(command).stdout.splitlines()}
        assert {"?", "a?[31mred?line", "huge:latest"} <= names


def test_a_damaged_model_is_repaired(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hub({"x-Q8_0.gguf": DATA}) as server:
        for name, value in environment(server, home).items():
            monkeypatch.setenv(name, value)
        path = Path(run("pull", "a/b").stdout.strip())
        path.resolve().write_bytes(bytes(len(DATA)))
        done = run("verify")
        assert (done.returncode, done.stdout) == (1, "a/b:Q8_0: it is damaged\n")
        assert run("verify", "a/b:Q8_0", "--repair").returncode == 0
        assert path.read_bytes() == DATA


def test_parts_are_compared_and_repaired_one_by_one(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {f"x-Q8_0-0000{n}-of-00003.gguf": DATA + b"%d" % n for n in (1, 2, 3)}
    with hub({**parts, "mmproj-F16.gguf": DATA}) as server:
        for name, value in environment(server, home).items():
            monkeypatch.setenv(name, value)
        first, projector = (Path(each) for each in run("pull", "a/b").stdout.split())
        second = first.with_name(first.name.replace("-00001", "-00002"))
        for path in (second, projector):
            path.resolve().write_bytes(bytes(path.stat().st_size))
        done = run("verify")
        said = f"a/b:Q8_0: it is damaged, {second.name}, {projector.name}\n"
        assert (done.returncode, done.stdout) == (1, said)
        bodies = server.bodies
        assert run("verify", "--repair").returncode == 0
        assert server.bodies == bodies + 2
        assert (second.read_bytes(), projector.read_bytes()) == (parts[second.name], DATA)
        second.unlink()
        server.refusal = (503, {})
        assert run("verify", "--repair").returncode == 1
        assert first.is_file()


def test_removing_an_older_revision_leaves_the_newer(home: Path) -> None:
    cache = home / ".cache/huggingface/hub"
    hub_tree(cache, "o/n", {"x-Q8_0.gguf": DATA}, commit="b" * 40)
    hub_tree(cache, "o/n", {"x-Q8_0.gguf": DATA + b"newer"})
    assert f"{len(DATA)} B are free" in run("rm", f"o/n:Q8_0@{'b' * 40}").stdout
    assert model("o/n:Q8_0").path.read_bytes() == DATA + b"newer"


def test_a_file_shared_by_two_revisions_stays(home: Path) -> None:
    cache = home / ".cache/huggingface/hub"
    hub_tree(cache, "o/n", {"x-Q8_0.gguf": DATA, "y-Q4_0.gguf": DATA})
    run("rm", "o/n:Q8_0")
    assert model("o/n:Q4_0").path.read_bytes() == DATA
    shutil.rmtree(cache)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("o/n", "o/n"),
        ("hf://o/n:Q8_0", "o/n:Q8_0"),
        ("https://huggingface.co/o/n", "o/n"),
        ("https://huggingface.co/o/n/blob/main/sub/x.gguf", "o/n/sub/x.gguf"),
        ("https://huggingface.co/o/n/resolve/v1/x.gguf?download=true", "o/n/x.gguf@v1"),
        ("huggingface.co/o/n/tree/v2", "o/n@v2"),
        ("o/n/sub/x.gguf@v1", "o/n/sub/x.gguf@v1"),
    ],
)
def test_a_reference_is_written_in_several_ways(text: str, plain: str) -> None:
    assert str(read_reference(text)) == plain


@pytest.mark.parametrize(
    "text", ["a", "a/b/c", "a/b:", "../x/y", "a/b/../../c.gguf", "hf:", "a/b@"]
)
def test_what_is_no_reference_is_refused(text: str) -> None:
    with pytest.raises(ParameterError, match="names no repository"):
        read_reference(text)
