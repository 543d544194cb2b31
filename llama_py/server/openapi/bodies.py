"""Request bodies, as JSON schemas."""

from __future__ import annotations

from typing import Any

from llama_py.dialects.known_fields import CHAT_OPTIONS, NOT_HERE
from llama_py.options import CHAT, COMPLETION
from llama_py.options.sampling import SamplingOptions
from llama_py.server.config.settings import Settings
from llama_py.server.openapi.schemas import (
    BOOLEAN,
    INTEGER,
    NUMBER,
    OBJECT,
    STRING,
    Schema,
    any_of,
    listing,
    of_options,
    one_of_texts,
    record,
    reference,
    said,
)

__all__ = ["request_schemas"]

_TOKENS = listing({"type": "integer", "minimum": 0})
_MODEL = said(
    STRING, "The model, by its id or an alias. A server with one model takes any name, or none."
)
_TIMINGS = said(BOOLEAN, "With `stream`: each chunk says what the reply has taken by then.")
_CACHE_PROMPT = said(BOOLEAN, "`false`: nothing that is in memory is taken for this call.")
_STREAM = said(BOOLEAN, "Send the reply as server-sent events, while it is generated.")
_SESSION = said(STRING, "Names the conversation, to be kept for its next turn.")
_JSON_SCHEMA = said(OBJECT, "A JSON schema that the reply has to follow.")
_SAMPLING = frozenset(SamplingOptions.__annotations__) - NOT_HERE


def request_schemas(settings: Settings) -> dict[str, Schema]:
    """The schemas by name, with the limits of the settings."""
    return {
        "ChatCompletionRequest": _chat(settings),
        "CompletionRequest": _completion(settings),
        "ChatMessage": _CHAT_MESSAGE,
        "ContentPart": any_of(_TEXT_PART, _IMAGE_PART, _SOUND_PART),
        "Tool": record({"type": one_of_texts("function"), "function": _TOOL}, ["type", "function"]),
        **_embeddings(settings),
        "TranscriptionRequest": _TRANSCRIPTION,
        **_responses(settings),
        **_anthropic(settings),
        **_ollama(settings),
        **_native(settings),
        "ModelName": record({"model": _MODEL}, ["model"]),
        "Control": record(
            {
                "id": said(STRING, "The id of the reply."),
                "action": one_of_texts("cancel"),
            },
            ["id", "action"],
        ),
        "Anything": OBJECT,
    }


# ---- OpenAI --------------------------------------------------------------------------------------

_CALLED = record({"name": STRING, "arguments": said(STRING, "JSON.")}, ["name"])
_CALL = record({"id": STRING, "type": one_of_texts("function"), "function": _CALLED})
_CONTENT = any_of(STRING, listing(reference("ContentPart")), {"type": "null"})
_CHAT_MESSAGE = record(
    {
        "role": one_of_texts("system", "developer", "user", "assistant", "tool", "function"),
        "content": said(_CONTENT, "A text, or parts."),
        "reasoning_content": said(STRING, "What an assistant thought before it spoke."),
        "tool_calls": said(listing(_CALL), "Calls that an assistant made."),
        "tool_call_id": said(STRING, "The call that a tool answers."),
        "name": STRING,
    },
    ["role"],
)
_TEXT_PART = record({"type": one_of_texts("text"), "text": STRING}, ["type", "text"])
_IMAGE = record({"url": said(STRING, "`data:` with Base64.")}, ["url"])
_IMAGE_PART = record(
    {"type": one_of_texts("image_url"), "image_url": _IMAGE}, ["type", "image_url"]
)
_SOUND = record({"data": said(STRING, "Base64."), "format": STRING}, ["data"])
_SOUND_PART = record(
    {"type": one_of_texts("input_audio"), "input_audio": _SOUND}, ["type", "input_audio"]
)
_TRANSCRIPTION = record(
    {
        "file": said({"type": "string", "format": "binary"}, "A sound: WAV, FLAC, MP3 or Ogg."),
        "model": STRING,
        "language": said(STRING, "What is spoken, as the model's instruction names it."),
        "prompt": said(STRING, "In place of the instruction."),
        "response_format": one_of_texts("json", "text"),
        "temperature": NUMBER,
        "max_tokens": INTEGER,
        "stream": BOOLEAN,
    },
    ["file"],
)
#: llama-server's: a marker in the text for each of the media.
_MARKED = said(
    record({"prompt_string": STRING, "multimodal_data": listing(STRING)}, ["prompt_string"]),
    "A text with `<__media__>` in place of each picture or sound, and those in Base64.",
)
_TOOL = record(
    {
        "name": STRING,
        "description": STRING,
        "parameters": said(OBJECT, "JSON schema of the arguments."),
        "strict": BOOLEAN,
    },
    ["name"],
)


