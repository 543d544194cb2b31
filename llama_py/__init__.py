"""GGUF language models inside a Python process, on llama.cpp.

>>> from llama_py import Llama, demo_model_path
>>> llm = Llama(demo_model_path())
>>> llm.create_chat_completion([{"role": "user", "content": "What is 2 + 3?"}])

Everything is imported when it is first used: ``import llama_py`` itself is quick, and loads no
native library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llama_py.version import __version__

if TYPE_CHECKING:
    from llama_py.aio import AsyncLlama as AsyncLlama
    from llama_py.chat.formats import register_chat_format as register_chat_format
    from llama_py.chat.grammar import LlamaGrammar as LlamaGrammar
    from llama_py.chat.jinja import Jinja2ChatFormatter as Jinja2ChatFormatter
    from llama_py.demo import demo_model_path as demo_model_path
    from llama_py.errors import ContextOverflowError as ContextOverflowError
    from llama_py.errors import GenerationTimeout as GenerationTimeout
    from llama_py.errors import LlamaError as LlamaError
    from llama_py.errors import ParameterError as ParameterError
    from llama_py.llama import Llama as Llama
    from llama_py.memory.store import LlamaCache as LlamaCache
    from llama_py.memory.store import LlamaDiskCache as LlamaDiskCache
    from llama_py.memory.store import LlamaRAMCache as LlamaRAMCache
    from llama_py.overflow import TrimMessages as TrimMessages
    from llama_py.reuse import LlamaState as LlamaState
    from llama_py.scoring import Score as Score
    from llama_py.session import ChatSession as ChatSession
    from llama_py.wire.processors import LogitsProcessorList as LogitsProcessorList
    from llama_py.wire.processors import StoppingCriteriaList as StoppingCriteriaList

_HOMES = {
    "AsyncLlama": "aio",
    "ChatSession": "session",
    "ContextOverflowError": "errors",
    "GenerationTimeout": "errors",
    "Jinja2ChatFormatter": "chat.jinja",
    "Llama": "llama",
    "LlamaCache": "memory.store",
    "LlamaDiskCache": "memory.store",
    "LlamaError": "errors",
    "LlamaGrammar": "chat.grammar",
    "LlamaRAMCache": "memory.store",
    "LlamaState": "reuse",
    "LogitsProcessorList": "wire.processors",
    "ParameterError": "errors",
    "Score": "scoring",
    "StoppingCriteriaList": "wire.processors",
    "TrimMessages": "overflow",
    "demo_model_path": "demo",
    "register_chat_format": "chat.formats",
}

__all__ = [
    "AsyncLlama",
    "ChatSession",
    "ContextOverflowError",
    "GenerationTimeout",
    "Jinja2ChatFormatter",
    "Llama",
    "LlamaCache",
    "LlamaDiskCache",
    "LlamaError",
    "LlamaGrammar",
    "LlamaRAMCache",
    "LlamaState",
    "LogitsProcessorList",
    "ParameterError",
    "Score",
    "StoppingCriteriaList",
    "TrimMessages",
    "__version__",
    "demo_model_path",
    "register_chat_format",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'llama_py' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"llama_py.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
