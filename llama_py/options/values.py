"""The types of values that options take, and the readers of those that need one of their own."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from llama_py.errors import (
    InvalidModelError,
    ModelNotFoundError,
    ParameterError,
    ParameterTypeError,
    shown,
)
from llama_py.options.checks import (
    check_bool,
    check_kind,
    check_number,
    described,
    fits_a_float,
    is_bool,
    read_string,
    read_texts,
    whole_text,
)
from llama_py.regular_files import why_no_file

__all__ = [
    "RANDOM_SEED",
    "SAMPLER_NAMES",
    "CacheType",
    "ChatPolicy",
    "CompilesToGrammar",
    "Effort",
    "LogitsProcessor",
    "SpecialTokens",
    "StoppingCriteria",
    "ToolForm",
]

#: The seed that means "choose one at random" (``LLAMA_DEFAULT_SEED``).
RANDOM_SEED = 0xFFFFFFFF

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Tokens: TypeAlias = NDArray[np.intc]
    Row: TypeAlias = NDArray[np.single]
    #: ``(tokens so far, logits row)`` -> logits row; both 1-D, logits float32 ``(n_vocab,)``.
    LogitsProcessor: TypeAlias = Callable[[Tokens, Row], Row]
    #: ``(tokens so far, logits row)`` -> stop here?
    StoppingCriteria: TypeAlias = Callable[[Tokens, Row], bool]
else:  # reading options, as the help of the command line does, needs no numpy
    LogitsProcessor = StoppingCriteria = Callable[..., Any]

#: What the texts of special tokens in user and tool messages may be: text, tokens, or an error.
SpecialTokens: TypeAlias = Literal["text", "parse", "refuse"]
ToolForm: TypeAlias = Literal["auto", "template", "hermes"]

Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

#: Types that the cells of a KV cache can have; their numbers are ``CACHE_TYPE_NUMBERS``.
CacheType: TypeAlias = Literal[
    "f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"
]
#: Those of ``ggml_type``. llama.cpp reads past its tables for a number that it has not got.
CACHE_TYPE_NUMBERS = (0, 1, 30, 8, 2, 3, 20, 6, 7)


#: JSON schemas of values that several options take.
TEXTS = {"type": ["string", "array"], "items": {"type": "string"}}
LIST_OF_OBJECTS = {"type": "array", "items": {"type": "object"}}


class CompilesToGrammar(Protocol):
    """A ``LlamaGrammar``."""

    def compile(self, vocab: Any) -> Any:
        """The rules, or a constraint, for the tokens of ``vocab``."""


class ChatPolicy(Protocol):
    """An ``OverflowPolicy``, such as ``TrimMessages()``."""

    @property
    def reserve(self) -> int:
        """Tokens to keep free for the reply."""

    def shorten(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]] | None:
        """The conversation with a little less in it; None if nothing more can go."""


def as_is(name: str, value: Any) -> Any:
    """Any value; who uses it checks it."""
    return value


# ---- sampling --------------------------------------------------------------------------------

#: Names that ``samplers`` takes, in the default order.
SAMPLER_NAMES = (
    "penalties",
    "dry",
    "top_n_sigma",
    "top_k",
    "typical_p",
    "top_p",
    "min_p",
    "xtc",
    "temperature",
)

_SAMPLER_ALIASES = {
    "typ_p": "typical_p",
    "typ": "typical_p",
    "typical": "typical_p",
    "nucleus": "top_p",
    "temp": "temperature",
}


#: Each step takes time at every token.
MAX_SAMPLERS = 64
#: llama.cpp compares each with every token of the vocabulary, and with the others, before a reply
#: begins: thousands take minutes.
MAX_BREAKERS = 64


def sampler_name(name: str) -> str:
    """The name of a sampler in any of llama.cpp's spellings."""
    name = name.strip().replace("-", "_")
    return _SAMPLER_ALIASES.get(name, name)


def read_samplers(name: str, value: Any) -> tuple[str, ...]:
    """Names in a list, or in one string with semicolons."""
    parts = [part for text in read_texts(name, value) for part in text.split(";")]
    if len(parts) > MAX_SAMPLERS:
        raise ParameterError(f"{name} has {len(parts)} steps; at most {MAX_SAMPLERS} are allowed")
    names = tuple(map(sampler_name, parts))
    for each in names:
        if each not in SAMPLER_NAMES:
            raise ParameterError(f"{name}: {each!r} is not one of {', '.join(SAMPLER_NAMES)}")
    return names


