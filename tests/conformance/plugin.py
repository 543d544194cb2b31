"""What is different in the process that runs llama.cpp's tests: a plugin of pytest's.

It is loaded with ``-p``, starts ``llama-py serve`` where a test starts llama-server, and writes a
line of JSON for each test to the file that ``CONFORMANCE_RESULTS`` names.
"""

from __future__ import annotations

import builtins
import json
import os
import sys
import types
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from requests.structures import CaseInsensitiveDict

from tests.conformance import models, servers

_about_text: list[str] = []


def _note(assertion: str) -> None:
    """Called by a softened assertion that does not hold."""
    _about_text.append(assertion)


def _download(url: str, out: str | None = None) -> str:
    """In place of the package ``wget``, which only ever fetches models and adapters here."""
    name = url.rpartition("/")[2]
    path = models.lora() if "shakespeare" in name else models.stories()
    Path(out or name).parent.mkdir(parents=True, exist_ok=True)
    Path(out or name).write_bytes(path.read_bytes())
    return out or name


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Put ourselves in the place of what they import, before their conftest.py does."""
    builtins.about_text = _note  # type: ignore[attr-defined]
    module: Any = types.ModuleType("wget")
    module.download = _download
    sys.modules["wget"] = module
    utils: Any = __import__("utils")
    Path(utils.TMP_DIR).mkdir(exist_ok=True)

    def start(self: Any, timeout_seconds: float = 0) -> None:
        servers.start(self)
        utils.server_instances.add(self)

    def stop(self: Any) -> None:
        utils.server_instances.discard(self)
        servers.stop(self)

    plain_request = utils.ServerProcess.make_request

    def make_request(self: Any, *given: Any, **named: Any) -> Any:
        result = plain_request(self, *given, **named)
        # HTTP's names of headers have no case.
        result.headers = CaseInsensitiveDict(result.headers)
        return result

    utils.ServerProcess.start = start
    utils.ServerProcess.make_request = make_request
    utils.ServerProcess.stop = stop
    utils.ServerPreset.load_all = staticmethod(lambda: None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The slow ones of test_tool_call.py are about models of many gigabytes."""
    heavy = [
        each
        for each in items
        if "test_tool_call.py" in each.nodeid and each.get_closest_marker("slow")
    ]
    config.hook.pytest_deselected(items=heavy)
    items[:] = [each for each in items if each not in heavy]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """What softened assertions say belongs to this test."""
    _about_text.clear()
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """One line for each test: of its call, or of what came before if that went wrong."""
    if report.when == "teardown" or (report.when == "setup" and report.passed):
        return
    line = {
        "id": report.nodeid.removeprefix("unit/"),
        "outcome": report.outcome,
        "text": [*_about_text],
        "seconds": round(report.duration, 2),
        "why": _reason(report),
    }
    with Path(os.environ["CONFORMANCE_RESULTS"]).open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")


def _reason(report: pytest.TestReport) -> str:
    if report.passed:
        return ""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        return str(crash.message).splitlines()[0][:300]
    return str(report.longrepr).strip().splitlines()[-1][:300]
