"""Fields of other servers: honoured, refused, or without effect.

Every dialect reads its bodies through ``ours``. A field that limits, constrains or ends a reply is
never ignored, by whatever name: it is brought to the dialect's own name, or refused with the name
to use. Only fields without effect on what is generated are left out, and fields that no server
knows. ``docs/fields.md`` is made of the same tables.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NoReturn, TypeAlias

from llama_py.dialects.failures import Kind, RequestError
from llama_py.dialects.fields import missing, whole_number, wrong_type, wrong_value
from llama_py.dialects.limits import RequestLimits
from llama_py.errors import ParameterError, shown
from llama_py.options import CHAT, COMPLETION, SamplingOptions

__all__ = [
    "CHAT_OPTIONS",
    "IDLE",
    "NOT_HERE",
    "OWN",
    "READ",
    "REFUSED",
    "RENAMED",
    "SAMPLING",
    "WORDS",
    "Dialect",
    "NamedBody",
    "meaning",
    "note_unknown",
    "ours",
    "spelled",
]

_log = logging.getLogger("llama_py.server")

#: Options that are not options of a body, or that the server determines.
NOT_HERE = frozenset(
    {"logits_processor", "stopping_criteria", "on_progress", "overflow", "model", "session_id"}
    | {"user", "speculative"}
)
#: How a token is chosen: the same names in every dialect.
SAMPLING = frozenset(SamplingOptions.__annotations__) - NOT_HERE


class Dialect(Enum):
    """The kinds of bodies, and what each is called in messages."""

    CHAT = "/v1/chat/completions"
    COMPLETION = "/v1/completions"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"
    NATIVE = "/completion"
    EMBEDDINGS = "/v1/embeddings"
    RERANK = "/v1/rerank"


# ---- what each dialect reads itself --------------------------------------------------------------

#: Of the reply and its progress, where a reply is generated.
_REPORTS = frozenset({"cache_prompt", "return_progress", "timings_per_token"})
#: What says how a chat goes on, beside what OpenAI's and Anthropic's own dialects have for it.
_CHATS = frozenset(
    {"chat_template_kwargs", "enable_thinking", "grammar", "ignore_eos", "json_calls"}
    | {"json_schema", "parallel_tool_calls", "priority", "reasoning_budget", "reasoning_effort"}
    | {"reuse", "special_tokens_in_content", "stop_token_ids", "timeout"}
)
_OPENAI = _REPORTS | {"model", "prompt_cache_key", "return_token_ids", "session_id", "stream"}

#: Options of a chat that every dialect of chats has under our name.
CHAT_OPTIONS = (SAMPLING | _CHATS | {"stop"}) & CHAT.options.keys()

#: The fields that the parser of a dialect reads, or leaves alone with good reason.
OWN: Mapping[Dialect, frozenset[str]] = {
    Dialect.CHAT: _OPENAI | (CHAT.options.keys() - NOT_HERE) | {"messages", "user"},
    Dialect.COMPLETION: _OPENAI
    | (COMPLETION.options.keys() - NOT_HERE)
    | {"json_schema", "prompt", "user"},
    Dialect.RESPONSES: SAMPLING
    | _REPORTS
    | _CHATS
    | {"background", "client_metadata", "conversation", "include", "input", "instructions"}
    | {"max_output_tokens", "max_tool_calls", "metadata", "model", "previous_response_id"}
    | {"prompt", "prompt_cache_key", "prompt_cache_retention", "reasoning", "safety_identifier"}
    | {"service_tier", "session_id", "stop", "store", "stream", "stream_options", "text"}
    | {"tool_choice", "tools", "top_logprobs", "truncation", "user"},
    Dialect.MESSAGES: SAMPLING
    | _REPORTS
    | _CHATS
    | {"max_tokens", "messages", "metadata", "model", "output_config", "output_format"}
    | {"session_id", "stop_sequences", "stream", "system", "thinking", "thread", "tool_choice"}
    | {"tools"},
    Dialect.NATIVE: (SAMPLING - {"mirostat_mode", "penalty_last_n", "tfs_z"})
    | _REPORTS
    | {"backend_sampling", "grammar", "id_slot", "ignore_eos", "input_extra", "input_prefix"}
    | {"input_suffix", "json_schema", "logprobs", "lora", "mirostat", "model", "n_cache_reuse"}
    | {"n_cmpl", "n_discard", "n_indent", "n_keep", "n_predict", "n_probs"}
    | {"post_sampling_probs", "priority", "prompt", "prompt_cache_key", "repeat_last_n"}
    | {"response_fields", "return_tokens", "session_id", "sse_ping_interval", "stop"}
    | {"stop_token_ids", "stream", "stream_options", "t_max_predict_ms", "t_max_prompt_ms"}
    | {"timeout", "user", "verbose"},
    Dialect.EMBEDDINGS: frozenset(
        {"content", "dimensions", "embd_normalize", "encoding_format", "input", "model"}
        | {"normalize", "truncate", "user"}
    ),
    Dialect.RERANK: frozenset(
        {"documents", "max_tokens_per_doc", "model", "normalize", "query", "raw_scores"}
        | {"return_documents", "return_text", "texts", "top_n", "truncate", "truncation_direction"}
        | {"user"}
    ),
}

# ---- honoured under another name -----------------------------------------------------------------

#: Theirs -> ours, where the value is the same.
RENAMED: Mapping[str, str] = {
    "ebnf": "grammar",
    "guided_grammar": "grammar",
    "max_completion_tokens": "max_tokens",
    "max_new_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "max_tokens_to_sample": "max_tokens",
    "min_new_tokens": "min_tokens",
    "mirostat": "mirostat_mode",
    "n_cmpl": "n",
    "n_predict": "max_tokens",
    "num_predict": "max_tokens",
    "random_seed": "seed",
    "reasoning_budget_tokens": "reasoning_budget",
    "repeat_last_n": "penalty_last_n",
    "repetition_penalty": "repeat_penalty",
    "sampling_seed": "seed",
    "stop_sequences": "stop",
    "temp": "temperature",
    "thinking_budget": "reasoning_budget",
    "thinking_budget_tokens": "reasoning_budget",
    "thinking_token_budget": "reasoning_budget",
    "typ_p": "typical_p",
}

#: What a field says, by our names.
_Said: TypeAlias = Mapping[str, Any]
_Read: TypeAlias = Callable[[str, Any], _Said]


def _object(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise wrong_type(name, "an object", value)
    return value


def _json_schema(name: str, value: Any) -> _Said:
    """A schema, or its text (SGLang, vLLM)."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise wrong_value(name, f"is {shown(value)}, which is not JSON") from None
    if not isinstance(value, (Mapping, bool)):
        raise wrong_type(name, "a JSON schema (an object)", value)
    return {"json_schema": {"type": "object"} if value == {} else value}


