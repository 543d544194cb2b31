"""What is said about a release: checksums, what is inside, what it was made from; and recipes."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from llama_py.version import LLAMA_CPP_COMMIT, __version__
from tools.plugin_wheel import read_toml

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.packaging


def described(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tools.release", "--describe", str(folder)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel, as far as its description reads it, and what is said of it."""
    folder = tmp_path_factory.mktemp("dist")
    with zipfile.ZipFile(folder / f"llama_py-{__version__}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("llama_py/lib/build_info.json", json.dumps({"compiler": "GNU 12"}))
    done = described(folder)
    assert done.returncode == 0, done.stderr
    assert all(path.name in done.stdout for path in folder.iterdir())
    return folder


def read(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text(encoding="utf-8"))


def test_checksums_are_those_of_every_other_file(folder: Path) -> None:
    lines = (folder / "SHA256SUMS").read_text().splitlines()
    found = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert set(found) == {path.name for path in folder.iterdir()} - {"SHA256SUMS"}
    for name, digest in found.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest


def test_the_bill_of_materials_is_valid_and_names_what_is_inside(folder: Path) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    text = (folder / "sbom.cdx.json").read_text(encoding="utf-8")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bom = json.loads(text)
    assert bom["metadata"]["component"]["version"] == __version__
    found = {component["name"]: component for component in bom["components"]}
    assert found["llama.cpp"]["version"] == LLAMA_CPP_COMMIT
    assert {"numpy", "jinja2", "starlette", "demo-chat-q8_0.gguf"} <= set(found)
    for name in ("nlohmann-json", "miniaudio", "stb_image", "xxhash"):
        assert re.fullmatch(r"[\d.]+", found[name]["version"]), name


def test_every_licence_in_the_wheel_is_one_of_the_bill(folder: Path) -> None:
    names = {component["name"] for component in read(folder, "sbom.cdx.json")["components"]}
    text = (ROOT / "native" / "cmake" / "Licenses.cmake").read_text()
    for licence in ("nlohmann-json", "miniaudio", "stb_image", "xxhash"):
        assert licence in text
        assert licence in names


def test_the_provenance_is_that_of_the_pin(folder: Path) -> None:
    statement = read(folder, "provenance.json")
    (subject,) = statement["subject"]
    assert (folder / subject["name"]).is_file()
    definition = statement["predicate"]["buildDefinition"]
    assert definition["internalParameters"][subject["name"]] == {"compiler": "GNU 12"}
    repository, archive, tree = definition["resolvedDependencies"]
    assert len(repository["digest"]["gitCommit"]) == 40
    pin = read_toml((ROOT / "vendor" / "llama.cpp.toml").read_text())
    assert archive["digest"]["sha256"] == pin["archive"]["sha256"]
    assert len(tree["digest"]["sha256"]) == 64


def test_the_digest_of_the_source_is_what_sha256sum_would_say(tmp_path: Path) -> None:
    from tools.release.sources import tree_digest

    for name, text in (("LICENSE", "a"), ("src/b.c", "b"), ("src/a.c", "c"), ("tests/x", "d")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    names = ("LICENSE", "src/a.c", "src/b.c")
    lines = [f"{hashlib.sha256((tmp_path / n).read_bytes()).hexdigest()}  {n}\n" for n in names]
    wanted = hashlib.sha256("".join(lines).encode()).hexdigest()
    assert tree_digest(tmp_path, ["src", "LICENSE", "absent"]) == (wanted, 3)


def test_a_folder_without_distributions_is_no_release(tmp_path: Path) -> None:
    done = described(tmp_path)
    assert done.returncode != 0
    assert "neither wheels nor a source distribution" in done.stderr


def test_a_release_needs_its_section_in_the_changelog() -> None:
    from tools.release import build

    objection = build.check_version("99.0.0")
    assert "not committed" in objection or "CHANGELOG.md has no section [99.0.0]" in objection


# -- recipes for other machines --------------------------------------------------------------------

WHEELS = {
    "manylinux_x86_64",
    "manylinux_aarch64",
    "musllinux_x86_64",
    "musllinux_aarch64",
    "macosx_arm64",
    "macosx_x86_64",
    "win_amd64",
}


def test_one_wheel_for_each_platform_is_built_and_asked_a_question() -> None:
    recipe = read_toml((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    assert len(recipe["build"]) == 1, "one Python builds the wheel of all"
    assert "LLAMA_PY_PORTABLE=on" in recipe["environment"]["CMAKE_ARGS"]
    assert "LLAMA_PY_PORTABLE=on" in recipe["macos"]["environment"]["CMAKE_ARGS"]
    assert "llama-py chat" in recipe["test-command"]
    assert set(recipe["linux"]["archs"]) == {"x86_64", "aarch64"}
    assert set(recipe["macos"]["archs"]) == {"arm64", "x86_64"}
    workflow = (ROOT / ".github" / "workflows" / "wheels.yml").read_text()
    assert set(re.findall(r"only: cp312-(\w+) \}", workflow)) == WHEELS


@pytest.mark.parametrize("name", ["checks", "wheels"])
def test_a_workflow_that_nobody_has_run_says_so(name: str) -> None:
    text = (ROOT / ".github" / "workflows" / f"{name}.yml").read_text()
    assert text.startswith("# NOT YET RUN.")
