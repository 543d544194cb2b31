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
    from llama_py.api.aio import AsyncLlama as AsyncLlama
    from llama_py.api.llama import Llama as Llama
    from llama_py.api.overflow import TrimMessages as TrimMessages
    from llama_py.api.scoring import Score as Score
    from llama_py.api.session import ChatSession as ChatSession
    from llama_py.api.states import LlamaState as LlamaState
    from llama_py.chat.formats import register_chat_format as register_chat_format
    from llama_py.chat.grammar import LlamaGrammar as LlamaGrammar
    from llama_py.chat.jinja import Jinja2ChatFormatter as Jinja2ChatFormatter
    from llama_py.demo import demo_model_path as demo_model_path
    from llama_py.dialects.processors import LogitsProcessorList as LogitsProcessorList
    from llama_py.dialects.processors import StoppingCriteriaList as StoppingCriteriaList
    from llama_py.errors import ContextOverflowError as ContextOverflowError
    from llama_py.errors import GenerationTimeout as GenerationTimeout
    from llama_py.errors import LlamaError as LlamaError
    from llama_py.errors import ParameterError as ParameterError
    from llama_py.storage.store import LlamaCache as LlamaCache
    from llama_py.storage.store import LlamaDiskCache as LlamaDiskCache
    from llama_py.storage.store import LlamaRAMCache as LlamaRAMCache

_HOMES = {
    "AsyncLlama": "api.aio",
    "ChatSession": "api.session",
    "ContextOverflowError": "errors",
    "GenerationTimeout": "errors",
    "Jinja2ChatFormatter": "chat.jinja",
    "Llama": "api.llama",
    "LlamaCache": "storage.store",
    "LlamaDiskCache": "storage.store",
    "LlamaError": "errors",
    "LlamaGrammar": "chat.grammar",
    "LlamaRAMCache": "storage.store",
    "LlamaState": "api.states",
    "LogitsProcessorList": "dialects.processors",
    "ParameterError": "errors",
    "Score": "api.scoring",
    "StoppingCriteriaList": "dialects.processors",
    "TrimMessages": "api.overflow",
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
