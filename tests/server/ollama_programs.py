"""Programs that speak Ollama's API, unmodified; ``test_ollama_programs`` runs this.

    python ollama_programs.py ADDRESS MODEL

prints a line for each, and ends with 1 if one failed.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

ADDRESS, MODEL = sys.argv[1:]
QUESTION, WEATHER = "What is 2 + 3?", "What is the weather in Paris?"
ANSWER = "2 + 3 = 5."


def langchain() -> None:
    from langchain_core.tools import tool
    from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM

    @tool
    def get_weather(city: str) -> str:
        """Get the weather of a city."""
        return "21 degrees"

    given: dict[str, Any] = {"model": MODEL, "base_url": ADDRESS, "temperature": 0}
    chat = ChatOllama(**given, num_ctx=1024, keep_alive="5m", validate_model_on_init=True)
    assert chat.invoke(QUESTION).content == ANSWER
    assert "".join(str(each.content) for each in chat.stream(QUESTION)) == ANSWER
    (call,) = chat.bind_tools([get_weather]).invoke(WEATHER).tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
    assert OllamaLLM(**given).invoke(QUESTION) == ANSWER
    assert len(OllamaEmbeddings(model=MODEL, base_url=ADDRESS).embed_documents(["a", "b"])) == 2


def llama_index() -> None:
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.ollama import Ollama

    llm = Ollama(model=MODEL, base_url=ADDRESS, temperature=0)
    asked = [ChatMessage(role="user", content=QUESTION)]
    assert str(llm.complete(QUESTION)) == ANSWER
    assert llm.chat(asked).message.content == ANSWER
    assert "".join(str(each.delta) for each in llm.stream_chat(asked)) == ANSWER
    assert llm.get_context_window() == 2048  # from /api/show


def litellm() -> None:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it fetches nothing
    from litellm import completion, embedding

    given: dict[str, Any] = {"api_base": ADDRESS, "temperature": 0}
    asked = [{"role": "user", "content": QUESTION}]
    name = f"ollama_chat/{MODEL}"
    assert completion(name, asked, **given).choices[0].message.content == ANSWER
    pieces = completion(name, asked, stream=True, **given)
    assert "".join(each.choices[0].delta.content or "" for each in pieces) == ANSWER
    old = completion(f"ollama/{MODEL}", asked, max_tokens=20, **given)  # /api/generate
    assert old.choices[0].message.content
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": parameters}}
    asked = [{"role": "user", "content": WEATHER}]
    (call,) = completion(name, asked, tools=[tool], **given).choices[0].message.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_weather", '{"city": "Paris"}')
    assert len(embedding(f"ollama/{MODEL}", input=["a"], api_base=ADDRESS).data) == 1


def pydantic_ai() -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.ollama import OllamaModel
    from pydantic_ai.providers.ollama import OllamaProvider

    model = OllamaModel(MODEL, provider=OllamaProvider(base_url=f"{ADDRESS}/v1"))
    asked = Agent(model).run_sync(QUESTION, model_settings={"temperature": 0})
    assert asked.output == ANSWER


def main() -> int:
    """Run all; the exit status."""
    failed = 0
    for program in (langchain, llama_index, litellm, pydantic_ai):
        try:
            program()
        except Exception:  # whatever it is, the others are tried
            failed = 1
            traceback.print_exc()
        else:
            print(f"{program.__name__} passed")
    return failed


if __name__ == "__main__":
    sys.exit(main())
