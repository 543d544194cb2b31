"""Which arguments of ``Llama`` a model of the server may have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from llama_py.errors import ParameterTypeError, UnknownParameterError
from llama_py.options import LOAD, Option
from llama_py.options.checks import refuse_unknown
from llama_py.options.drafters import DraftModel, as_speculative, read_speculative
from llama_py.options.marks import Flag

__all__ = ["MODEL_FLAGS", "MODEL_OPTIONS", "check_model_options", "no_such", "option_files"]

#: Objects of Python, what is not available, and what makes no sense in a server.
_NOT_HERE = frozenset(
    {"progress", "chat_handler", "tokenizer", "overflow", "draft_model", "lora_base", "embedding"}
    | {"in_place", "vocab_only", "logits_all", "prefix_cache_slots"}
)
#: Arguments of ``Llama`` that a model of the server may have.
MODEL_OPTIONS: Mapping[str, Option] = {
    option.name: option for option in LOAD if option.name not in _NOT_HERE
}
#: Those with a flag and an environment variable, which hold for every model.
MODEL_FLAGS: Mapping[str, Flag] = {
    name: flag
    for name, option in MODEL_OPTIONS.items()
    if (flag := option.mark(Flag)) is not None and name != "verbose"
} | {
    "n_seq_max": Flag(
        "-np", "--parallel", metavar="N", help="conversations in memory (default: 8)"
    ),
    "lora_path": Flag("--lora", metavar="FILE", help="a LoRA adapter in a GGUF file"),
}


def check_model_options(given: Mapping[str, Any]) -> None:
    """Check arguments of ``Llama``.

    Raises:
        UnknownParameterError: one of them does not exist, or not for a server.
        ParameterError: a value is not allowed.
    """
    if not isinstance(given, Mapping):
        raise ParameterTypeError("options must be a dictionary of arguments of Llama")
    for name in given:
        if name not in MODEL_OPTIONS:
            raise no_such("option of a model", name, MODEL_OPTIONS)
    LOAD.read(given)


def option_files(given: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The files that checked arguments of ``Llama`` name: the argument, and the path."""
    files = []
    if (lora := given.get("lora_path")) is not None:
        files.append(("lora_path", str(lora)))
    if (drafting := given.get("speculative")) is not None:
        speculative = as_speculative(read_speculative("speculative", drafting))
        for each in speculative.drafters if speculative is not None else ():
            if isinstance(each, DraftModel):
                files.append(("speculative", each.path))
    return files


def no_such(what: str, name: str, known: Iterable[str]) -> UnknownParameterError:
    """The error for a name that is not known; it suggests the nearest one that is."""
    text = str(refuse_unknown("", name, known)).removeprefix("() has no parameter ")
    return UnknownParameterError(f"there is no {what} {text}")
