"""Which rules are reached, which workarounds needed, which traps are there: tests and counters.

Each rule of ``native/kernels`` has a line here, or ``tests/native/test_move_pin.py`` fails.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET  # of pytest's own report
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.move_pin.archives import ROOT

KERNELS = "native/kernels"
TRAPS = "tests/native/test_traps.py"

#: Tests that fail when llama.cpp does not call, or no longer has, what a rule replaces.
REACHED: dict[str, tuple[str, ...]] = {
    "attention_heads": (
        f"{KERNELS}/attention_heads/test_attention_heads.py"
        "::test_what_the_rule_replaces_is_still_called_as_it_was",
    ),
    "attention_tiles": (
        f"{KERNELS}/attention_tiles/test_attention_tiles.py"
        "::test_what_the_rule_changes_is_still_there",
    ),
    "cell_order": (
        f"{KERNELS}/cell_order/test_cell_order.py::test_what_the_rule_changes_is_still_there",
    ),
    "half_products": (
        f"{KERNELS}/half_products/test_half_products.py"
        "::test_what_the_rule_specializes_is_still_there",
    ),
    "huge_pages": (f"{KERNELS}/huge_pages/test_huge_pages.py::test_buffers_are_in_huge_pages",),
    "q8_products": (
        f"{KERNELS}/q8_products/test_q8_products.py::test_what_the_rule_specializes_is_still_there",
    ),
    "tensor_alignment": (
        f"{KERNELS}/tensor_alignment/test_tensor_alignment.py::test_tensors_lie_at_cache_lines",
    ),
    "amx_tile_config": (
        f"{KERNELS}/amx_tile_config/test_amx_tile_config.py::test_the_libraries_in_use_store_it",
    ),
    "weight_panels": (
        f"{KERNELS}/weight_panels/test_weight_panels.py"
        "::test_the_list_of_types_is_still_made_where_the_rule_adds_to_it",
    ),
}

#: Tests that fail when llama.cpp has corrected what a rule is for. What only makes things faster
#: than they are upstream has none: that is measured (``vendor/README.md``).
STILL_NEEDED: dict[str, tuple[str, ...]] = {
    "attention_heads": (
        f"{KERNELS}/attention_heads/test_attention_heads.py"
        "::test_without_the_rule_sums_are_in_half_precision",
    ),
    "amx_tile_config": (
        f"{KERNELS}/amx_tile_config/test_amx_tile_config.py"
        "::test_without_our_header_gcc_12_drops_it",
    ),
    "cell_order": (f"{KERNELS}/cell_order/test_cell_order.py::test_without_the_rule_they_do",),
    "cells_on_demand": (
        f"{KERNELS}/cells_on_demand/test_cells_on_demand.py"
        "::test_without_the_rule_all_of_it_is_written",
    ),
    "copied_pages": (
        f"{KERNELS}/copied_pages/test_copied_pages.py::test_without_the_rule_they_stay",
    ),
    "gelu": (f"{KERNELS}/gelu/test_gelu.py::test_without_the_rule_it_is_looked_up_in_a_table",),
    "huge_pages": (f"{KERNELS}/huge_pages/test_huge_pages.py::test_without_the_rule_nobody_asks",),
    "llamafile_prefetch": (
        f"{KERNELS}/llamafile_prefetch/test_llamafile_prefetch.py"
        "::test_without_the_rule_kernels_do_not_prefetch",
    ),
    "lost_devices": (
        f"{KERNELS}/lost_devices/test_lost_devices_rule.py"
        "::test_without_the_rule_a_lost_device_ends_the_process",
    ),
    "no_avx512fp16": (
        f"{KERNELS}/no_avx512fp16/test_no_avx512fp16.py"
        "::test_without_the_rule_a_head_is_all_remainder",
    ),
    "prints_to_log": (
        f"{KERNELS}/prints_to_log/test_prints_to_log.py::test_every_file_that_prints_is_known",
    ),
    "tensor_alignment": (
        f"{KERNELS}/tensor_alignment/test_tensor_alignment.py::test_without_the_rule_they_do_not",
    ),
    "quick_vocabulary": (
        f"{KERNELS}/quick_vocabulary/test_quick_vocabulary.py"
        "::test_without_the_rule_each_token_is_compared_with_each_mark",
    ),
    "rpc": (
        f"{KERNELS}/rpc/test_rpc_rule.py::test_without_the_rule_a_lost_server_ends_the_process",
    ),
    "window_cells": (
        f"{KERNELS}/window_cells/test_window_cells_rule.py"
        "::test_without_the_rule_cells_are_removed_on_trial",
    ),
}
#: Rules that are there because they are faster.
MEASURED = frozenset({"attention_tiles", "half_products", "q8_products", "weight_panels"})

_STATES = """
import json
from llama_py.core import rules
states = rules.rule_states()
print(json.dumps({rule: (state, any(rules._flags(rule))) for rule, state in states.items()}))
"""


@dataclass(frozen=True)
class Result:
    """What a test or a flag says: "yes", "no", or "not seen", and why."""

    kind: str
    subject: str
    answer: str
    detail: str = ""


def run_checks() -> list[Result]:
    """All of them, on the libraries that are installed."""
    return [*states(), *tests()]


def states() -> list[Result]:
    """What became of each rule, by the counters in the libraries."""
    done = subprocess.run(
        [sys.executable, "-c", _STATES], capture_output=True, text=True, check=False, cwd=ROOT
    )
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason"])[-1]
        return [Result("reached", "rules of the build", "no", reason)]
    answers = {"applied": "yes", "not reached": "no"}
    return [
        Result("reached", rule, answers.get(state, "not seen"), _by_state(state, counted))
        for rule, (state, counted) in json.loads(done.stdout.splitlines()[-1]).items()
    ]


def _by_state(state: str, counted: bool) -> str:
    if state == "applied":
        return "its flag was set" if counted else "applied; it has no flag"
    return "applied, and its flag was not set" if state == "not reached" else state


def tests() -> list[Result]:
    """What the tests of the catalogue say."""
    asked = [*catalogue()]
    there = [node for _, _, node in asked if exists(node)]
    found = outcomes(there)
    results = []
    for kind, subject, node in asked:
        missing = "the test was not run" if node in there else f"{node} is not there"
        answer, detail = found.get(node, ("not seen", missing))
        by = f"`{node.rpartition('::')[2]}`" if kind != "trap" else ""
        results.append(Result(kind, subject, answer, ": ".join(filter(None, (by, detail)))))
    return results


def exists(node: str) -> bool:
    """Whether there is such a test."""
    file, _, name = node.partition("::")
    return (ROOT / file).is_file() and name in defined(ROOT / file)


def catalogue() -> Iterator[tuple[str, str, str]]:
    """Kind, subject and test of each check."""
    for kind, table in (("reached", REACHED), ("needed", STILL_NEEDED)):
        for rule, nodes in table.items():
            if (ROOT / KERNELS / rule).is_dir():
                yield from ((kind, f"LLAMA_PY_{rule.upper()}", node) for node in nodes)
    for name in defined(ROOT / TRAPS):
        yield "trap", name.removeprefix("test_").replace("_", " "), f"{TRAPS}::{name}"


def defined(path: Path) -> list[str]:
    """The tests of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