def read_breakers(name: str, value: Any) -> tuple[str, ...]:
    """Texts at which repetitions end, each once."""
    breakers = tuple(dict.fromkeys(read_texts(name, value)))
    if len(breakers) > MAX_BREAKERS:
        raise ParameterError(
            f"{name} has {len(breakers)} texts; at most {MAX_BREAKERS} are allowed"
        )
    for text in breakers:
        try:
            text.encode()
        except UnicodeEncodeError:
            problem = "has half of a character (a lone surrogate)"
            raise ParameterError(f"{name}: {shown(text)} {problem}; leave it out") from None
    return breakers


def read_bias(name: str, value: Any) -> dict[int, float]:
    """Token ids, as numbers or as text, to what is added to their logits."""
    check_kind(name, value, (Mapping,), "a dictionary")
    bias: dict[int, float] = {}
    for key, each in value.items():
        try:
            token = int(key) if isinstance(key, str) else key
        except ValueError:
            raise ParameterError(f"{name}: {shown(key)} is not a token id") from None
        check_number(f"{name}: token", token, 0, integer=True)
        added = -math.inf if each is False else each  # llama.cpp's way to forbid a token
        if isinstance(added, bool) or not isinstance(added, Real):
            raise ParameterTypeError(
                f"{name}[{shown(key)}]={shown(each)} must be a number, or False"
            )
        if not fits_a_float(added) and added != -math.inf:
            raise ParameterError(
                f"{name}[{shown(key)}]={shown(each)} must be a finite number, or -inf"
            )
        bias[int(token)] = float(added)
    return bias


# ---- calls -----------------------------------------------------------------------------------

#: Stop strings are compared at every token.
MAX_STOPS = 256


def read_stops(name: str, value: Any) -> tuple[str, ...]:
    """Stop strings, each once."""
    stops = read_texts(name, value)
    if len(stops) > MAX_STOPS:
        raise ParameterError(f"{name} has {len(stops)} strings; at most {MAX_STOPS} are allowed")
    if "" in stops:
        raise ParameterError(f"{name}: the empty string would end every reply at once")
    return tuple(dict.fromkeys(stops))


def read_token_ids(name: str, value: Any) -> frozenset[int]:
    """A set of token ids, in any collection."""
    check_kind(name, value, (list, tuple, set, frozenset), "a list of token ids")
    for token in value:
        check_number(name, token, 0, integer=True)
    return frozenset(value)


_STREAM_OPTIONS = ("include_usage", "include_obfuscation")


def read_stream_options(name: str, value: Any) -> dict[str, bool]:
    """OpenAI's ``stream_options``."""
    check_kind(name, value, (Mapping,), "a dictionary")
    unknown = sorted(str(key) for key in value if key not in _STREAM_OPTIONS)
    if unknown:
        raise ParameterError(f"{name} has no member {unknown[0]!r}; allowed: include_usage")
    include = value.get("include_usage", False)
    if not isinstance(include, bool):
        raise ParameterTypeError(f"{name}.include_usage must be a bool, not {shown(include)}")
    return {"include_usage": include}


def read_policy(name: str, value: Any) -> Any:
    """An overflow policy."""
    whole = hasattr(value, "shorten") and hasattr(value, "reserve")
    if value is not None and (isinstance(value, type) or not whole):
        raise ParameterTypeError(
            f"{name}={shown(value)} is not an overflow policy (shorten() and reserve); pass "
            "TrimMessages(), or None"
        )
    return value


# ---- loading ---------------------------------------------------------------------------------


def read_path(name: str, value: Any) -> str:
    """The path of a file or directory, as text; ``~`` is the home directory."""
    check_kind(name, value, (str, os.PathLike), "a path")
    path = os.fspath(value)
    if not isinstance(path, str):
        raise ParameterTypeError(f"{name} must be a path of text, not {described(path)}")
    path = read_string(name, path)
    if not path.startswith("~") or os.path.lexists(path):
        return path
    try:
        return str(Path(path).expanduser())
    except RuntimeError:  # there is no such user
        return path


def read_folders(name: str, value: Any) -> tuple[str, ...]:
    """Folders, as absolute paths: what the current one is may change."""
    if isinstance(value, (str, bytes, os.PathLike)) or not isinstance(value, Sequence):
        raise ParameterTypeError(f"{name} must be a list of folders, not {described(value)}")
    return tuple(str(Path(read_path(name, each)).absolute()) for each in value)


def read_projector_path(name: str, value: Any) -> str | None:
    """A projector's file, "auto", or None.

    Raises:
        ModelNotFoundError, InvalidModelError: there is no such file, or it is something else.
    """
    if value is None or value == "auto":
        return value  # type: ignore[no-any-return]
    return _existing(read_path(name, value), "projector", "")


def read_adapter_path(name: str, value: Any) -> str:
    """The path of a LoRA adapter, which is there."""
    return _existing(read_path(name, value), "LoRA adapter", f"{name}: ")