def _format(name: str, value: Any) -> _Said:
    """Ollama's: ``"json"``, or a schema."""
    if value == "json":
        return {"json_schema": {"type": "object"}}
    if isinstance(value, str):
        raise wrong_value(name, f"is {shown(value)}; expected 'json' or a JSON schema")
    return _json_schema(name, value)


def _typed_format(name: str, value: Any) -> _Said:
    """``response_format``, and the same without a wrapper as ``text.format`` has it."""
    kind = _object(name, value).get("type")
    if kind in (None, "text"):
        return {}
    if kind == "json_object":
        schema = value.get("schema")
        return {"json_schema": {"type": "object"}} if schema is None else _json_schema(name, schema)
    if kind != "json_schema":
        expected = "text, json_object or json_schema"
        raise wrong_value(f"{name}.type", f"is {shown(kind)}; expected {expected}")
    within, place = value, name
    if value.get("json_schema") is not None:
        within, place = _object(f"{name}.json_schema", value["json_schema"]), f"{name}.json_schema"
    if within.get("schema") is None:
        raise missing(f"{place}.schema", "it is the JSON schema of the reply")
    return _json_schema(f"{place}.schema", within["schema"])


def _choices(name: str, value: Any) -> _Said:
    """Texts of which the reply is one: a grammar with nothing else in it."""
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise wrong_type(name, "a list of strings", value)
    return {"grammar": "root ::= " + " | ".join(map(_literal, value))} if value else {}


def _literal(text: str) -> str:
    def escaped(character: str) -> str:
        plain = character.isprintable() and character not in '"\\'
        return character if plain else f"\\U{ord(character):08X}"

    return f'"{"".join(map(escaped, text))}"'


