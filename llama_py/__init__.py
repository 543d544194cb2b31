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
    from llama_py.api.aio import AsyncReplyStream as AsyncReplyStream
    from llama_py.api.call import ChatReply as ChatReply
    from llama_py.api.call import CompletionReply as CompletionReply
    from llama_py.api.call import ReplyStream as ReplyStream
    from llama_py.api.embedding.aio_embedder import AsyncEmbedder as AsyncEmbedder
    from llama_py.api.embedding.calls import Ranked as Ranked
    from llama_py.api.embedding.embedder import Embedder as Embedder
    from llama_py.api.kept.model_cache import ModelCache as ModelCache
    from llama_py.api.kept.model_cache import ModelStates as ModelStates
    from llama_py.api.kept.model_cache import Prewarmed as Prewarmed
    from llama_py.api.kept.reports import BytesReport as BytesReport
    from llama_py.api.kept.reports import CacheReport as CacheReport
    from llama_py.api.kept.reports import SequenceReport as SequenceReport
    from llama_py.api.kept.states import LlamaState as LlamaState
    from llama_py.api.kept.states import SnapshotInfo as SnapshotInfo
    from llama_py.api.llama import Llama as Llama
    from llama_py.api.overflow import OverflowPolicy as OverflowPolicy
    from llama_py.api.overflow import OverflowReport as OverflowReport
    from llama_py.api.overflow import TrimMessages as TrimMessages
    from llama_py.api.scoring.scoring import Score as Score
    from llama_py.api.sessions.session import ChatSession as ChatSession
    from llama_py.chat.constraints import LlamaGrammar as LlamaGrammar
    from llama_py.chat.formats import register_chat_format as register_chat_format
    from llama_py.chat.templates.formatter import Jinja2ChatFormatter as Jinja2ChatFormatter
    from llama_py.demo import demo_model_path as demo_model_path
    from llama_py.dialects.openai.types import ChatCompletion as ChatCompletion
    from llama_py.dialects.openai.types import ChatCompletionChunk as ChatCompletionChunk
    from llama_py.dialects.openai.types import Completion as Completion
    from llama_py.dialects.openai.types import CompletionChunk as CompletionChunk
    from llama_py.dialects.openai.types import CompletionUsage as CompletionUsage
    from llama_py.dialects.openai.types import (
        CreateChatCompletionResponse as CreateChatCompletionResponse,
    )
    from llama_py.dialects.openai.types import (
        CreateChatCompletionStreamResponse as CreateChatCompletionStreamResponse,
    )
    from llama_py.dialects.openai.types import CreateCompletionResponse as CreateCompletionResponse
    from llama_py.dialects.openai.types import (
        CreateCompletionStreamResponse as CreateCompletionStreamResponse,
    )
    from llama_py.dialects.openai.types import CreateEmbeddingResponse as CreateEmbeddingResponse
    from llama_py.dialects.openai.types import Timings as Timings
    from llama_py.dialects.processors import LogitsProcessorList as LogitsProcessorList
    from llama_py.dialects.processors import StoppingCriteriaList as StoppingCriteriaList
    from llama_py.embeddings.pooling import max_similarity as max_similarity
    from llama_py.engine.metrics import HistogramReport as HistogramReport
    from llama_py.engine.metrics import MetricsReport as MetricsReport
    from llama_py.errors import CacheFullError as CacheFullError
    from llama_py.errors import ClosedError as ClosedError
    from llama_py.errors import ContextCreationError as ContextCreationError
    from llama_py.errors import ContextOverflowError as ContextOverflowError
    from llama_py.errors import ConversationBusyError as ConversationBusyError
    from llama_py.errors import ConversationMissingError as ConversationMissingError
    from llama_py.errors import DecodeError as DecodeError
    from llama_py.errors import DeviceLostError as DeviceLostError
    from llama_py.errors import DeviceUnavailableError as DeviceUnavailableError
    from llama_py.errors import EngineDeadError as EngineDeadError
    from llama_py.errors import FingerprintError as FingerprintError
    from llama_py.errors import ForkedProcessError as ForkedProcessError
    from llama_py.errors import GenerationTimeout as GenerationTimeout
    from llama_py.errors import GrammarError as GrammarError
    from llama_py.errors import InputTooLongError as InputTooLongError
    from llama_py.errors import InvalidModelError as InvalidModelError
    from llama_py.errors import IsolationError as IsolationError
    from llama_py.errors import LlamaError as LlamaError
    from llama_py.errors import MissingPackageError as MissingPackageError
    from llama_py.errors import ModelChangedError as ModelChangedError
    from llama_py.errors import ModelLoadError as ModelLoadError
    from llama_py.errors import ModelNotFoundError as ModelNotFoundError
    from llama_py.errors import NativeLibraryError as NativeLibraryError
    from llama_py.errors import NotEnoughMemoryError as NotEnoughMemoryError
    from llama_py.errors import ParameterError as ParameterError
    from llama_py.errors import ParameterTypeError as ParameterTypeError
    from llama_py.errors import QueueFullError as QueueFullError
    from llama_py.errors import RequestCancelled as RequestCancelled
    from llama_py.errors import StateError as StateError
    from llama_py.errors import StorageError as StorageError
    from llama_py.errors import StorageNotFoundError as StorageNotFoundError
    from llama_py.errors import TemplateError as TemplateError
    from llama_py.errors import TemplateLimitError as TemplateLimitError
    from llama_py.errors import TokenizationError as TokenizationError
    from llama_py.errors import UnknownParameterError as UnknownParameterError
    from llama_py.memory.sequences import ReuseInfo as ReuseInfo
    from llama_py.options import ChatOptions as ChatOptions
    from llama_py.options import CompletionOptions as CompletionOptions
    from llama_py.options import EmbedderOptions as EmbedderOptions
    from llama_py.options import LoadOptions as LoadOptions
    from llama_py.options.drafters import MTP as MTP
    from llama_py.options.drafters import Drafter as Drafter
    from llama_py.options.drafters import DraftModel as DraftModel
    from llama_py.options.drafters import PromptLookup as PromptLookup
    from llama_py.options.drafters import Speculative as Speculative
    from llama_py.states.disk import LlamaDiskCache as LlamaDiskCache
    from llama_py.states.ram import LlamaCache as LlamaCache
    from llama_py.states.ram import LlamaRAMCache as LlamaRAMCache

