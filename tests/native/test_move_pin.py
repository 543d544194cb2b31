"""The command that moves the pin: what it finds in another llama.cpp, and what it says of ours."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.native import builds
from tests.native.builds import ROOT
from tools.move_pin import applying, archives, checks, command, page, surface, touched
from tools.move_pin.archives import MoveError, Tree, resolve
from tools.move_pin.checks import Result

#: What a tree has besides its headers, as it was; and how it is in the other.
FILES = {
    "CMakeLists.txt": ("project(x)", "project(x)"),
    "src/llama.cpp": ("", ""),
    "src/llama-arch.cpp": (
        'names = {\n    { LLM_ARCH_LLAMA, "llama" },\n    { LLM_ARCH_OLD, "old" },\n};\n',
        'names = {\n    { LLM_ARCH_LLAMA, "llama" },\n    { LLM_ARCH_NEW, "brand-new" },\n};\n',
    ),
    "src/llama-vocab.cpp": (
        'void load() { if (tokenizer_pre == "one") {} }',
        'void load() { if (tokenizer_pre == "one" || tokenizer_pre == "two") {} }',
    ),
    "src/llama-kv-cache.cpp": (
        "void llama_kv_cache::state_write_data(int x) { write(x); }\n",
        "void llama_kv_cache::state_write_data(int x) { write(x); write(rotation); }\n",
    ),
    "models/templates/same.jinja": ("{{ a }}", "{{ a }}"),
    "models/templates/other.jinja": ("{{ a }}", "{{ b }}"),
    "common/parsers/one.cpp": ("int a;", "int b;"),
    "common/common.h": (
        "struct common_params {\n    int32_t port = 8080; // listens\n    bool same = true;\n};\n",
        "struct common_params {\n    int32_t port = 9931; // listens\n    bool same = true;\n};\n",
    ),
    "tools/server/server.cpp": (
        'ctx_http.get ("/health", x);\n',
        'ctx_http.get ("/health", x);\nctx_http.post("/v1/new", x);\n',
    ),
    "ggml/src/ggml-cpu/llamafile/sgemm.cpp": (
        "namespace {\nclass tinyBLAS {\n  bool matmul(int m) { return m; }\n};\n}\n",
        "namespace {\nclass tinyBLAS {\n  bool matmul(int m) { return !m; }\n};\n}\n",
    ),
}
#: How the headers of the other differ.
HEADERS = (
    ("include/llama.h", "#define LLAMA_STATE_SEQ_VERSION 4", "#define LLAMA_STATE_SEQ_VERSION 5"),
    ("include/llama.h", "        float logit;", "        int32_t more; float logit;"),
    ("include/llama.h", "#define LLAMA_TOKEN_NULL -1", "#define LLAMA_TOKEN_NULL -2"),
    (
        "ggml/include/ggml.h",
        "GGML_API const char * ggml_status_to_string(enum ggml_status status);",
        "GGML_API const char * ggml_status_to_text(enum ggml_status status);",
    ),
)


@pytest.fixture
def trees(headers: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Two small trees of llama.cpp."""
    other = tmp_path / "other"
    shutil.copytree(headers, other)
    for name, texts in FILES.items():
        for folder, text in zip((headers, other), texts, strict=True):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
    for name, old, new in HEADERS:
        text = (other / name).read_text(encoding="utf-8")
        assert text.count(old) == 1, old
        (other / name).write_text(text.replace(old, new), encoding="utf-8")
    return headers, other


# ---- what is found -------------------------------------------------------------------------------