def _structured_outputs(name: str, value: Any) -> _Said:
    """vLLM's: one member says what the reply may be, others how that is to be enforced."""
    said: dict[str, Any] = {}
    for member, each in _object(name, value).items():
        place = f"{name}.{member}"
        if member in _STRUCTURES:
            if each is not None and each is not False:
                said |= _STRUCTURES[member](place, each)
        elif member not in _HOW and not asks_nothing(each):
            refuse(place, "pass response_format, or grammar with GBNF")
    return said


def _grammar(name: str, value: Any) -> _Said:
    return {"grammar": value}


_STRUCTURES: Mapping[str, _Read] = {
    "json": _json_schema,
    "json_object": lambda name, value: {"json_schema": {"type": "object"}},
    "choice": _choices,
    "grammar": _grammar,
}
#: Members of ``structured_outputs`` that change nothing in what a reply may mean.
_HOW = frozenset({"backend", "disable_any_whitespace", "disable_fallback"})


def _text(name: str, value: Any) -> _Said:
    form = _object(name, value).get("format")
    return {} if form is None else _typed_format(f"{name}.format", form)


def _output_config(name: str, value: Any) -> _Said:
    effort = _object(name, value).get("effort")
    return {**_text(name, value), **({} if effort is None else {"reasoning_effort": effort})}


def _think(name: str, value: Any) -> _Said:
    """Ollama's: whether, or how much."""
    return {"enable_thinking" if isinstance(value, bool) else "reasoning_effort": value}


def _thinking(name: str, value: Any) -> _Said:
    """Anthropic's, which other providers have in their chats."""
    if isinstance(value, bool):
        return {"enable_thinking": value}
    kind, budget = _object(name, value).get("type"), value.get("budget_tokens")
    if kind not in ("enabled", "disabled", "adaptive", "auto"):
        raise wrong_value(f"{name}.type", f"is {shown(kind)}; expected enabled or disabled")
    if kind == "disabled":
        return {"enable_thinking": False}
    said = {"enable_thinking": True} if kind == "enabled" else {}
    return said if budget is None else {**said, "reasoning_budget": budget}


def _reasoning(name: str, value: Any) -> _Said:
    """That of the Responses API, with what routers of providers add to it."""
    members = {"effort": "reasoning_effort", "max_tokens": "reasoning_budget"}
    members["enabled"] = "enable_thinking"
    given = _object(name, value)
    return {our: given[their] for their, our in members.items() if given.get(their) is not None}


def _separate_reasoning(name: str, value: Any) -> _Said:
    return {"reasoning_format": "none"} if value is False else {}


def _documents(name: str, value: Any) -> _Said:
    return {"chat_template_kwargs": {"documents": value}}


def _n_probs(name: str, value: Any) -> _Said:
    return {"n_probs": value} if value != 0 else {}


#: Theirs -> how its value is read, and which of ours it may say.
READ: Mapping[str, tuple[_Read, str]] = {
    "documents": (_documents, "chat_template_kwargs"),
    "format": (_format, "json_schema"),
    "guided_choice": (_choices, "grammar"),
    "guided_json": (_json_schema, "json_schema"),
    "json_schema": (_json_schema, "json_schema"),
    "n_probs": (_n_probs, "n_probs"),
    "output_config": (_output_config, "json_schema, reasoning_effort"),
    "output_format": (_typed_format, "json_schema"),
    "reasoning": (_reasoning, "reasoning_effort, reasoning_budget, enable_thinking"),
    "response_format": (_typed_format, "json_schema"),
    "separate_reasoning": (_separate_reasoning, "reasoning_format"),
    "structured_outputs": (_structured_outputs, "json_schema, grammar"),
    "text": (_text, "json_schema"),
    "think": (_think, "enable_thinking, reasoning_effort"),
    "thinking": (_thinking, "enable_thinking, reasoning_budget"),
}

_Spelling: TypeAlias = str | Callable[[Any], _Said]


def _response_format(schema: Any) -> _Said:
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}


