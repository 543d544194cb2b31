"""Which command runs a test: ``make test``, which takes minutes, or ``make test-rest``.

``make test`` has every kind of behaviour in it. The rest are the tests of what changes seldom and
is slow to try (``FOLDERS``, ``MARKS``), templates that have the form of another one, and tests that
took longer than ``SLOW`` when it was measured: ``durations.json`` has the seconds, which
``--record-durations`` writes. A slow test that is not in there is named at the end of a run.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from tests.chat import families

ROOT = Path(__file__).parents[1]
RECORDED = Path(__file__).with_name("durations.json")
#: Seconds of a test on two cores that run two of them; those that took longer belong to the rest.
SLOW = 1.0
#: Kernels and their build, wheels, the page in a browser, other programs' tests, devices.
FOLDERS = (
    "native/",
    "tests/conformance/",
    "tests/device/",
    "tests/native/",
    "tests/packaging/",
    "tests/page/",
)
MARKS = ("packaging", "ray", "slow")
#: Of these kinds of behaviour, what ``make test`` runs: beginnings of node ids.
EVERYDAY = (
    "native/kernels/weight_panels/test_weight_panels.py::test_products_are_those_of_float64[Q4_K",
    "tests/chat/test_jinja_law.py::test_templates_write_what_jinja2_writes[0]",
    "tests/core/test_mutated_gguf.py",
    "tests/engine/test_abort.py::test_ctrl_c_ends_the_decode[after-eval-full]",
    "tests/isolation/test_hanging.py::test_one_that_hangs_is_killed_and_started_again",
    "tests/media/test_invariant.py::test_reuse_behind_pictures_equals_a_fresh_context[mrope",
    "tests/memory/test_invariant.py::test_reuse_equals_a_fresh_context[hybrid-False-False]",
    "tests/memory/test_invariant.py::test_reuse_equals_a_fresh_context[iswa-False-False]",
    "tests/memory/test_just_evaluated.py::test_a_prompt_that_was_just_evaluated_is_reused[full-2]",
    "tests/memory/test_restart.py::test_the_next_process_goes_on[full-3]",
    "tests/native/test_loader.py",
    "tests/page/test_files.py",
    "tests/page/test_talking.py::test_a_later_turn_says_what_was_reused",
    "tests/page/test_talking.py::test_a_question_is_answered",
    "tests/page/test_talking.py::test_a_tool_is_called_and_its_result_is_used",
    "tests/real/test_chats.py::test_json_fits_the_schema_and_makes_sense[qwen05]",
    "tests/server/test_disconnects.py",
    "tests/server/test_openai_refusals.py",
    "tests/server/test_serve.py",
)

_took: dict[str, float] = {}


@cache
def recorded() -> dict[str, float]:
    """The seconds of slow tests."""
    read: dict[str, float] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return read


def is_of_the_rest(item: pytest.Item) -> bool:
    """Whether ``make test-rest`` runs a test, and not ``make test``."""
    name = item.nodeid
    if name.startswith(EVERYDAY):
        return False
    if name.startswith(FOLDERS) or any(item.get_closest_marker(mark) for mark in MARKS):
        return True
    return name in recorded() or _is_of_another_family(item)


def _is_of_another_family(item: pytest.Item) -> bool:
    """Whether a test is about a template that has the form of calls of another one."""
    call = getattr(item, "callspec", None)
    given = () if call is None else call.params.values()
    return any(
        isinstance(each, str) and each in families.names() and each not in families.ONE_OF_EACH
        for each in given
    )


def _is_there(name: str) -> bool:
    """Whether the function or class of a test that did not run is still in its file."""
    path, function = name.partition("[")[0].split("::")[:2]
    file = ROOT / path
    return file.exists() and function in file.read_text(encoding="utf-8")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record-durations", action="store_true", help=f"write {RECORDED.relative_to(ROOT)}"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if is_of_the_rest(item):
            item.add_marker("rest")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _took[report.nodeid] = _took.get(report.nodeid, 0.0) + report.duration


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    slow = {name: round(took, 1) for name, took in sorted(_took.items()) if took > SLOW}
    if config.getoption("--record-durations"):
        known = {
            name: took for name, took in recorded().items() if name not in _took and _is_there(name)
        }
        RECORDED.write_text(json.dumps(dict(sorted({**known, **slow}.items())), indent=0) + "\n")
        return
    # Other programs may have slowed all of them down: far slower is worth a look.
    new = [name for name in slow if slow[name] > 4 * SLOW and name not in recorded()]
    if new:
        terminalreporter.section("Slow tests that tests/durations.json does not have")
        for name in sorted(new, key=slow.__getitem__, reverse=True)[:20]:
            terminalreporter.line(f"{slow[name]:6.1f} s  {name}")