def test_the_page_names_what_changed(
    trees: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = trees
    assert command.main([str(new), "--old", str(old)]) == 0
    said = capsys.readouterr().out
    for line in (
        "functions, added (1): `ggml_status_to_text`",
        "functions, removed (1): `ggml_status_to_string`",
        "fields of structs, added (1): `llama_token_data.more`",
        "`LLAMA_TOKEN_NULL: -1 -> -2`",
        "architectures, added (1): `brand-new`",
        "architectures, removed (1): `old`",
        "tokenizers, added (1): `two`",
        "templates, changed (1): `other.jinja`",
        "parsers (common/parsers), changed (1): `one.cpp`",
        "state of a sequence (LLAMA_STATE_SEQ_VERSION): 4 -> 5",
        "routes, added (1): `POST /v1/new`",
        "`common_params.port: 8080 -> 9931`",
        "Functions that write or read states and changed: `llama_kv_cache::state_write_data`",
    ):
        assert line in said, line
    assert "same" not in said
    decisions = said.partition("## What a person has to decide")[2].partition("\n## ")[0]
    assert "the drop-in needs a shim" in decisions
    assert "of another format" in decisions
    assert "`native/kernels/q8_products`" in decisions


def test_nothing_changed_is_a_short_page(
    trees: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([str(trees[0]), "--old", str(trees[0])]) == 0
    said = capsys.readouterr().out
    assert "Nothing that was found." in said
    assert said.count("As they were.") == 5
    assert "None of them changed." in said


def test_what_a_rule_specializes_is_named_when_it_changes(trees: tuple[Path, Path]) -> None:
    found = {each.part: each for each in touched.touched(*trees)}
    rule = found["native/kernels/q8_products"]
    assert rule.file == "ggml/src/ggml-cpu/llamafile/sgemm.cpp"
    assert rule.named == ("tinyBLAS::matmul",)
    (trees[1] / rule.file).unlink()
    gone = {each.part: each for each in touched.touched(*trees)}
    assert gone["native/kernels/q8_products"].removed


CODE = """
// int commented(int x) { return 1; }
static const char * const NAMES[] = { "a {", "b" };
#define MACRO(x) { x }
namespace inner {
template <typename T> struct box {
    int value = 0;
    int get() const { return value; /* a comment { */ }
};
}
int plain(int a) {
#if defined(A)
    if (a) {
#else
    if (!a) {
#endif
        return 1;
    }
    return '{';
}
int plain(float a) { return 2; }
box::~box() { }
enum kind { one, two };
"""


def test_functions_are_told_apart() -> None:
    found = touched.functions(CODE)
    assert [*found] == ["inner::box::get", "plain", "box::~box"]
    assert "return 2;" in found["plain"]
    assert "if (!a)" in found["plain"]


def test_comments_and_layout_are_no_change() -> None:
    other = CODE.replace("// int commented", "// no int commented").replace(
        "    return", "  return"
    )
    other = other.replace("/* a comment { */", "// another\n")
    assert touched.functions(other) == touched.functions(CODE)
    other = CODE.replace("return 2;", "return 3;")
    assert touched.functions(other)["plain"] != touched.functions(CODE)["plain"]


def test_the_pinned_llama_cpp_is_read(llama_cpp: Path) -> None:
    """Not one of the patterns is out of date."""
    assert len(surface._architectures(llama_cpp)) > 100
    assert len(surface._tokenizers(llama_cpp)) > 30
    assert "none" not in surface._formats(llama_cpp).values()
    assert len(dict(surface._defaults(llama_cpp))) > 100
    assert "common_params.port" in dict(surface._defaults(llama_cpp))
    assert "POST /v1/chat/completions" in surface._routes(resolved_in_full())
    found = touched.functions((llama_cpp / "src/llama-kv-cache.cpp").read_text(encoding="utf-8"))
    assert {"llama_kv_cache::prepare", "llama_kv_cache::seq_rm"} <= found.keys()
    assert len(found) > 80


def resolved_in_full() -> Path:
    return Path(resolve.resolve(resolve.read_pin(archives.PIN), full=True).path)


# ---- archives, and the pin -----------------------------------------------------------------------


@pytest.fixture
def archive(
    trees: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, str]:
    """A source archive of the other tree, and its digest."""
    monkeypatch.setenv(resolve.CACHE_VARIABLE, str(tmp_path / "cache"))
    path = tmp_path / "some_package-2031.1.54321.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.add(trees[1], "some_package-2031.1.54321/third/llama.cpp")
        tar.add(trees[0], "some_package-2031.1.54321/third/deeper/copy/llama.cpp")
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


def test_an_archive_becomes_a_pin(archive: tuple[Path, str], tmp_path: Path) -> None:
    path, digest = archive
    tree = archives.tree_of(str(path), None, digest)
    assert tree.name == "b54321"
    assert (tree.path / "include/llama.h").is_file()
    assert tree.path.parent == tmp_path / "cache"
    assert applying.pin_lines(tree.pin) == {
        "commit": "b54321",
        "package": "some_package",
        "version": "2031.1.54321",
        "sha256": digest,
        "prefix": "some_package-2031.1.54321/third/llama.cpp",
    }
    assert archives.tree_of(str(path), "f" * 40, None).name == "f" * 9


def test_another_archive_than_the_one_wanted_is_refused(
    archive: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, digest = archive
    assert command.main([str(path), "--sha256", "0" * 64]) == 2
    assert f"has the SHA-256 {digest}, and not {'0' * 64}" in capsys.readouterr().err
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("name", "said"),
    [("nothing", "neither package==version"), ("some-package==1.2", "give --commit")],
)
def test_what_is_no_archive_is_a_sentence(
    name: str, said: str, monkeypatch: pytest.MonkeyPatch, archive: tuple[Path, str]
) -> None:
    monkeypatch.setattr(archives, "_fetch", lambda *_: archive[0])
    with pytest.raises(MoveError, match=said):
        archives.tree_of(name, None, None)


def test_applying_writes_the_pin_and_builds(
    archive: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toml, version = tmp_path / "llama.cpp.toml", tmp_path / "version.py"
    shutil.copy(archives.PIN, toml)
    shutil.copy(applying.VERSION, version)
    for name, value in {"PIN": toml, "VERSION": version, "ROOT": tmp_path}.items():
        monkeypatch.setattr(applying, name, value)
    ran: list[Any] = []
    monkeypatch.setattr(applying, "run", ran.append)
    tree = archives.tree_of(str(archive[0]), None, None)
    done = applying.apply(tree, "make it")
    before = archives.PIN.read_text(encoding="utf-8").splitlines()
    after = toml.read_text(encoding="utf-8").splitlines()
    changed = [new for old, new in zip(before, after, strict=True) if old != new]
    assert changed[0] == 'commit = "b54321"'
    assert len(changed) == 5
    assert resolve.read_pin(toml) == tree.pin
    assert 'LLAMA_CPP_COMMIT = "b54321"' in version.read_text(encoding="utf-8")
    assert ran[0][-2:] == ["--llama-cpp", str(tree.path)]
    assert ran[1] == ["sh", "-c", "make it"]
    assert done[0] == "`llama.cpp.toml`: written"
    assert applying.apply(tree, "make it")[0] == "`llama.cpp.toml`: as it was"


def test_a_directory_is_not_pinned(trees: tuple[Path, Path]) -> None:
    with pytest.raises(MoveError, match="a directory cannot be pinned"):
        applying.apply(archives.directory(trees[1]))


# ---- checks --------------------------------------------------------------------------------------


def test_every_rule_is_checked() -> None:
    rules = {path.parent.name for path in (ROOT / "native/kernels").glob("*/rule.cmake")}
    assert rules <= {*checks.STILL_NEEDED} | checks.MEASURED
    missing = [node for _, _, node in checks.catalogue() if not checks.exists(node)]
    assert missing == []
    kinds = [kind for kind, _, _ in checks.catalogue()]
    assert {kind: kinds.count(kind) > 4 for kind in ("reached", "needed", "trap")} == {
        "reached": True,
        "needed": True,
        "trap": True,
    }


REPORT = """<testsuites><testsuite>
<testcase file="t.py" name="test_good"/>
<testcase file="t.py" name="test_many[1]"><skipped message="needs g++"/></testcase>
<testcase file="t.py" name="test_many[2]"/>
<testcase file="t.py" name="test_bad[1]"/>
<testcase file="t.py" name="test_bad[2]"><failure message="assert
 1 == 2"/></testcase>
<testcase file="t.py" name="test_skipped"><skipped message="no such CPU"/></testcase>
</testsuite></testsuites>"""


def test_reports_are_read(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT, encoding="utf-8")
    assert checks.read_report(tmp_path / "report.xml") == {
        "t.py::test_good": ("yes", ""),
        "t.py::test_many": ("yes", ""),
        "t.py::test_bad": ("no", "assert 1 == 2"),
        "t.py::test_skipped": ("not seen", "no such CPU"),
    }


def test_a_check_that_says_no_is_for_a_person(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = [
        Result("reached", "LLAMA_PY_GELU", "no", "its flag was not set"),
        Result("needed", "LLAMA_PY_OTHER", "not seen", "no such CPU"),
        Result("trap", "a fork is wrong", "yes"),
    ]
    monkeypatch.setattr(checks, "run_checks", lambda: answers)
    assert command.main(["--checks"]) == 1
    assert "| LLAMA_PY_GELU | no | its flag was not set |" in capsys.readouterr().out
    none = surface.Change()
    nothing = page.Differences(
        headers=dict.fromkeys(("functions", "fields of structs", "deprecated"), none),
        models=dict.fromkeys(("architectures", "tokenizers"), none),
        chat=dict.fromkeys(("templates", "parsers (common/parsers)"), none),
        formats=none,
        server=dict.fromkeys(("routes", "defaults"), none),
    )
    (decision,) = page.decisions(nothing, answers)
    assert decision.startswith("**LLAMA_PY_GELU** (reached): llama.cpp calls something else now")
    answers.pop(0)
    assert command.main(["--checks"]) == 0


@pytest.mark.long
def test_a_kernel_that_is_no_longer_chosen_is_found(
    gcc: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if llama.cpp had changed a type of its template: all compiles, ours is not called."""
    copy, build = tmp_path / "copy", tmp_path / "build"
    for name in ("CMakeLists.txt", "llama_py/version.py", "native", "vendor"):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        put = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        put(ROOT / name, copy / name)
    header = copy / "native/kernels/half_products/half_products.h"
    text = header.read_text(encoding="utf-8")
    hook = "ggml_fp16_t, ggml_fp16_t, float> {"
    assert text.count(hook) == 1
    header.write_text(text.replace(hook, "ggml_fp16_t, ggml_fp16_t, double> {"), encoding="utf-8")
    cmake = shutil.which("cmake")
    if cmake is None or shutil.which("ninja") is None:
        pytest.skip("needs cmake and ninja")
    builds.run(cmake, "-S", copy, "-B", build, "-G", "Ninja", f"-DCMAKE_CXX_COMPILER={gcc}")
    subprocess.run([cmake, "--build", build, "--target", "ggml"], check=True, capture_output=True)
    libraries = build / "bin"
    shutil.copy(build / "build_info.json", libraries)
    monkeypatch.setenv("LLAMA_PY_LIB", str(libraries))
    found = {each.subject: each for each in checks.states()}
    if found["LLAMA_PY_HALF_PRODUCTS"].detail == "without effect":
        pytest.skip("this CPU has no such kernel")
    assert found["LLAMA_PY_HALF_PRODUCTS"].answer == "no"
    assert found["LLAMA_PY_GELU"].answer == "yes"


def test_a_tree_is_named_by_what_it_is(llama_cpp: Path) -> None:
    tree = archives.directory(llama_cpp)
    assert tree == Tree(llama_cpp.resolve(), resolve.read_pin(archives.PIN).commit[:9])