#: Ours -> what the dialect calls it, if that is another name or form.
_SPELLED: Mapping[Dialect, Mapping[str, _Spelling]] = {
    Dialect.CHAT: {
        "json_schema": _response_format,
        "n_probs": lambda value: {"logprobs": True, "top_logprobs": value},
    },
    Dialect.COMPLETION: {"n_probs": "logprobs"},
    Dialect.RESPONSES: {"max_tokens": "max_output_tokens", "n_probs": "top_logprobs"},
    Dialect.MESSAGES: {"stop": "stop_sequences"},
    Dialect.NATIVE: {
        "max_tokens": "n_predict",
        "mirostat_mode": "mirostat",
        "n": "n_cmpl",
        "penalty_last_n": "repeat_last_n",
        "reuse": "cache_prompt",
    },
}


def spelled(dialect: Dialect, name: str) -> str:
    """A dialect's name of one of our options; empty if it has none."""
    how = _SPELLED.get(dialect, {}).get(name, name)
    names = [how] if isinstance(how, str) else [*how(1)]
    return ", ".join(names) if OWN[dialect].issuperset(names) else ""


# ---- refused -------------------------------------------------------------------------------------

_FORMATS = "pass response_format with a JSON schema, or grammar with GBNF"
_STOPS = "pass stop with texts, or stop_token_ids"
_TOKENS = "pass logit_bias, where false forbids a token"
_LORA = "adapters are part of a loaded model; load a second one with others"
_LOADED = "it is set when the model is loaded"
_PROMPT = "a prompt is never shortened; send less of it"
_WHOLE = "send the whole conversation as messages"
_ONE = "a reply is one; send the request several times"
_LOGPROBS = "log-probabilities are those of the reply: pass logprobs and top_logprobs"
_TAGS = "the template says how reasoning begins and ends; pass reasoning_budget"
_TOOLS = "calls are found by the template's own form; pass tools"
_MEMBERS = "its members are fields of the body here"
_NATIVE = "only /completion and /infill have it"

#: Theirs -> what to do instead, and the values that ask for nothing (beside null, false and what
#: is empty).
REFUSED: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    "add_special_tokens": ("the vocabulary says which tokens begin a prompt", (True,)),
    "allowed_token_ids": (_FORMATS, ()),
    "bad_words": (_TOKENS, ()),
    "best_of": (_ONE, (1,)),
    "chat_template": (_LOADED, ()),
    "context": ("send the text that came before as part of the prompt", ()),
    "custom_logit_processor": (_TOKENS, ()),
    "custom_params": ("no functions are run here that would read them", ()),
    "echo": ("the reply does not repeat the message that it goes on with", ()),
    "extra_body": (_MEMBERS, ()),
    "generation_prompt": ("pass continue_final_message", ()),
    "grammar_lazy": ("a grammar holds from the first token on; pass tools for calls", ()),
    "grammar_triggers": ("a grammar holds from the first token on; pass tools for calls", ()),
    "grammar_type": (_FORMATS, ()),
    "guided_regex": (_FORMATS, ()),
    "guided_whitespace_pattern": (_FORMATS, ()),
    "images": ("pass parts of the type image_url", ()),
    "include_stop_str_in_output": ("a stop text is not part of the reply", ()),
    "input_ids": ("tokens of a prompt go to /v1/completions", ()),
    "instructions": ("pass a message of the role system", ()),
    "length_penalty": ("there is no beam search", (1, 1.0)),
    "logit_processors": (_TOKENS, ()),
    "logits_processor": (_TOKENS, ()),
    "logits_processors": (_TOKENS, ()),
    "logprob_token_ids": (_LOGPROBS, ()),
    "lora": (_LORA, ()),
    "lora_path": (_LORA, ()),
    "max_dynamic_patch": (_LOADED, ()),
    "min_dynamic_patch": (_LOADED, ()),
    "modalities": ("replies are text; leave it out", (["text"],)),
    "n_indent": (_NATIVE, (0,)),
    "no_stop_trim": ("a stop text is not part of the reply", ()),
    "num_beams": ("there is no beam search", (1,)),
    "options": (
        "its members are fields of the body here: max_tokens for num_predict, temperature, stop",
        (),
    ),
    "overflow": ("the server decides what happens when a conversation is too long", ()),
    "parse_tool_calls": (_TOOLS, (True,)),
    "post_sampling_probs": ("leave it out for the model's own probabilities", ()),
    "preserved_tokens": (_TOOLS, ()),
    "previous_response_id": (_WHOLE, ()),
    "prompt_embeds": ("pass prompt as text or tokens", ()),
    "prompt_logprobs": ("pass echo with logprobs, at /v1/completions", ()),
    "raw": ("a prompt without a template goes to /v1/completions", ()),
    "reasoning_budget_end_tag": (_TAGS, ()),
    "reasoning_budget_end_tags": (_TAGS, ()),
    "reasoning_budget_message": (_TAGS, ()),
    "reasoning_budget_start_tag": (_TAGS, ()),
    "regex": (_FORMATS, ()),
    "repetition_detection": ("pass dry_multiplier or repeat_penalty", ()),
    "return_hidden_states": ("only tokens and their log-probabilities are reported", ()),
    "return_tokens_as_token_ids": ("pass return_token_ids", ()),
    "sampling_params": (_MEMBERS, ()),
    "session_params": ("pass session_id", ()),
    "skip_special_tokens": ("special tokens are not part of a reply's text", (True,)),
    "steering_vector": (_LOADED, ()),
    "stop_regex": (_STOPS, ()),
    "stopping_criteria": (_STOPS, ()),
    "structural_tag": (_FORMATS, ()),
    "system": ("pass a message of the role system", ()),
    "t_max_predict_ms": ("pass timeout, in seconds, or use /completion", (0, -1)),
    "task": ("leave it out: models are asked by their template alone", ()),
    "template": (_LOADED, ()),
    "truncate_prompt_tokens": (_PROMPT, (-1,)),
    "truncation": ("only /v1/responses shortens a conversation", ("disabled",)),
    "use_audio_in_video": ("films are not read", ()),
    "use_beam_search": ("there is no beam search", ()),
    "vllm_xargs": ("its members are fields of the body here, if there are any of these names", ()),
    "watermarking": ("there are no watermarks here", ()),
}

