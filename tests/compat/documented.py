"""What the documentation of llama-cpp-python shows, as a program for its runner.

Started as ``python -m llama_py.compat documented.py MODEL MMPROJ PICTURE``; prints a JSON object
with what each example gave. It imports nothing of llama_py.
"""

from __future__ import annotations

import base64
import ctypes
import json
import sys
from collections.abc import Callable
from typing import Any

import llama_cpp
from llama_cpp import Llama, LlamaCache, LlamaGrammar
from llama_cpp.llama_chat_format import Llava15ChatHandler
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

PATH, PROJECTOR, PICTURE = sys.argv[1:]
JSON_MESSAGES = [
    {"role": "system", "content": "You are a helpful assistant that outputs in JSON."},
    {"role": "user", "content": "Who won the world series in 2020"},
]
USER_DETAIL = {
    "type": "function",
    "function": {
        "name": "UserDetail",
        "parameters": {
            "type": "object",
            "title": "UserDetail",
            "properties": {
                "name": {"title": "Name", "type": "string"},
                "age": {"title": "Age", "type": "integer"},
            },
            "required": ["name", "age"],
        },
    },
}
EXAMPLES: dict[str, Callable[[], Any]] = {}


def example(function: Callable[[], Any]) -> Callable[[], Any]:
    EXAMPLES[function.__name__] = function
    return function


@example
def high_level() -> Any:
    llm = Llama(model_path=PATH, seed=1337)
    return llm(
        "Q: Name the planets in the solar system? A: ", max_tokens=32, stop=["Q:", "\n"], echo=True
    )


@example
def chat() -> Any:
    llm = Llama(model_path=PATH, verbose=False, chat_format="llama-2", seed=1)
    return llm.create_chat_completion(
        messages=[
            {"role": "system", "content": "You are an assistant who perfectly describes images."},
            {"role": "user", "content": "Describe this image in detail please."},
        ],
        max_tokens=8,
    )


@example
def json_mode() -> Any:
    llm = Llama(model_path=PATH, verbose=False, chat_format="chatml", seed=2, n_ctx=2048)
    return llm.create_chat_completion(
        messages=JSON_MESSAGES,
        response_format={"type": "json_object", "schema": {"type": "object", "maxProperties": 2}},
        temperature=0.7,
    )


@example
def json_schema_mode() -> Any:
    llm = Llama(model_path=PATH, verbose=False, chat_format="chatml", seed=3)
    return llm.create_chat_completion(
        messages=JSON_MESSAGES,
        response_format={
            "type": "json_object",
            "schema": {
                "type": "object",
                "properties": {"team_name": {"type": "string", "maxLength": 30}},
                "required": ["team_name"],
            },
        },
        temperature=0.7,
    )


@example
def function_calling() -> Any:
    llm = Llama(model_path=PATH, verbose=False, chat_format="chatml-function-calling", n_ctx=2048)
    return llm.create_chat_completion(
        messages=[{"role": "user", "content": "Extract Jason is 25 years old"}],
        tools=[USER_DETAIL],
        tool_choice={"type": "function", "function": {"name": "UserDetail"}},
        temperature=0,
        seed=4,
    )


@example
def multimodal() -> Any:
    chat_handler = Llava15ChatHandler(clip_model_path=PROJECTOR)
    llm = Llama(
        model_path=PATH,
        chat_handler=chat_handler,
        n_ctx=2048,  # n_ctx should be increased to accommodate the image embedding
        verbose=False,
    )
    return llm.create_chat_completion(
        messages=[
            {"role": "system", "content": "You are an assistant who perfectly describes images."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What's in this image?"},
                    {"type": "image_url", "image_url": {"url": image_to_base64_data_uri(PICTURE)}},
                ],
            },
        ],
        max_tokens=4,
    )


def image_to_base64_data_uri(file_path: str) -> str:
    with open(file_path, "rb") as img_file:  # noqa: PTH123 - as it is shown there
        base64_data = base64.b64encode(img_file.read()).decode("utf-8")
        return f"data:image/png;base64,{base64_data}"


@example
def speculative() -> Any:
    llama = Llama(
        model_path=PATH,
        draft_model=LlamaPromptLookupDecoding(num_pred_tokens=10),
        verbose=False,
    )
    plain = Llama(model_path=PATH, verbose=False)
    options: dict[str, Any] = {"max_tokens": 12, "temperature": 0}
    return [model("1 2 3 1 2 3 1 2", **options)["choices"] for model in (llama, plain)]


@example
def embeddings() -> Any:
    llm = llama_cpp.Llama(model_path=PATH, embedding=True, verbose=False)
    one = llm.create_embedding("Hello, world!")
    two = llm.create_embedding(["Hello, world!", "Goodbye, world!"])
    return [len(one["data"]), len(two["data"]), len(one["data"][0]["embedding"])]


@example
def context_window() -> Any:
    return Llama(model_path=PATH, n_ctx=2048, verbose=False).n_ctx()


@example
def low_level() -> Any:
    llama_cpp.llama_backend_init()
    model_params = llama_cpp.llama_model_default_params()
    ctx_params = llama_cpp.llama_context_default_params()
    prompt = b"Q: Name the planets in the solar system? A: "
    model = llama_cpp.llama_model_load_from_file(PATH.encode(), model_params)
    ctx = llama_cpp.llama_init_from_model(model, ctx_params)
    vocab = llama_cpp.llama_model_get_vocab(model)
    max_tokens = ctx_params.n_ctx
    tokens = (llama_cpp.llama_token * int(max_tokens))()
    n_tokens = llama_cpp.llama_tokenize(vocab, prompt, len(prompt), tokens, max_tokens, True, False)
    buffer = (ctypes.c_char * 32)()
    text = b""
    for token in tokens[:n_tokens]:
        size = llama_cpp.llama_token_to_piece(vocab, token, buffer, 32, 0, True)
        text += buffer.raw[:size]
    llama_cpp.llama_free(ctx)
    llama_cpp.llama_model_free(model)
    return text.decode()


@example
def caches() -> Any:
    llm = Llama(model_path=PATH, verbose=False)
    llm.set_cache(LlamaCache(capacity_bytes=2 << 30))
    first = llm("The quick brown fox jumps ", stop=["."], temperature=0)
    return [
        first["choices"],
        llm("The quick brown fox jumps ", stop=["."], temperature=0)["choices"],
    ]


@example
def generate() -> Any:
    llama = Llama(PATH, verbose=False, seed=5)
    tokens = llama.tokenize(b"Hello, world!")
    found = []
    for token in llama.generate(tokens, top_k=40, top_p=0.95, temp=1.0, repeat_penalty=1.0):
        found.append(llama.detokenize([token]).decode("utf-8", "replace"))
        if len(found) == 4:
            break
    return found


@example
def grammars() -> Any:
    llm = Llama(PATH, verbose=False)
    grammar = LlamaGrammar.from_string('root ::= ("yes" | "no")')
    return llm("Is it? ", grammar=grammar, max_tokens=-1)["choices"][0]["text"]


if __name__ == "__main__":
    print(json.dumps({name: function() for name, function in EXAMPLES.items()}))