def _embeddings(settings: Settings) -> dict[str, Schema]:
    most = {"minItems": 1, "maxItems": settings.max_inputs}
    inputs = any_of(STRING, listing(STRING, **most), _TOKENS)
    inputs["anyOf"].append(listing(_TOKENS, **most))
    inputs["anyOf"].append(said(OBJECT, "llama-server's: `prompt_string`, or `content` of parts."))
    truncate = said(BOOLEAN, "Leave out the end of what is too long; otherwise that is an error.")
    document = any_of(STRING, record({"text": STRING}, ["text"]))
    embedding = {
        "model": _MODEL,
        "input": said(inputs, "A text or its tokens, or several of either."),
        "content": said(inputs, "The same for an answer in llama-server's form."),
        "encoding_format": one_of_texts("float", "base64"),
        "dimensions": said({"type": "integer", "minimum": 1}, "Keep the first ones only."),
        "normalize": said(BOOLEAN, "Vectors of length 1 (the default)."),
        "embd_normalize": said(INTEGER, "2: vectors of length 1; -1: as they are."),
        "truncate": truncate,
        "user": STRING,
    }
    ranking = {
        "model": _MODEL,
        "query": STRING,
        "documents": listing(document, **most),
        "texts": said(listing(document, **most), "The same for an answer in TEI's form."),
        "top_n": said({"type": "integer", "minimum": 1}, "Most documents to return."),
        "return_documents": BOOLEAN,
        "return_text": BOOLEAN,
        "normalize": said(BOOLEAN, "Scores from 0 to 1."),
        "raw_scores": said(BOOLEAN, "With `texts`: scores as the model gives them."),
        "truncate": truncate,
    }
    return {
        "EmbeddingRequest": record(embedding),
        "RerankRequest": record(ranking, ["query"]),
    }


def _chat(settings: Settings) -> Schema:
    messages = listing(reference("ChatMessage"), minItems=1, maxItems=settings.max_messages)
    tools = listing(reference("Tool"), maxItems=settings.max_tools)
    common = _common(of_options(CHAT), settings)
    common["tools"] = said(tools, "Functions that may be called.")
    return record(
        {
            "model": _MODEL,
            "messages": said(messages, "The conversation."),
            "stream": _STREAM,
            "return_progress": said(
                BOOLEAN, "With `stream`: chunks that say how much of the prompt is done."
            ),
            **common,
        },
        ["messages"],
    )


def _completion(settings: Settings) -> Schema:
    prompts = any_of(STRING, listing(STRING, maxItems=settings.max_prompts), _TOKENS)
    prompts["anyOf"] += [listing(_TOKENS, maxItems=settings.max_prompts), _MARKED]
    return record(
        {
            "model": _MODEL,
            "prompt": said(prompts, "A text or its tokens, or several of either."),
            "stream": _STREAM,
            "json_schema": _JSON_SCHEMA,
            **_common(of_options(COMPLETION), settings),
        },
        ["prompt"],
    )


