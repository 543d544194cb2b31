"""A build for many CPUs: each variant of the CPU's backend has the rules that it can run.

It is configured only. What a built wheel loads and answers, on CPUs of several kinds, is in
``tests/packaging/test_portable_wheel.py``.
"""

from __future__ import annotations

import json
import platform
from typing import Any

import pytest

from llama_py.core import rules
from tests.native.builds import configured

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="variants of x86"),
]

#: Files of the CPU's backend, and the rules that include something into them.
CHANGED = {
    "/ggml-cpu/ops.cpp": ("attention_heads", "attention_tiles", "gelu"),
    "/llamafile/sgemm.cpp": ("half_products", "q8_products"),
    "/ggml-cpu/ggml-cpu.cpp": ("weight_panels",),
    "/ggml-cpu/repack.cpp": ("tensor_alignment",),
    "/amx/mmq.cpp": ("amx_tile_config",),
}
EVERYWHERE = {"x64", "sse42", "haswell", "skylakex", "icelake", "zen4", "sapphirerapids"}


@pytest.fixture(scope="module")
def build(gcc: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], dict[str, Any]]:
    folder = tmp_path_factory.mktemp("portable")
    files = (*CHANGED, "/weight_panels/weight_panels.cpp")
    commands, _ = configured(folder, gcc, files, "-DLLAMA_PY_PORTABLE=ON")
    return commands, json.loads((folder / "build_info.json").read_text(encoding="utf-8"))


def of_file(commands: list[str], name: str) -> dict[str, str]:
    """The commands that compile a file, by the variant that it is compiled for."""
    found = {}
    for command in commands:
        words = command.split()
        if words[-1].endswith(name):
            found[command.partition("ggml-cpu-")[2].partition(".dir")[0]] = command
    return found


def test_every_variant_has_the_files_of_every_rule(
    build: tuple[list[str], dict[str, Any]],
) -> None:
    commands, info = build
    variants = {name.removeprefix("ggml-cpu-") for name in info["backends"]}
    assert variants >= EVERYWHERE
    assert variants == set(info["variants"])
    for file, changed in CHANGED.items():
        compiled = of_file(commands, file)
        assert set(compiled) == variants, file
        for variant, command in compiled.items():
            assert [r for r in changed if f"/{r}.h " not in command] == [], (file, variant)


def test_panels_are_compiled_once_for_the_instructions_that_they_use(
    build: tuple[list[str], dict[str, Any]],
) -> None:
    """It takes minutes each time. The others link what the least of them has compiled."""
    compiled = of_file(build[0], "/weight_panels.cpp")
    assert {"haswell", "alderlake", "skylakex", "cascadelake"} <= set(compiled)
    assert not {"cannonlake", "icelake", "cooperlake", "zen4", "sapphirerapids"} & set(compiled)


def test_a_variant_says_which_rules_need_more_than_its_cpu_has(
    build: tuple[list[str], dict[str, Any]],
) -> None:
    variants = build[1]["variants"]
    short = {
        name: {rule.removeprefix("LLAMA_PY_").lower() for rule in without}
        for name, without in variants.items()
    }
    assert short["icelake"] == short["zen4"] == {"amx_tile_config", "llamafile_prefetch"}
    assert short["sapphirerapids"] == {"llamafile_prefetch"}
    assert short["alderlake"] == {"amx_tile_config"}
    assert short["haswell"] == {"amx_tile_config"}
    assert short["skylakex"] == {"amx_tile_config", "llamafile_prefetch", "q8_products"}
    assert {"gelu", "attention_heads", "half_products", "weight_panels"} <= short["sandybridge"]


def test_the_rules_of_the_variant_in_use_are_told(
    build: tuple[list[str], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    info = build[1]
    monkeypatch.setattr(rules, "build_info", lambda: info)
    monkeypatch.setattr(rules, "_flags", lambda rule: iter(()))
    for variant, state in (
        ("skylakex", "without effect"),
        ("haswell", "applied"),
        ("zen4", "applied"),
    ):
        monkeypatch.setattr(rules, "cpu_variant", lambda name=variant: name)
        assert rules.rule_states()["LLAMA_PY_Q8_PRODUCTS"] == state
        assert rules.rule_states()["LLAMA_PY_GELU"] == "applied"
