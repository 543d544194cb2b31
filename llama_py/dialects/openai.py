"""OpenAI's parameters, as keyword arguments, to engine requests.

``parse_completion`` and ``parse_chat`` check everything before anything is evaluated and return a
call: its ``requests`` go to the engine, and what the engine says goes to its ``encoder()``. Names
and defaults are those of OpenAI and llama-cpp-python, and llama.cpp's for its samplers.
"""

from __future__ import annotations

from llama_py.dialects.openai_chat import ChatCall, parse_chat
from llama_py.dialects.openai_completions import CompletionCall, parse_completion

__all__ = ["ChatCall", "CompletionCall", "parse_chat", "parse_completion"]