def _common(options: dict[str, Schema], settings: Settings) -> dict[str, Schema]:
    """Members of chats and of completions, and the options with what the server allows of them."""
    most = {
        "n": settings.max_choices,
        "best_of": settings.max_choices,
        "logprobs": settings.max_top_logprobs,
        "top_logprobs": settings.max_top_logprobs,
    }
    for name, limit in most.items():
        if name in options and "boolean" not in options[name].get("type", ()):
            options[name] = {**options[name], "maximum": limit}
    stops = any_of(STRING, listing(STRING, maxItems=settings.max_stops), {"type": "null"})
    options["stop"] = said(stops, options["stop"]["description"])
    return {
        "return_token_ids": said(BOOLEAN, "Each choice says which tokens it consists of."),
        "timings_per_token": _TIMINGS,
        "cache_prompt": _CACHE_PROMPT,
        "session_id": _SESSION,
        "prompt_cache_key": _SESSION,
        "user": STRING,
        **{name: each for name, each in options.items() if name not in NOT_HERE},
    }


# ---- OpenAI's Responses --------------------------------------------------------------------------

_ITEM_CONTENT = any_of(STRING, listing(record({"type": STRING, "text": STRING}, ["type"])))
_ITEM_TYPES = ("message", "function_call", "function_call_output", "reasoning", "item_reference")
_RESPONSE_ITEM = record(
    {
        "type": any_of(one_of_texts(*_ITEM_TYPES), STRING),
        "role": one_of_texts("user", "assistant", "system", "developer"),
        "content": _ITEM_CONTENT,
        "call_id": STRING,
        "name": STRING,
        "arguments": STRING,
        "output": _ITEM_CONTENT,
        "id": STRING,
    }
)


def _responses(settings: Settings) -> dict[str, Schema]:
    items = any_of(STRING, listing(reference("ResponseItem")))
    effort = of_options(CHAT, ["reasoning_effort"])["reasoning_effort"]
    shared = {
        "model": _MODEL,
        "input": said(items, "What is said: a text, or items."),
        "instructions": said(STRING, "What the model is to do, said before everything else."),
        "previous_response_id": said(STRING, "The stored response that this one continues."),
        "tools": said(listing(OBJECT, maxItems=settings.max_tools), "What may be called."),
        "tool_choice": any_of(one_of_texts("auto", "none", "required"), OBJECT),
        "parallel_tool_calls": BOOLEAN,
        "reasoning": record({"effort": effort, "summary": STRING}),
        "text": record({"format": said(OBJECT, "A JSON schema to follow.")}),
        "truncation": one_of_texts("auto", "disabled"),
    }
    create = {
        **shared,
        "stream": _STREAM,
        "store": said(BOOLEAN, "Keep the response, so that another one can continue it."),
        "max_output_tokens": said({**INTEGER, "minimum": 1}, "Most tokens to generate."),
        "top_logprobs": {**INTEGER, "minimum": 0, "maximum": settings.max_top_logprobs},
        "include": listing(STRING),
        "metadata": OBJECT,
        "cache_prompt": _CACHE_PROMPT,
        "return_progress": said(
            BOOLEAN, "With `stream`: events say how much of the prompt is done."
        ),
        "timings_per_token": _TIMINGS,
        "prompt_cache_key": _SESSION,
        "session_id": _SESSION,
        "user": STRING,
        "json_schema": _JSON_SCHEMA,
        **of_options(CHAT, CHAT_OPTIONS),
    }
    return {
        "ResponsesRequest": record(create),
        "ResponsesCountRequest": record(shared),
        "ResponseItem": _RESPONSE_ITEM,
    }


# ---- Anthropic -----------------------------------------------------------------------------------


def _block(kind: str, required: list[str], **members: Schema) -> Schema:
    return record({"type": one_of_texts(kind), **members}, ["type", *required])


