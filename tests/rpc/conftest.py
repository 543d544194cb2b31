"""These tests need the library for RPC, which a build may leave out."""

from __future__ import annotations

import pytest

from llama_py._native.loader import build_info


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if build_info().get("rules", {}).get("LLAMA_PY_RPC") == "off":
        for item in items:
            if "tests/rpc/" in item.path.as_posix():
                item.add_marker(pytest.mark.skip(reason="this build has no RPC (LLAMA_PY_RPC=off)"))
