"""Chat formats and handlers under llama-cpp-python's names.

A handler answers a conversation in place of ``create_chat_completion``. Those of models with a
template of their own, and those of formats by name, let llama_py render and parse; those that
programs register do what they do.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

from llama_py.compat import converting, formatting
from llama_py.compat.chats import NativeHandler
from llama_py.compat.formatting import (
    ChatFormatter,
    ChatFormatterResponse,
    Jinja2ChatFormatter,
    handler_of,
    named_prompt,
)
from llama_py.compat.llama_cpp.llama_grammar import JSON_GBNF, LlamaGrammar
from llama_py.compat.registry import (
    LlamaChatCompletionHandler,
    LlamaChatCompletionHandlerNotFoundException,
    LlamaChatCompletionHandlerRegistry,
    chat_formatter_to_chat_completion_handler,
    get_chat_completion_handler,
    register_chat_completion_handler,
    register_chat_format,
)
from llama_py.compat.templates import (
    CHATML_BOS_TOKEN,
    CHATML_CHAT_TEMPLATE,
    CHATML_EOS_TOKEN,
    LLAMA3_INSTRUCT_CHAT_TEMPLATE,
    MISTRAL_INSTRUCT_BOS_TOKEN,
    MISTRAL_INSTRUCT_CHAT_TEMPLATE,
    MISTRAL_INSTRUCT_EOS_TOKEN,
    MIXTRAL_INSTRUCT_CHAT_TEMPLATE,
    guess_chat_format_from_gguf_metadata,
)
from llama_py.compat.vision import (
    Gemma4ChatHandler,
    Llama3VisionAlpha,
    Llama3VisionAlphaChatHandler,
    Llava15ChatHandler,
    Llava16ChatHandler,
    MiniCPMv26ChatHandler,
    MoondreamChatHandler,
    MTMDChatHandler,
    NanoLlavaChatHandler,
    ObsidianChatHandler,
    Qwen25VLChatHandler,
)

__all__ = [
    "CHATML_BOS_TOKEN",
    "CHATML_CHAT_TEMPLATE",
    "CHATML_EOS_TOKEN",
    "LLAMA3_INSTRUCT_CHAT_TEMPLATE",
    "MISTRAL_INSTRUCT_BOS_TOKEN",
    "MISTRAL_INSTRUCT_CHAT_TEMPLATE",
    "MISTRAL_INSTRUCT_EOS_TOKEN",
    "MIXTRAL_INSTRUCT_CHAT_TEMPLATE",
    "ChatFormatter",
    "ChatFormatterResponse",
    "Gemma4ChatHandler",
    "Jinja2ChatFormatter",
    "Llama3VisionAlpha",
    "Llama3VisionAlphaChatHandler",
    "LlamaChatCompletionHandler",
    "LlamaChatCompletionHandlerNotFoundException",
    "LlamaChatCompletionHandlerRegistry",
    "Llava15ChatHandler",
    "Llava16ChatHandler",
    "MTMDChatHandler",
    "MiniCPMv26ChatHandler",
    "MoondreamChatHandler",
    "NanoLlavaChatHandler",
    "ObsidianChatHandler",
    "Qwen25VLChatHandler",
    "chat_formatter_to_chat_completion_handler",
    "chatml_function_calling",
    "format",
    "format_alpaca",
    "format_baichuan",
    "format_baichuan2",
    "format_chatglm3",
    "format_chatml",
    "format_gemma",
    "format_intel",
    "format_llama2",
    "format_llama3",
    "format_mistral_instruct",
    "format_mistrallite",
    "format_oasst_llama",
    "format_open_orca",
    "format_openbuddy",
    "format_openchat",
    "format_phind",
    "format_pygmalion",
    "format_qwen",
    "format_redpajama_incite",
    "format_saiga",
    "format_snoozy",
    "format_zephyr",
    "functionary_chat_handler",
    "functionary_v1_v2_chat_handler",
    "get_chat_completion_handler",
    "guess_chat_format_from_gguf_metadata",
    "hf_autotokenizer_to_chat_completion_handler",
    "hf_autotokenizer_to_chat_formatter",
    "hf_tokenizer_config_to_chat_completion_handler",
    "hf_tokenizer_config_to_chat_formatter",
    "register_chat_completion_handler",
    "register_chat_format",
]

#: Private names that programs import all the same.
_convert_completion_to_chat = converting.completion_to_chat
_convert_completion_to_chat_function = converting.completion_to_call
_convert_text_completion_logprobs_to_chat = converting.chat_logprobs
_grammar_for_json_schema = formatting.grammar_of_schema
_grammar_for_response_format = formatting.grammar_of_format


def hf_tokenizer_config_to_chat_formatter(
    tokenizer_config: dict[str, Any], add_generation_prompt: bool = True
) -> ChatFormatter:
    """The chat format of a ``tokenizer_config.json``.

    With ``add_generation_prompt``, an empty assistant message is put at the end, as
    llama-cpp-python does; templates that close messages close that one, too. (The handler made of
    the same configuration asks the template to open the reply instead.)
    """
    formatter = _formatter_of_config(tokenizer_config, add_generation_prompt=False)

    def format_tokenizer_config(*, messages: list[Any], **kwargs: Any) -> ChatFormatterResponse:
        if add_generation_prompt:
            messages = [*messages, {"role": "assistant", "content": ""}]
        made = formatter(messages=messages, **kwargs)
        return ChatFormatterResponse(
            made.prompt, [formatter.eos_token, formatter.bos_token], added_special=True
        )

    return format_tokenizer_config


def _formatter_of_config(
    tokenizer_config: dict[str, Any], add_generation_prompt: bool
) -> Jinja2ChatFormatter:
    texts: dict[str, Any] = {}
    for name in ("chat_template", "bos_token", "eos_token"):
        value = tokenizer_config.get(name)
        texts[name] = value["content"] if isinstance(value, dict) else value
        if not isinstance(texts[name], str):
            raise ValueError(f"the tokenizer config has no text {name!r}")
    return Jinja2ChatFormatter(
        texts["chat_template"], texts["eos_token"], texts["bos_token"], add_generation_prompt
    )


def hf_tokenizer_config_to_chat_completion_handler(
    tokenizer_config: dict[str, Any], add_generation_prompt: bool = True
) -> LlamaChatCompletionHandler:
    """The chat handler of a ``tokenizer_config.json``."""
    return handler_of(_formatter_of_config(tokenizer_config, add_generation_prompt))


def hf_autotokenizer_to_chat_formatter(
    pretrained_model_name_or_path: str | os.PathLike[str],
) -> ChatFormatter:
    """The chat format of a tokenizer of the package ``transformers``."""
    transformers: Any = import_module("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(pretrained_model_name_or_path)

    def format_autotokenizer(messages: list[Any], **kwargs: Any) -> ChatFormatterResponse:
        prompt = tokenizer.apply_chat_template(messages, tokenize=False)
        return ChatFormatterResponse(prompt, tokenizer.eos_token, added_special=True)

    return format_autotokenizer


def hf_autotokenizer_to_chat_completion_handler(
    pretrained_model_name_or_path: str | os.PathLike[str],
) -> LlamaChatCompletionHandler:
    """The chat handler of a tokenizer of the package ``transformers``."""
    return handler_of(hf_autotokenizer_to_chat_formatter(pretrained_model_name_or_path))


_DEFAULT = "chat_template.default"


def handlers_of(native: Any) -> dict[str | None, Any]:
    """The handlers of a model: one for each template in its file."""
    handlers: dict[str | None, Any] = {}
    for name, template in native.metadata.items():
        if name.startswith("tokenizer.chat_template."):
            handlers[name.removeprefix("tokenizer.")[len("chat_template.") :]] = _named(
                native, template
            )
    if "tokenizer.chat_template" in native.metadata or native.metadata.get("template"):
        handlers[_DEFAULT] = NativeHandler()
    return handlers


def _named(native: Any, template: str) -> Any:
    vocab = native.vocab
    eos, bos = (vocab.piece(each).decode() if each >= 0 else "" for each in (vocab.eos, vocab.bos))
    return Jinja2ChatFormatter(template, eos, bos, stop_token_ids=[vocab.eos]).to_chat_handler()


def format_of(llm: Any) -> str | None:
    """The name of the format that a model uses by itself; None with a chat handler."""
    if llm.chat_handler is not None:
        return None
    if _DEFAULT not in llm._chat_handlers:
        return "llama-2"
    guessed = guess_chat_format_from_gguf_metadata(llm.metadata)
    if guessed is not None:  # rendered by the template itself, which says the same
        llm._chat_handlers[guessed] = llm._chat_handlers[_DEFAULT]
    return guessed or _DEFAULT


def _grammar_for_json(verbose: bool = False) -> LlamaGrammar:
    return LlamaGrammar.from_string(JSON_GBNF, verbose)


# ---- formats by name -------------------------------------------------------------------------


def _formatter(name: str, function: str) -> Callable[..., ChatFormatterResponse]:
    """The function that makes prompts in one of llama_py's formats."""

    def make(messages: list[Any], **kwargs: Any) -> ChatFormatterResponse:
        return named_prompt(name, messages)

    make.__name__ = make.__qualname__ = function
    make.__doc__ = f"The prompt of a conversation in the format {name!r}."
    return make