_ANTHROPIC_BLOCK = any_of(
    _block("text", ["text"], text=STRING),
    _block("thinking", ["thinking"], thinking=STRING, signature=STRING),
    _block("tool_use", ["id", "name", "input"], id=STRING, name=STRING, input=OBJECT),
    _block(
        "tool_result",
        ["tool_use_id"],
        tool_use_id=STRING,
        content=any_of(STRING, listing(OBJECT)),
        is_error=BOOLEAN,
    ),
    _block("image", ["source"], source=OBJECT),
)


def _anthropic(settings: Settings) -> dict[str, Schema]:
    messages = listing(reference("AnthropicMessage"), minItems=1, maxItems=settings.max_messages)
    shared = {
        "model": _MODEL,
        "messages": said(messages, "The conversation."),
        "system": said(any_of(STRING, listing(reference("AnthropicBlock"))), "What comes first."),
        "tools": listing(reference("AnthropicTool"), maxItems=settings.max_tools),
        "tool_choice": record({"type": one_of_texts("auto", "any", "tool", "none")}, ["type"]),
        "thinking": record(
            {
                "type": one_of_texts("enabled", "disabled", "adaptive"),
                "budget_tokens": {**INTEGER, "minimum": 0},
            },
            ["type"],
        ),
        "output_config": record({"effort": STRING, "format": OBJECT}),
        "cache_prompt": _CACHE_PROMPT,
    }
    sampling = of_options(CHAT, CHAT_OPTIONS - {"stop"})
    stops = listing(STRING, maxItems=settings.max_stops)
    create = {
        **shared,
        **sampling,
        "max_tokens": said({**INTEGER, "minimum": 0}, "Most tokens to generate."),
        "stream": _STREAM,
        "stop_sequences": said(stops, "Texts that end the reply."),
        "metadata": record({"user_id": STRING}),
        "json_schema": _JSON_SCHEMA,
    }
    return {
        "MessagesRequest": record(create, ["messages", "max_tokens"]),
        "CountTokensRequest": record(shared, ["messages"]),
        "AnthropicMessage": record(
            {
                "role": one_of_texts("user", "assistant", "system"),
                "content": any_of(STRING, listing(reference("AnthropicBlock"))),
            },
            ["role", "content"],
        ),
        "AnthropicBlock": _ANTHROPIC_BLOCK,
        "AnthropicTool": record(
            {"name": STRING, "description": STRING, "input_schema": OBJECT}, ["name"]
        ),
    }


# ---- Ollama --------------------------------------------------------------------------------------


def _ollama(settings: Settings) -> dict[str, Schema]:
    images = said(listing(STRING), "Pictures and sounds, in base64.")
    message = {
        "role": one_of_texts("system", "user", "assistant", "tool"),
        "content": STRING,
        "thinking": STRING,
        "images": images,
        "tool_calls": listing(OBJECT),
        "tool_name": said(STRING, "Of a result: the function that was called."),
    }
    shared = {
        "model": _MODEL,
        "stream": said(BOOLEAN, "`false`: one object in place of a stream of lines."),
        "options": said(OBJECT, "`temperature`, `num_predict`, `stop` and the like."),
        "keep_alive": said(any_of(NUMBER, STRING), "How long the model stays in memory after it."),
    }
    reply = {
        "format": said(any_of(STRING, OBJECT), "`json`, or a JSON schema."),
        "think": said(any_of(BOOLEAN, STRING), "Whether to reason, or how much."),
        "logprobs": BOOLEAN,
        "top_logprobs": {**INTEGER, "minimum": 0},
    }
    messages = listing(record(message, ["role"]), maxItems=settings.max_messages)
    tools = listing(reference("Tool"), maxItems=settings.max_tools)
    prompt = {
        "prompt": STRING,
        "suffix": said(STRING, "What follows the gap to fill in."),
        "system": STRING,
        "images": images,
        "raw": said(BOOLEAN, "Take the prompt as it is, without the template."),
    }
    of_vectors = {"model": _MODEL, "keep_alive": shared["keep_alive"]}
    texts = {"input": any_of(STRING, listing(STRING)), "truncate": BOOLEAN, "dimensions": INTEGER}
    return {
        "OllamaChatRequest": record(
            {**shared, **reply, "messages": messages, "tools": tools}, ["model"]
        ),
        "OllamaGenerateRequest": record({**shared, **reply, **prompt}, ["model"]),
        "OllamaEmbedRequest": record({**of_vectors, **texts}, ["model", "input"]),
        "OllamaEmbeddingsRequest": record({**of_vectors, "prompt": STRING}, ["model", "prompt"]),
    }


