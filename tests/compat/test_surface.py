"""The public surface of llama-cpp-python 0.3.36, frozen by ``tools.upstream_surface``."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import llama_py.compat
from llama_py.demo import demo_model_path

FROZEN = Path(__file__).parent.parent / "data" / "llama-cpp-python-0.3.36.json"
TABLE: dict[str, Any] = json.loads(FROZEN.read_text(encoding="utf-8"))["modules"]

_ROUTE = "a handler of a route of FastAPI; the routes are those of llama_py's server"
#: What is not there, or not with that signature, and why.
EXCEPTIONS = {
    **{
        f"llama_cpp.server.app.{name}": _ROUTE
        for name in (
            "authenticate",
            "count_query_tokens",
            "create_chat_completion",
            "create_completion",
            "create_embedding",
            "detokenize",
            "get_event_publisher",
            "get_models",
            "prepare_request_resources",
            "tokenize",
        )
    },
    "llama_cpp.server.errors.RouteErrorHandler.error_message_wrapper": _ROUTE,
    "llama_cpp.server.errors.RouteErrorHandler.get_route_handler": _ROUTE,
}


def callables() -> Iterator[tuple[str, str, list[list[str]]]]:
    """Module, name in it, and parameters of each public callable."""
    for module, surface in TABLE.items():
        for name, parameters in surface["callables"].items():
            yield module, name, parameters


@pytest.fixture(autouse=True, scope="module")
def _installed() -> Iterator[None]:
    llama_py.compat.install()
    yield
    llama_py.compat.uninstall()


def mismatch(module: str, name: str, wanted: list[list[str]]) -> str:
    """What is different about a callable; empty if nothing is."""
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        return f"missing ({error})"
    try:
        parameters = list(inspect.signature(found).parameters.values())
    except (TypeError, ValueError) as error:
        return f"no signature ({error})"
    if parameters and parameters[0].name in ("self", "cls"):
        parameters = parameters[1:]
    # Functions of ctypes take no keywords, whatever the signature says.
    of_c = hasattr(found, "argtypes")
    ours = [(each.name, of_c or each.kind.name) for each in parameters]
    theirs = [(each[0], of_c or each[1]) for each in wanted]
    if ours != theirs:
        return f"{ours} instead of {theirs}"
    for mine, each in zip(parameters, wanted, strict=True):
        if not same_default(mine.default, each[2:]):
            return f"{mine.name}={mine.default!r} instead of {each[2:]}"
    return ""


def same_default(ours: Any, theirs: list[str]) -> bool:
    """Whether a default is what the source text of the other one says."""
    if not theirs or ours is inspect.Parameter.empty:
        return not theirs and ours is inspect.Parameter.empty
    if "default_factory" in theirs[0]:
        return repr(ours) == "<factory>"
    tree = ast.parse(theirs[0], mode="eval").body
    if isinstance(tree, ast.Attribute):
        return bool(ours == getattr(importlib.import_module("llama_cpp.llama_cpp"), tree.attr))
    if isinstance(tree, ast.BinOp):
        wanted = ast.literal_eval(tree.left) << ast.literal_eval(tree.right)
    else:
        wanted = ast.literal_eval(tree)
    return bool(ours == wanted) and type(ours) is type(wanted)


def test_every_public_callable_has_the_same_names_order_and_defaults() -> None:
    every = list(callables())
    wrong = {
        f"{module}.{name}": why
        for module, name, wanted in every
        if (why := mismatch(module, name, wanted))
    }
    unexpected = {name: why for name, why in wrong.items() if name not in EXCEPTIONS}
    assert not unexpected, "\n".join(f"{name}: {why}" for name, why in unexpected.items())
    assert set(EXCEPTIONS) == set(wrong), "an exception that is none any more"
    assert len(EXCEPTIONS) <= 0.02 * len(every)


#: Names that are of no use to a program, or that only FastAPI and pydantic give a meaning.
LEFT_OUT = {
    "llama_cpp.server.app": {"bearer_scheme", "extras_tag", "openai_v1_tag", "router"},
    "llama_cpp.server.types": None,
    "llama_cpp.server.cli": {"T"},
}


@pytest.mark.parametrize("module", sorted(TABLE))
def test_every_public_name_is_there(module: str) -> None:
    skipped = LEFT_OUT.get(module, set())
    if skipped is None:
        return
    excused = {name.rpartition(".")[2] for name in EXCEPTIONS if name.startswith(module + ".")}
    found = importlib.import_module(module)
    missing = [
        name
        for name in TABLE[module]["names"]
        if name not in skipped | excused and not hasattr(found, name)
    ]
    assert not missing


#: Numbers of the files that the library writes: those of the llama.cpp that is loaded, because a
#: program that reads a file's head compares with them.
OF_FILES = {"LLAMA_SESSION_VERSION": 11, "LLAMA_STATE_SEQ_VERSION": 4}


@pytest.mark.parametrize("module", ["llama_cpp.llama_cpp", "llama_cpp.mtmd_cpp"])
def test_numbers_of_c_are_equal(module: str) -> None:
    found = importlib.import_module(module)
    constants = TABLE[module]["constants"]
    assert constants
    wanted = {**constants, **{name: OF_FILES[name] for name in OF_FILES.keys() & constants.keys()}}
    assert {name: getattr(found, name) for name in constants} == wanted


def test_the_number_of_a_session_file_is_the_one_that_the_library_writes(tmp_path: Path) -> None:
    llama_cpp = importlib.import_module("llama_cpp")
    file = tmp_path / "session"
    llm = llama_cpp.Llama(demo_model_path(), n_ctx=64, verbose=False)
    try:
        tokens = (llama_cpp.llama_token * 2)(1, 2)
        assert llama_cpp.llama_state_save_file(llm.ctx, bytes(file), tokens, 2)
    finally:
        llm.close()
    magic, version = struct.unpack("<II", file.read_bytes()[:8])
    wanted = (llama_cpp.LLAMA_SESSION_MAGIC, llama_cpp.LLAMA_SESSION_VERSION)
    assert (magic, version) == wanted


def test_the_package_offers_what_a_star_import_of_its_modules_offers() -> None:
    names: dict[str, Any] = {}
    exec("from llama_cpp import *", names)
    for module in ("llama_cpp.llama", "llama_cpp.llama_types", "llama_cpp.llama_cpp"):
        missing = [name for name in TABLE[module]["names"] if name not in names]
        assert not missing, module