def _existing(path: str, noun: str, where: str) -> str:
    if problem := why_no_file(path, noun):
        error = InvalidModelError if Path(path).exists() else ModelNotFoundError
        raise error(f"{where}{problem}")
    return path


def read_devices(name: str, value: Any) -> tuple[str, ...]:
    """Names in a list, or in one string with commas; "none" is none."""
    texts = [part.strip() for text in read_texts(name, value) for part in text.split(",")]
    return tuple(dict.fromkeys(text for text in texts if text not in ("", "none")))


def read_placed(name: str, value: Any) -> dict[str, str]:
    """Regular expressions to devices: a dictionary, or text as ``REGEX=DEVICE,REGEX=DEVICE``."""
    if isinstance(value, str):
        pairs = [each.rpartition("=") for each in value.split(",") if each]
        if not all(pattern for pattern, _, _ in pairs):
            raise ParameterError(f"{name}={shown(value)}: expected REGEX=DEVICE")
        value = {pattern: device for pattern, _, device in pairs}
    check_kind(name, value, (Mapping,), "a dictionary")
    for pattern, device in value.items():
        if not isinstance(pattern, str) or not isinstance(device, str):
            raise ParameterTypeError(f"{name}: {shown(pattern)}: {shown(device)} must be texts")
        try:
            re.compile(pattern)
        except re.error as error:
            raise ParameterError(
                f"{name}: {shown(pattern)} is not a regular expression: {error}"
            ) from None
    return dict(value)


def read_cpu_moe(name: str, value: Any) -> int:
    """How many layers keep their experts in RAM: all of them, none, or a number."""
    if isinstance(value, str) and value in ("on", "off", "true", "false"):
        value = value in ("on", "true")
    if is_bool(value):
        return -1 if value else 0
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,9}", value):
        value = int(value)
    check_number(name, value, -1, 512, integer=True)
    return int(value)


def read_shares(name: str, value: Any) -> tuple[float, ...]:
    """A share for each GPU."""
    if isinstance(value, str):
        try:
            value = [float(each) for each in value.replace("/", ",").split(",")]
        except ValueError:
            raise ParameterError(f"{name}={shown(value)} must be numbers with commas") from None
    if not isinstance(value, (list, tuple)) and not hasattr(value, "__array__"):
        raise ParameterTypeError(f"{name} must be a list of numbers, not {described(value)}")
    for share in value:
        check_number(name, share, 0)
    return tuple(value)


def read_overrides(name: str, value: Any) -> Mapping[str, bool | int | float | str]:
    """Metadata values in place of those of the file; at most 127 bytes of key and of text."""
    check_kind(name, value, (Mapping,), "a dictionary")
    read: dict[str, bool | int | float | str] = {}
    for key, each in value.items():
        key = whole_text(key, f"{name}: key") if isinstance(key, str) else key
        each = whole_text(each, f"{name}[{key!r}]") if isinstance(each, str) else each
        if not isinstance(key, str) or len(key.encode()) > 127:
            raise ParameterError(f"{name}: key {key!r} must be a string of at most 127 bytes")
        if not isinstance(each, (bool, int, float, str)):
            raise ParameterTypeError(
                f"{name}[{key!r}] must be a bool, int, float or str, not {type(each).__name__}"
            )
        if type(each) is int and not -(2**63) <= each < 2**63:
            raise ParameterError(f"{name}[{key!r}]={each} does not fit into 64 bits")
        if isinstance(each, str) and len(each.encode()) > 127:
            raise ParameterError(f"{name}[{key!r}] is longer than 127 bytes")
        read[key] = each
    return read


def read_layers(name: str, value: Any) -> int:
    """How many layers a GPU gets; "auto" is -1."""
    if value == "auto":
        return -1
    check_number(name, value, -1, 2**31 - 1, integer=True)
    return int(value)


def read_flash(name: str, value: Any) -> bool | None:
    """True, False, or "auto", which is None."""
    if value is None or value == "auto":
        return None
    if isinstance(value, str):
        raise ParameterError(f'{name}={shown(value)}: expected True, False or "auto"')
    check_bool(name, value)
    return bool(value)


def read_numa(name: str, value: Any) -> int:
    """A strategy by its number; True is the first one, False is none."""
    if is_bool(value):
        return int(value)
    check_number(name, value, 0, 4, integer=True)
    return int(value)


def read_tokenizer(name: str, value: Any) -> Any:
    """An object that tokenizes in place of the vocabulary."""
    if not hasattr(value, "tokenize"):
        raise ParameterTypeError(f"{name}={shown(value)} has no method tokenize()")
    return value


def unavailable(why: str) -> Callable[[str, Any], Any]:
    """A reader of an option that exists elsewhere, and not here."""

    def read(name: str, value: Any) -> Any:
        if value is None or value is False:
            return value
        raise ParameterError(f"{name}: {why}")

    return read