#: Where one of our dialects has the field, and this one has not: values that ask for nothing.
_NOTHING: Mapping[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "continue_final_message": (),
    "enable_thinking": (),
    "function_call": ("none", "auto"),
    "json_calls": (),
    "logprobs": (0,),
    "n": (1,),
    "parallel_tool_calls": (True,),
    "reasoning_budget": (-1,),
    "reasoning_effort": ("none",),
    "reasoning_format": ("auto", "deepseek"),
    "reuse": (True,),
    "tool_choice": ("none", "auto"),
    "top_logprobs": (0,),
    "tfs_z": (1, 1.0),
}

# ---- without effect ------------------------------------------------------------------------------

#: Fields that change nothing in what is generated: names, places, books, speed, and what belongs to
#: services that there are none of.
IDLE = frozenset(
    # OpenAI's
    {"access_programs", "audio", "background", "background_options", "client_metadata"}
    | {"context_management", "image", "include", "max_tool_calls", "metadata", "moderation"}
    | {"prediction", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"}
    | {"safety_identifier", "service_tier", "store", "stream_options", "user", "verbosity"}
    | {"web_search_options"}
    # Anthropic's
    | {"betas", "billing_policy", "cache_control", "compaction", "container", "diagnostics"}
    | {"fallback_credit_token", "fallbacks", "inference_geo", "mcp_servers", "speed"}
    | {"user_profile_id", "workspace_id"}
    # llama-server's
    | {"backend_sampling", "id_slot", "n_cache_reuse", "n_discard", "n_keep", "reasoning_control"}
    | {"response_fields", "return_progress", "return_tokens", "sse_ping_interval"}
    | {"t_max_prompt_ms", "timings_per_token", "verbose"}
    # vLLM's and SGLang's
    | {"bootstrap_host", "bootstrap_port", "bootstrap_room", "cache_salt", "custom_labels"}
    | {"data_parallel_rank", "disagg_prefill_dp_rank", "ec_transfer_params", "extra_key"}
    | {"guided_decoding_backend", "images_config", "include_reasoning", "kv_transfer_params"}
    | {"media_io_kwargs", "mm_processor_kwargs", "ngram_corpus_id", "request_id"}
    | {"return_cached_tokens_details", "return_meta_info", "return_mm_kwargs"}
    | {"return_prompt_text", "return_prompt_token_ids", "return_routed_experts"}
    | {"return_token_ids", "return_token_offsets", "rid", "routed_dp_rank"}
    | {"routed_experts_prompt_start", "routed_experts_start_len", "spaces_between_special_tokens"}
    | {"stream_interval", "stream_reasoning", "truncation_side"}
    # Ollama's
    | {"draft_num_predict", "embedding_only", "f16_kv", "height", "keep_alive", "logits_all"}
    | {"low_vram", "main_gpu", "num_batch", "num_ctx", "steps", "vocab_only", "width"}
    | {"num_gpu", "num_keep", "num_thread", "numa", "penalize_newline", "shift", "truncate"}
    | {"use_mlock", "use_mmap"}
    # llama-cpp-python's
    | {"penalize_nl"}
    # ours
    | {"cache_prompt", "model", "on_progress", "priority", "session_id", "speculative", "stream"}
    # what is said, as other endpoints call it: each needs its own
    | {"input", "messages", "prompt"}
)

#: What embeds and ranks generates nothing: only what changes its numbers counts.
_OF_VECTORS: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    "add_special_tokens": ("the vocabulary says which tokens begin a text", (True,)),
    "embed_dtype": ("vectors are float32; pass encoding_format", ("float32",)),
    "embedding_type": ("pass encoding_format", ("float",)),
    "embedding_types": ("pass encoding_format", (["float"],)),
    "endianness": ("vectors are little-endian", ("native", "little")),
    "input_type": ("write the model's instruction before the text", ()),
    "instruction": ("write the model's instruction before the text", ()),
    "late_chunking": ("each text has one vector", ()),
    "lora_path": (_LORA, ()),
    "output_dimension": ("pass dimensions", ()),
    "prompt_name": ("write the model's instruction before the text", ()),
    "task": ("write the model's instruction before the text", ()),
    "truncate_prompt_tokens": ("pass truncate, which keeps what the model takes", (-1,)),
}
_VECTORS = (Dialect.EMBEDDINGS, Dialect.RERANK)

