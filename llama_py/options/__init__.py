"""Every option of the library, declared once.

Each class is a ``TypedDict`` for signatures (``**options: Unpack[ChatOptions]``). Its fields carry
range, default and meaning as marks (``marks``), and the table of the same call reads them at run
time: ``CHAT.read(options)`` checks what was given, ``LOAD.complete(options)`` adds the defaults.
"""

from __future__ import annotations

from llama_py.options.calls import (
    MAX_CHOICES,
    ChatOptions,
    CompletionOptions,
    PromptOptions,
    ReplyOptions,
    RequestOptions,
    TurnOptions,
)
from llama_py.options.embedding import EmbedderOptions, Pooling
from llama_py.options.loading import ContextOptions, LoadOptions, ModelOptions
from llama_py.options.sampling import (
    CriteriaOptions,
    GenerateOptions,
    SampleOptions,
    SamplingOptions,
)
from llama_py.options.table import Option, Table

__all__ = [
    "CHAT",
    "COMPLETION",
    "EMBEDDER",
    "GENERATE",
    "LOAD",
    "MAX_CHOICES",
    "SAMPLE",
    "ChatOptions",
    "CompletionOptions",
    "ContextOptions",
    "CriteriaOptions",
    "EmbedderOptions",
    "GenerateOptions",
    "LoadOptions",
    "ModelOptions",
    "Option",
    "Pooling",
    "PromptOptions",
    "ReplyOptions",
    "RequestOptions",
    "SampleOptions",
    "SamplingOptions",
    "Table",
    "TurnOptions",
]

LOAD = Table("Llama", LoadOptions, ("model_path",))
COMPLETION = Table("create_completion", CompletionOptions, ("prompt", "stream"))
CHAT = Table("create_chat_completion", ChatOptions, ("messages", "stream"))
SAMPLE = Table("sample", SampleOptions, ("idx",))
GENERATE = Table("generate", GenerateOptions, ("tokens", "reset"))
EMBEDDER = Table("Embedder", EmbedderOptions, ("model_path", "llama"))
