"""What one API key sends is neither remembered for another one, nor keeps it waiting."""

from __future__ import annotations

import importlib
import pkgutil
import threading
from concurrent.futures import Future
from typing import Any

import pytest
from uvicorn.protocols.http import httptools_impl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from llama_py import Llama, demo_model_path
from llama_py.chat.grammars.guidance import available, guide_for
from llama_py.dialects.failures import RequestError
from llama_py.dialects.limits import MAX_BIASES, MAX_NAME, MAX_TOOL_CHARACTERS, RequestLimits
from llama_py.errors import NativeLibraryError
from llama_py.server.transport.connection import check_uvicorn
from llama_py.server.workers import FairWorkers
from llama_py.tenants import MOST_TENANTS, Remembered, tenant, working_for
from tests.patience import PATIENCE


def test_what_is_remembered_is_remembered_for_one() -> None:
    memory: Remembered[str, str] = Remembered(2)
    with working_for("alice"):
        memory.put("schema", "compiled")
    with working_for("bob"):
        assert memory.get("schema") is None
        for number in range(10):
            memory.put(f"schema {number}", "compiled")
    with working_for("alice"):
        assert memory.get("schema") == "compiled", "bob drove out what was alice's"
    assert len(memory) == 3
    for number in range(2 * MOST_TENANTS):
        with working_for(str(number)):
            memory.put("schema", "compiled")
    assert len(memory) == MOST_TENANTS


def memories(llm: Llama) -> dict[str, Remembered[Any, Any]]:
    """Everything that remembers contents of requests."""
    memory = {name: function.memory for name, function in functions("memory")}
    assert {"check_gbnf", "_known", "_written", "_machine", "arena_of"} <= {*memory}
    vocab = llm.runtime.loaded.model.vocab
    memory["prototypes"] = vocab._prototypes
    memory["shapes"] = llm.chat_template._engine._known
    if available():
        memory["schemas"] = guide_for(vocab)._compiled
    return memory


def functions(attribute: str) -> list[tuple[str, Any]]:
    """Those of what reads requests that have an attribute, by their names."""
    found = []
    for part in ("chat", "core", "dialects"):
        home = importlib.import_module(f"llama_py.{part}")
        for module in pkgutil.walk_packages(home.__path__, f"{home.__name__}."):
            names = vars(importlib.import_module(module.name)).items()
            found += [
                (name, each)
                for name, each in names
                if not isinstance(each, type)
                and hasattr(each, attribute)
                and each.__module__ == module.name
            ]
    return found


def test_what_is_remembered_for_everybody_comes_of_models_and_templates() -> None:
    """``functools.cache`` knows no tenants: what a request has is not to be a key of one."""
    known = {
        "_address_prototype", "_check_library", "_environment", "_function",
        "template_of", "_tells_nothing_apart",
        "_parse_defaults", "_progress_address", "_workers", "gpu_hint", "named_templates",
        "note_ignored", "rpc_library",
    }  # fmt: skip
    assert {name for name, _ in functions("cache_info")} == known


def test_no_tenant_finds_what_another_one_has_had_compiled() -> None:
    llm = Llama(demo_model_path(), n_threads=1, n_ctx=2048)

    def ask(name: str) -> None:
        schema = {"type": "object", "properties": {name: {"enum": ["a", "b"]}}, "required": [name]}
        tool = {"type": "function", "function": {"name": name, "parameters": schema}}
        messages = [{"role": "user", "content": "Hello"}]
        form = {"type": "json_object", "schema": schema}
        llm.create_chat_completion(messages, response_format=form, max_tokens=2)
        llm.create_chat_completion(messages, tools=[tool], tool_choice="required", max_tokens=2)
        llm.create_completion("Hello", grammar=f'root ::= "{name}"', max_tokens=1)

    def counts() -> dict[str, int]:
        return {name: memory.missed for name, memory in memories(llm).items()}

    ask("other")  # what a template can do is found out once, for everybody
    missed: dict[str, dict[str, int]] = {}
    for name in ("alice", "bob", "alice"):
        before = counts()
        with working_for(name):
            ask("secret")
        after = counts()
        missed[name if name not in missed else "again"] = {n: after[n] - before[n] for n in after}
    llm.close()
    for name, first in missed["alice"].items():
        assert missed["bob"][name] == first, name
        assert missed["again"][name] <= first, name
    assert sum(missed["again"].values()) < sum(missed["bob"].values())