_HOMES = {
    "AsyncEmbedder": "api.embedding.aio_embedder",
    "AsyncLlama": "api.aio",
    "AsyncReplyStream": "api.aio",
    "BytesReport": "api.kept.reports",
    "CacheFullError": "errors",
    "CacheReport": "api.kept.reports",
    "ChatCompletion": "dialects.openai.types",
    "ChatCompletionChunk": "dialects.openai.types",
    "ChatOptions": "options",
    "ChatReply": "api.call",
    "ChatSession": "api.sessions.session",
    "ClosedError": "errors",
    "Completion": "dialects.openai.types",
    "CompletionChunk": "dialects.openai.types",
    "CompletionOptions": "options",
    "CompletionReply": "api.call",
    "CompletionUsage": "dialects.openai.types",
    "ContextCreationError": "errors",
    "ContextOverflowError": "errors",
    "ConversationBusyError": "errors",
    "ConversationMissingError": "errors",
    "CreateChatCompletionResponse": "dialects.openai.types",
    "CreateChatCompletionStreamResponse": "dialects.openai.types",
    "CreateCompletionResponse": "dialects.openai.types",
    "CreateCompletionStreamResponse": "dialects.openai.types",
    "CreateEmbeddingResponse": "dialects.openai.types",
    "DecodeError": "errors",
    "DeviceLostError": "errors",
    "DeviceUnavailableError": "errors",
    "DraftModel": "options.drafters",
    "Drafter": "options.drafters",
    "Embedder": "api.embedding.embedder",
    "EmbedderOptions": "options",
    "EngineDeadError": "errors",
    "FingerprintError": "errors",
    "ForkedProcessError": "errors",
    "GenerationTimeout": "errors",
    "GrammarError": "errors",
    "HistogramReport": "engine.metrics",
    "InputTooLongError": "errors",
    "Audio": "media.objects",
    "Image": "media.objects",
    "InvalidModelError": "errors",
    "IsolationError": "errors",
    "MediaError": "errors",
    "Jinja2ChatFormatter": "chat.templates.formatter",
    "Llama": "api.llama",
    "LlamaCache": "states.ram",
    "LlamaDiskCache": "states.disk",
    "LlamaError": "errors",
    "LlamaGrammar": "chat.constraints",
    "LlamaRAMCache": "states.ram",
    "LlamaState": "api.kept.states",
    "LoadOptions": "options",
    "LogitsProcessorList": "dialects.processors",
    "MetricsReport": "engine.metrics",
    "MTP": "options.drafters",
    "MissingPackageError": "errors",
    "ModelCache": "api.kept.model_cache",
    "ModelChangedError": "errors",
    "ModelLoadError": "errors",
    "ModelNotFoundError": "errors",
    "ModelStates": "api.kept.model_cache",
    "NativeLibraryError": "errors",
    "NotEnoughMemoryError": "errors",
    "OverflowPolicy": "api.overflow",
    "OverflowReport": "api.overflow",
    "ParameterError": "errors",
    "ParameterTypeError": "errors",
    "Prewarmed": "api.kept.model_cache",
    "PromptLookup": "options.drafters",
    "QueueFullError": "errors",
    "ReplyStream": "api.call",
    "Ranked": "api.embedding.calls",
    "RequestCancelled": "errors",
    "ReuseInfo": "memory.sequences",
    "Score": "api.scoring.scoring",
    "SequenceReport": "api.kept.reports",
    "SnapshotInfo": "api.kept.states",
    "Speculative": "options.drafters",
    "StateError": "errors",
    "StoppingCriteriaList": "dialects.processors",
    "StorageError": "errors",
    "StorageNotFoundError": "errors",
    "TemplateError": "errors",
    "TemplateLimitError": "errors",
    "Timings": "dialects.openai.types",
    "TokenizationError": "errors",
    "TrimMessages": "api.overflow",
    "UnknownParameterError": "errors",
    "demo_model_path": "demo",
    "max_similarity": "embeddings.pooling",
    "register_chat_format": "chat.formats",
}