#: Every option and field of one of our dialects.
_SOMEWHERE = frozenset().union(*OWN.values())

# ---- reading -------------------------------------------------------------------------------------


def asks_nothing(value: Any, others: Sequence[Any] = ()) -> bool:
    """Whether a value says that what its field is about is not wanted."""
    if value is None or value is False or value in ("", [], {}):
        return True
    return any(type(value) is type(each) and value == each for each in others)


def refuse(name: str, remedy: str) -> NoReturn:
    """Raise the error for a field that would change the reply, and is not there."""
    message = f"{name} is not supported here: {remedy}"
    raise RequestError(Kind.INVALID_VALUE, message, name, code="unsupported_parameter")


def note_unknown(names: Sequence[str], limits: RequestLimits) -> None:
    """Fields that are not known mean nothing, or are an error if the server is strict."""
    if names and limits.strict:
        message = f"the field {shown(names[0], 200)} is not known; leave it out"
        raise RequestError(Kind.UNKNOWN_PARAMETER, message, names[0])
    if names:
        _log.debug("fields that are not known are ignored: %s", ", ".join(map(repr, names)))


def _says(dialect: Dialect, name: str) -> list[str]:
    """Which of our options a field says; none if it is not one that is honoured."""
    if name in READ:
        return READ[name][1].split(", ")
    if name in RENAMED or name in _SPELLED.get(dialect, {}):
        return [RENAMED.get(name, name)]
    return []


#: What ``meaning`` may answer.
WORDS = ("own", "honoured", "refused", "without effect", "unknown")


def meaning(dialect: Dialect, name: str) -> str:
    """The treatment of a field: one of ``WORDS``."""
    if name in OWN[dialect]:
        return "own"
    if dialect in _VECTORS:
        if name in _OF_VECTORS:
            return "refused"
        known = name in IDLE or name in REFUSED or name in RENAMED or name in READ
        return "without effect" if known or name in _SOMEWHERE else "unknown"
    options = _says(dialect, name)
    if options:
        return "honoured" if any(spelled(dialect, each) for each in options) else "refused"
    if name in REFUSED:
        return "refused"
    if name in IDLE:
        return "without effect"
    return "refused" if name in _SOMEWHERE or name in NOT_HERE else "unknown"