def test_one_key_does_not_take_all_workers() -> None:
    workers, release, begun = FairWorkers(3, "test"), threading.Event(), list[str]()

    def work(name: str) -> None:
        begun.append(name)
        release.wait(PATIENCE)

    futures: list[Future[None]] = []
    with working_for("alice"):
        futures += [workers.submit(work, "alice") for _ in range(10)]
    with working_for("bob"):
        futures += [workers.submit(lambda: begun.append("bob"))]
    futures[-1].result(PATIENCE)
    assert begun.count("alice") <= 2, "one thread is left for the others"
    for future in futures[2:10]:
        future.cancel()
    release.set()
    workers.shutdown()
    assert begun.count("alice") == 2, "what was given up was not begun"


def test_workers_of_nobody_are_all_used_and_keep_whose_work_it_is() -> None:
    workers, met = FairWorkers(3, "test"), threading.Barrier(3)
    meeting = [workers.submit(met.wait, PATIENCE) for _ in "abc"]
    assert {future.result(PATIENCE) for future in meeting} == {0, 1, 2}
    with working_for("alice"):
        future = workers.submit(tenant)
    assert future.result(PATIENCE) == "alice"
    failed = workers.submit(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        failed.result(PATIENCE)
    workers.shutdown()
    with pytest.raises(RuntimeError):
        workers.submit(tenant)


def test_limits_of_tools_and_biases() -> None:
    limits = RequestLimits()
    limits.check_tools({"tools": [{"function": {"name": "x" * MAX_NAME}}]}, "tools")
    limits.check_biases({"logit_bias": {str(n): 1 for n in range(MAX_BIASES)}})
    for tools in (
        [{"type": "function", "function": {"name": "x" * (MAX_NAME + 1)}}],
        [{"name": "x" * 1_000_000}],
        [{"function": {"name": "x", "description": "x" * MAX_TOOL_CHARACTERS}}],
        [{"function": {"name": "x", "parameters": {"enum": [1] * MAX_TOOL_CHARACTERS}}}],
        [{"function": {"name": "x"}}] * (limits.max_tools + 1),
    ):
        with pytest.raises(RequestError) as refused:
            limits.check_tools({"tools": tools}, "tools")
        assert len(str(refused.value)) < 300
    for biases in ([[1, 1]] * (MAX_BIASES + 1), {str(n): 1 for n in range(MAX_BIASES + 1)}):
        with pytest.raises(RequestError):
            limits.check_biases({"logit_bias": biases})


def test_uvicorn_has_what_the_limits_rely_on(monkeypatch: pytest.MonkeyPatch) -> None:
    check_uvicorn()
    monkeypatch.delattr(HttpToolsProtocol, "timeout_keep_alive_handler")
    with pytest.raises(NativeLibraryError, match=r"has no .*timeout_keep_alive_handler"):
        check_uvicorn()


def test_uvicorn_with_another_name_for_an_attribute(monkeypatch: pytest.MonkeyPatch) -> None:
    def __init__(self: Any, queue: list[Any]) -> None:  # noqa: N807
        self.requests = queue

    renamed = type("RequestResponseCycle", (), {"__init__": __init__, "send": 0, "receive": 0})
    monkeypatch.setattr(httptools_impl, "RequestResponseCycle", renamed)
    with pytest.raises(NativeLibraryError, match=r"RequestResponseCycle\.more_body"):
        check_uvicorn()


def test_uvicorn_without_its_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(httptools_impl, "RequestResponseCycle")
    with pytest.raises(NativeLibraryError, match="RequestResponseCycle"):
        check_uvicorn()