__all__ = [
    "MTP",
    "AsyncEmbedder",
    "AsyncLlama",
    "AsyncReplyStream",
    "Audio",
    "BytesReport",
    "CacheFullError",
    "CacheReport",
    "ChatCompletion",
    "ChatCompletionChunk",
    "ChatReply",
    "ChatSession",
    "ClosedError",
    "Completion",
    "CompletionChunk",
    "CompletionReply",
    "CompletionUsage",
    "ContextCreationError",
    "ContextOverflowError",
    "ConversationBusyError",
    "ConversationMissingError",
    "CreateChatCompletionResponse",
    "CreateChatCompletionStreamResponse",
    "CreateCompletionResponse",
    "CreateCompletionStreamResponse",
    "CreateEmbeddingResponse",
    "DecodeError",
    "DeviceLostError",
    "DeviceUnavailableError",
    "DraftModel",
    "Drafter",
    "Embedder",
    "EngineDeadError",
    "FingerprintError",
    "ForkedProcessError",
    "GenerationTimeout",
    "GrammarError",
    "HistogramReport",
    "Image",
    "InputTooLongError",
    "InvalidModelError",
    "IsolationError",
    "Jinja2ChatFormatter",
    "Llama",
    "LlamaCache",
    "LlamaDiskCache",
    "LlamaError",
    "LlamaGrammar",
    "LlamaRAMCache",
    "LlamaState",
    "LogitsProcessorList",
    "MediaError",
    "MetricsReport",
    "MissingPackageError",
    "ModelCache",
    "ModelChangedError",
    "ModelLoadError",
    "ModelNotFoundError",
    "ModelStates",
    "NativeLibraryError",
    "NotEnoughMemoryError",
    "OverflowPolicy",
    "OverflowReport",
    "ParameterError",
    "ParameterTypeError",
    "Prewarmed",
    "PromptLookup",
    "QueueFullError",
    "Ranked",
    "ReplyStream",
    "RequestCancelled",
    "ReuseInfo",
    "Score",
    "SequenceReport",
    "SnapshotInfo",
    "Speculative",
    "StateError",
    "StoppingCriteriaList",
    "StorageError",
    "StorageNotFoundError",
    "TemplateError",
    "TemplateLimitError",
    "Timings",
    "TokenizationError",
    "TrimMessages",
    "UnknownParameterError",
    "__version__",
    "demo_model_path",
    "max_similarity",
    "register_chat_format",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "rpc":  # a module whose functions are called with its name
        return import_module("llama_py.rpc")
    if name not in _HOMES:
        raise AttributeError(f"module 'llama_py' has no attribute {name!r}")
    value = getattr(import_module(f"llama_py.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