@dataclass(slots=True)
class NamedBody:
    """A body in its dialect's own names.

    Attributes:
        fields: the body.
        names: own name -> what the client called it, where that is another.
    """

    fields: dict[str, Any]
    names: dict[str, str] = field(default_factory=dict)

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Let errors name the fields that the client sent."""
        try:
            yield
        except ParameterError as error:
            raise _renamed(error, self.names) from None
        except RequestError as error:
            raise _request_error(error, self.names) from None


def _renamed(error: ParameterError, names: Mapping[str, str]) -> ParameterError:
    text = str(error)
    for own, theirs in names.items():
        if text.startswith(own) and not text[len(own) : len(own) + 1].isalnum():
            named = type(error)(theirs + text[len(own) :])
            named.param = theirs
            return named
    return error


def _request_error(error: RequestError, names: Mapping[str, str]) -> RequestError:
    failure = error.failure
    place = (failure.param or "").partition(".")[0]
    if place not in names:
        return error
    message = failure.message.replace(place, names[place], 1)
    return RequestError.of(replace(failure, message=message, param=names[place]))


def ours(dialect: Dialect, body: Mapping[str, Any], limits: RequestLimits) -> NamedBody:
    """The body in its dialect's own names, without what has no effect.

    Raises:
        RequestError: a field would limit or constrain the reply, and cannot; two fields contradict
            each other; or, if the server is strict, one is not known.
    """
    own = OWN[dialect]
    given = NamedBody({name: value for name, value in body.items() if name in own})
    others = [name for name in body if name not in own]
    unknown = [name for name in others if meaning(dialect, name) == "unknown"]
    note_unknown(unknown, limits)
    for name in others:
        if body[name] not in (None, "") and name not in unknown:
            _take(dialect, given, name, body[name])
    limits.check_variables(given.fields)
    return given


def _take(dialect: Dialect, given: NamedBody, name: str, value: Any) -> None:
    """Add what a field of another server says, or refuse it."""
    if dialect in _VECTORS or not _says(dialect, name):
        if meaning(dialect, name) == "refused":
            _check_refused(dialect, name, value)
        return
    said = READ[name][0](name, value) if name in READ else {RENAMED.get(name, name): value}
    if said.get("max_tokens") in (-1, -2) and isinstance(value, int):  # no limit
        return
    spelling = _SPELLED.get(dialect, {})
    for option, wanted in said.items():
        how = spelling.get(option, option)
        for own, each in ({how: wanted} if isinstance(how, str) else how(wanted)).items():
            if own not in OWN[dialect]:
                if not asks_nothing(wanted, _NOTHING.get(option, ())):
                    _refuse_elsewhere(dialect, name, option)
                continue
            _put(given, own, each, name)


def _put(given: NamedBody, own: str, value: Any, name: str) -> None:
    there = given.fields.get(own)
    if own == "chat_template_kwargs" and isinstance(there, Mapping):
        twice = [each for each in value if each in there and there[each] != value[each]]
        value, there = ({**there, **value}, value if twice else None)
        given.fields[own] = value if not twice else there
        if not twice:
            return
    if there is not None and whole_number(there) != whole_number(value):
        if own != "response_format" or _typed_format(own, there) != _typed_format(own, value):
            before = given.names.get(own, own)
            raise wrong_value(
                name, f"contradicts {before}: both are the same thing; leave one of them out"
            )
        return
    given.fields[own] = value
    if own != name and there is None:
        given.names[own] = name


def _check_refused(dialect: Dialect, name: str, value: Any) -> None:
    table = _OF_VECTORS if dialect in _VECTORS else REFUSED
    if name in table:
        remedy, nothing = table[name]
        if not asks_nothing(value, nothing):
            refuse(name, remedy)
        return
    if not asks_nothing(value, _NOTHING.get(name, ())):
        _refuse_elsewhere(dialect, name, name)


def _refuse_elsewhere(dialect: Dialect, name: str, option: str) -> NoReturn:
    having = [each.value for each in Dialect if spelled(each, option) or name in OWN[each]]
    where = " and ".join(having[:2]) if having else "a call in Python"
    refuse(name, f"{dialect.value} has no such thing; it is for {where}")
