# requires: llama-cpp-haystack==3.0.2
"""Haystack's generator: a reply, a stream, and a tool, in a pipeline of its own."""

import sys

from haystack import Pipeline
from haystack.dataclasses import ChatMessage, StreamingChunk
from haystack.tools import Tool
from haystack_integrations.components.generators.llama_cpp import LlamaCppChatGenerator

parts: list[str] = []


def collect(chunk: StreamingChunk) -> None:
    parts.append(chunk.content)


generator = LlamaCppChatGenerator(
    model=sys.argv[1],
    n_ctx=2048,
    n_batch=128,
    model_kwargs={"verbose": False},
    generation_kwargs={"temperature": 0.0, "max_tokens": 64},
)
pipeline = Pipeline()
pipeline.add_component("llm", generator)
question = [ChatMessage.from_user("What is 2 + 3?")]
text = pipeline.run({"llm": {"messages": question}})["llm"]["replies"][0].text
assert text == "2 + 3 = 5.", text
streamed = generator.run(question, streaming_callback=collect)["replies"][0].text
assert streamed == "".join(parts) == text, parts
tool = Tool(
    name="get_weather",
    description="The weather of a city.",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
    function=str,
)
asked = generator.run(
    [ChatMessage.from_user("What is the weather in Paris?")],
    tools=[tool],
    generation_kwargs={"tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
)
call = asked["replies"][0].tool_calls[0]
assert call.arguments == {"city": "Paris"}, asked
print(text, len(parts), call.arguments)
