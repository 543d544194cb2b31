"""The model calls a function of ours, and answers with its result."""

import json

from llama_py import Llama, demo_model_path


def get_weather(city: str) -> dict[str, object]:
    """What a real program would ask a service for."""
    return {"temperature": 21, "condition": f"sunny in {city}"}


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]

with Llama(demo_model_path()) as llm:
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    # "auto" (the default) leaves it to the model; "required" makes sure of a call.
    response = llm.create_chat_completion(
        messages, tools=TOOLS, tool_choice="required", temperature=0
    )
    message = response["choices"][0]["message"]
    messages.append(message)
    for call in message["tool_calls"]:
        arguments = json.loads(call["function"]["arguments"])
        print(f"{call['function']['name']}({arguments})")
        content = json.dumps(get_weather(**arguments))
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})

    response = llm.create_chat_completion(messages, tools=TOOLS, temperature=0)
    print(response["choices"][0]["message"]["content"])