# ---- llama-server's own --------------------------------------------------------------------------


def _native(settings: Settings) -> dict[str, Schema]:
    chat = _chat(settings)["properties"]
    rendered = ("model", "messages", "tools", "tool_choice", "response_format")
    content = said(any_of(STRING, listing(any_of(STRING, INTEGER))), "A text, or a mixed list.")
    tokenize = {
        "model": _MODEL,
        "content": content,
        "add_special": BOOLEAN,
        "parse_special": BOOLEAN,
        "with_pieces": said(BOOLEAN, "Say which text each token stands for."),
    }
    return {
        "NativeCompletionRequest": record(
            {
                "prompt": said(
                    any_of(STRING, _TOKENS, _MARKED, listing(any_of(STRING, _TOKENS, _MARKED))),
                    "Text.",
                ),
                **_native_options(settings),
            },
            ["prompt"],
        ),
        "InfillRequest": _infill(settings),
        "TokenizeRequest": record(tokenize, ["content"]),
        "ExtraTokenizeRequest": record({"model": _MODEL, "input": STRING}, ["input"]),
        "DetokenizeRequest": record({"model": _MODEL, "tokens": _TOKENS}, ["tokens"]),
        "ApplyTemplateRequest": record({name: chat[name] for name in rendered}, ["messages"]),
        "SlotFile": record({"filename": said(STRING, "A plain name.")}, ["filename"]),
        "SnapshotMake": record(
            {
                "name": said(STRING, "A plain name."),
                "length": said({**INTEGER, "minimum": 1}, "Only the first tokens."),
                "prepare": said(BOOLEAN, "Hold it until it is confirmed or aborted."),
                "model": said(STRING, "The model; by default the one that answered last."),
            },
            ["name"],
        ),
        "SessionFork": record({"id": said(STRING, "Of the fork; one is made if it is not given.")}),
    }


def _native_options(settings: Settings) -> dict[str, Schema]:
    options: dict[str, Any] = of_options(COMPLETION, _SAMPLING)
    for theirs, ours in {"repeat_last_n": "penalty_last_n", "mirostat": "mirostat_mode"}.items():
        options[theirs] = options.pop(ours)
    return {
        "model": _MODEL,
        "n_predict": said(
            {**INTEGER, "minimum": -1}, "Most tokens to generate; -1 means no limit."
        ),
        "stream": _STREAM,
        "stop": said(listing(STRING, maxItems=settings.max_stops), "Texts that end the reply."),
        "n_probs": {**INTEGER, "minimum": 0, "maximum": settings.max_top_logprobs},
        "cache_prompt": _CACHE_PROMPT,
        "return_tokens": said(BOOLEAN, "Say which tokens the reply consists of."),
        "response_fields": said(listing(STRING), "Only these members of the reply."),
        "t_max_predict_ms": said(NUMBER, "Longest time for the reply, in milliseconds."),
        "json_schema": _JSON_SCHEMA,
        "stop_token_ids": _TOKENS,
        "session_id": _SESSION,
        **options,
    }


def _infill(settings: Settings) -> Schema:
    extra = record({"filename": STRING, "text": STRING}, ["text"])
    return record(
        {
            "input_prefix": said(STRING, "What comes before the gap."),
            "input_suffix": said(STRING, "What comes after it."),
            "input_extra": said(listing(extra), "Other files."),
            "prompt": said(STRING, "The beginning of what is filled in."),
            **_native_options(settings),
        },
        ["input_prefix", "input_suffix"],
    )