format_llama2 = _formatter("llama-2", "format_llama2")
format_llama3 = _formatter("llama-3", "format_llama3")
format_alpaca = _formatter("alpaca", "format_alpaca")
format_qwen = _formatter("qwen", "format_qwen")
format = _formatter("vicuna", "format")
format_oasst_llama = _formatter("oasst_llama", "format_oasst_llama")
format_baichuan2 = _formatter("baichuan-2", "format_baichuan2")
format_baichuan = _formatter("baichuan", "format_baichuan")
format_openbuddy = _formatter("openbuddy", "format_openbuddy")
format_redpajama_incite = _formatter("redpajama-incite", "format_redpajama_incite")
format_snoozy = _formatter("snoozy", "format_snoozy")
format_phind = _formatter("phind", "format_phind")
format_intel = _formatter("intel", "format_intel")
format_open_orca = _formatter("open-orca", "format_open_orca")
format_mistrallite = _formatter("mistrallite", "format_mistrallite")
format_zephyr = _formatter("zephyr", "format_zephyr")
format_pygmalion = _formatter("pygmalion", "format_pygmalion")
format_chatml = _formatter("chatml", "format_chatml")
format_mistral_instruct = _formatter("mistral-instruct", "format_mistral_instruct")
format_chatglm3 = _formatter("chatglm3", "format_chatglm3")
format_openchat = _formatter("openchat", "format_openchat")
format_saiga = _formatter("saiga", "format_saiga")
format_gemma = _formatter("gemma", "format_gemma")