def outcomes(nodes: list[str]) -> dict[str, tuple[str, str]]:
    """What pytest says of each of these tests."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        options = ["-q", "-m", "not long", "-p", "no:cacheprovider", "-o", "junit_family=xunit1"]
        command = [sys.executable, "-m", "pytest", *options, f"--junit-xml={report}", *nodes]
        environment = {**os.environ, "GGML_NO_BACKTRACE": "1"}
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment
        )
        if not report.is_file():
            return dict.fromkeys(nodes, ("not seen", done.stdout[-300:]))
        return read_report(report)


def read_report(report: Path) -> dict[str, tuple[str, str]]:
    """By test, those with parameters as one: "no" if any failed, "not seen" if all were skipped."""
    found: dict[str, tuple[str, str]] = {}
    for case in ET.parse(report).iter("testcase"):
        node = f"{case.get('file')}::{str(case.get('name')).partition('[')[0]}"
        answer, detail = "yes", ""
        for problem in case:
            if problem.tag in ("failure", "error", "skipped"):
                answer = "not seen" if problem.tag == "skipped" else "no"
                detail = " ".join(str(problem.get("message")).split())[:200]
        known = found.get(node)
        if known is None or answer == "no" or (known[0] == "not seen" and answer == "yes"):
            found[node] = (answer, detail)
    return found
