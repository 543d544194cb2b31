"""Chat requests from OpenAI's form."""

from __future__ import annotations

from typing import Any

from llama_py.chat.messages import ChatRequest
from llama_py.dialects.openai.messages import (
    read_messages,
    read_response_format,
    read_tool_choice,
    read_tools,
)


def chat_request(
    messages: Any,
    *,
    tools: Any = None,
    tool_choice: Any = None,
    response_format: Any = None,
    functions: Any = None,
    function_call: Any = None,
    **options: Any,
) -> ChatRequest:
    """What ``create_chat_completion`` makes of these arguments."""
    choice = tool_choice if tool_choice is not None else function_call
    return ChatRequest(
        read_messages(messages),
        tools=read_tools(tools, functions),
        tool_choice=read_tool_choice(choice),
        schema=read_response_format(response_format),
        **options,
    )