_FORMATS = (
    "llama-2",
    "llama-3",
    "alpaca",
    "qwen",
    "vicuna",
    "oasst_llama",
    "baichuan-2",
    "baichuan",
    "openbuddy",
    "redpajama-incite",
    "snoozy",
    "phind",
    "intel",
    "open-orca",
    "mistrallite",
    "zephyr",
    "pygmalion",
    "chatml",
    "mistral-instruct",
    "chatglm3",
    "openchat",
    "saiga",
    "gemma",
)


def chatml_function_calling(
    llama: Any,
    messages: list[Any],
    functions: list[Any] | None = None,
    function_call: Any = None,
    tools: list[Any] | None = None,
    tool_choice: Any = None,
    temperature: float = 0.2,
    top_p: float = 0.95,
    top_k: int = 40,
    min_p: float = 0.05,
    typical_p: float = 1.0,
    stream: bool = False,
    stop: str | list[str] | None = [],  # noqa: B006 - the signature of llama-cpp-python
    response_format: Any = None,
    max_tokens: int | None = None,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    repeat_penalty: float = 1.1,
    tfs_z: float = 1.0,
    mirostat_mode: int = 0,
    mirostat_tau: float = 5.0,
    mirostat_eta: float = 0.1,
    model: str | None = None,
    logits_processor: Any = None,
    grammar: Any = None,
    logprobs: bool | None = None,
    top_logprobs: int | None = None,
    **kwargs: Any,
) -> Any:
    """Answer a conversation with tools, by a template for models that write ChatML."""
    return _by_name("chatml-function-calling", locals())


def functionary_chat_handler(
    llama: Any,
    messages: list[Any],
    functions: list[Any] | None = None,
    function_call: Any = None,
    tools: list[Any] | None = None,
    tool_choice: Any = None,
    temperature: float = 0.2,
    top_p: float = 0.95,
    top_k: int = 40,
    min_p: float = 0.05,
    typical_p: float = 1.0,
    stream: bool = False,
    stop: str | list[str] | None = [],  # noqa: B006 - the signature of llama-cpp-python
    response_format: Any = None,
    max_tokens: int | None = None,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    repeat_penalty: float = 1.1,
    tfs_z: float = 1.0,
    mirostat_mode: int = 0,
    mirostat_tau: float = 5.0,
    mirostat_eta: float = 0.1,
    model: str | None = None,
    logits_processor: Any = None,
    grammar: Any = None,
    **kwargs: Any,
) -> Any:
    """Answer a conversation with tools, by the template of a Functionary model."""
    return _by_name("functionary", locals())


functionary_v1_v2_chat_handler = functionary_chat_handler


def _by_name(name: str, given: dict[str, Any]) -> Any:
    more = given.pop("kwargs")
    return NativeHandler(name)(**given, **more)


def _register_own() -> None:
    registry = LlamaChatCompletionHandlerRegistry()
    functionary = ("functionary", "functionary-v1", "functionary-v2")
    for name in (*_FORMATS, *functionary, "chatml-function-calling"):
        registry.register_chat_completion_handler(name, NativeHandler(name), overwrite=True)


_register_own()
