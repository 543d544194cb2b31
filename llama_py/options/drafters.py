"""Speculative decoding as callers ask for it: drafters, and ``Speculative``, which collects them.

A drafter guesses the tokens that come next. The engine evaluates its guess together with the last
token, in one step, and keeps what the model would have said itself: drafts change how fast a reply
comes, and never what it says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from llama_py.errors import ParameterError, ParameterTypeError, shown
from llama_py.options.checks import check_bool, check_number
from llama_py.options.lookup import LONGEST_MATCH, followed, renamed
from llama_py.options.values import read_path

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "MAX_DRAFT",
    "MTP",
    "DraftModel",
    "Drafter",
    "PromptLookup",
    "Speculative",
    "as_speculative",
    "read_call_speculative",
    "read_speculative",
]


class Drafter(Protocol):
    """The form of a drafter: any function like this.

    It is called in the engine's thread, so it must be quick. One that raises, or returns something
    else than tokens, is not asked again for that reply, which goes on without it.
    """

    def __call__(self, tokens: NDArray[np.intc], /) -> Sequence[int] | NDArray[np.intc]:
        """The tokens that may follow; nothing where it has no guess.

        Args:
            tokens: prompt and reply so far, int32 ``(n,)``, which cannot be written to.
        """


#: Most tokens of one draft.
MAX_DRAFT = 64


@dataclass(frozen=True, slots=True)
class PromptLookup:
    """Drafts what followed the last tokens where they occurred before, in the prompt or the reply.

    It needs no model and takes microseconds. It pays where a reply repeats its prompt: editing,
    correcting, quoting, extracting, calling tools. Where a reply differs in a few tokens from what
    it repeats, the draft goes on behind them; a token that became another one is expected to do so
    again.

    Attributes:
        ngram: how many of the last tokens must have occurred before.
        n_draft: most tokens to draft.

    Raises:
        ParameterError: a number is out of range.
    """

    ngram: int = 3
    n_draft: int = 15

    def __post_init__(self) -> None:
        check_number("ngram", self.ngram, 1, LONGEST_MATCH, integer=True)
        check_number("n_draft", self.n_draft, 0, MAX_DRAFT, integer=True)

    def __call__(self, tokens: NDArray[np.intc], /) -> Sequence[int]:
        """The tokens that may follow ``tokens``, int32 ``(n,)``."""
        start = followed(tokens, self.ngram)
        if start is None:
            return ()
        period = len(tokens) - start
        if period >= self.n_draft:
            return renamed(tokens, start, self.n_draft)
        # The text repeats itself with this period: it may go on doing so.
        return [int(tokens[start + index % period]) for index in range(self.n_draft)]


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A small model that drafts for the one that is loaded: one of the same family, as a rule.

    It is loaded beside that one, with a context of the same size.

    Attributes:
        path: its GGUF file.
        n_draft: most tokens to draft.
        p_min: a draft ends before a token that the draft model finds less probable than this.
        n_gpu_layers: layers on the GPU; -1 is all of them.

    Raises:
        ParameterError: a number is out of range.
    """

    path: str
    n_draft: int = 4
    p_min: float = 0.0
    n_gpu_layers: int = -1

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", read_path("path", self.path))
        check_number("n_draft", self.n_draft, 1, MAX_DRAFT, integer=True)
        check_number("p_min", self.p_min, 0.0, 1.0)
        check_number("n_gpu_layers", self.n_gpu_layers, -1, 2**31 - 1, integer=True)


@dataclass(frozen=True, slots=True)
class MTP:
    """The model drafts for itself, with the next-token heads that some models have.

    They are loaded with the model, and get a context of their own. Where there are several, the
    first one drafts.

    Attributes:
        n_draft: most tokens to draft.
        p_min: a draft ends before a token that the head finds less probable than this.

    Raises:
        ParameterError: a number is out of range.
    """

    n_draft: int = 3
    p_min: float = 0.0

    def __post_init__(self) -> None:
        check_number("n_draft", self.n_draft, 1, MAX_DRAFT, integer=True)
        check_number("p_min", self.p_min, 0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Speculative:
    """The drafter, and when it is asked.

    Attributes:
        drafters: asked in turn; the first draft that is not empty counts. Without any, nothing is
            drafted.
        adaptive: draft only where that pays, measured by how many tokens are accepted and by what
            a step with more rows costs on this machine; False drafts whenever there is a guess.
        exact: steps have at least two rows, so that a stream that is alone on a CPU computes the
            same bits with drafts and without. It costs up to as much as a second stream.

    Raises:
        ParameterTypeError: something else than a function was given as a drafter.
        ParameterError: the model's own heads were given twice.
    """

    drafters: tuple[Drafter | DraftModel | MTP, ...] = ()
    adaptive: bool = True
    exact: bool = False

    def __post_init__(self) -> None:
        drafters: Any = self.drafters
        if callable(drafters) or isinstance(drafters, (DraftModel, MTP)):
            drafters = (drafters,)
        object.__setattr__(self, "drafters", tuple(drafters))
        for each in self.drafters:
            known = callable(each) or isinstance(each, (DraftModel, MTP))
            if not known or isinstance(each, type):
                raise ParameterTypeError(
                    f"speculative: {shown(each)} is no drafter; pass PromptLookup(), or a function "
                    "from the tokens so far to those that may follow"
                )
        if sum(isinstance(each, MTP) for each in self.drafters) > 1:
            raise ParameterError("speculative: MTP() was given twice; pass one of them")
        check_bool("adaptive", self.adaptive)
        check_bool("exact", self.exact)

    @property
    def needs_heads(self) -> bool:
        """Whether the model's next-token heads are needed."""
        return any(isinstance(each, MTP) for each in self.drafters)


#: What may be given in place of objects, on a command line for example.
_NAMES: dict[str, tuple[Drafter | MTP, ...]] = {
    "lookup": (PromptLookup(),),
    "mtp": (MTP(),),
    "off": (),
}
#: ... and the beginning of the name of a draft model.
_DRAFT = "draft="


def as_speculative(value: Speculative | str | None) -> Speculative | None:
    """The result of ``read_speculative`` as an object."""
    if not isinstance(value, str):
        return value
    if value.startswith(_DRAFT):
        return Speculative((DraftModel(value.removeprefix(_DRAFT)),))
    return Speculative(_NAMES[value])


def read_speculative(name: str, value: Any) -> Speculative | str:
    """A ``Speculative``, a drafter, a list of them, ``"lookup"``, ``"draft=FILE"``, ``"mtp"``, or
    False for none.

    A name is returned as it is, for who writes it into a file.

    Raises:
        ParameterError: it is none of these.
    """
    if isinstance(value, Speculative):
        return value
    if isinstance(value, bool):
        return Speculative(_NAMES["lookup"] if value else ())
    if isinstance(value, str):
        if value not in _NAMES and not value.startswith(_DRAFT):
            expected = ", ".join(f'"{each}"' for each in (*_NAMES, "draft=FILE"))
            raise ParameterError(f"{name}={shown(value)}: expected one of {expected}, or a drafter")
        return value
    if callable(value) or isinstance(value, (list, tuple, DraftModel, MTP)):
        return Speculative(value)
    raise ParameterTypeError(
        f"{name}={shown(value)}: expected PromptLookup(), another drafter, or a list of them"
    )


def read_call_speculative(name: str, value: Any) -> Speculative | str:
    """The same for a call, which cannot load a model.

    Raises:
        ParameterError: it is none of these, or has a draft model or next-token heads.
    """
    read = read_speculative(name, value)
    speculative = as_speculative(read)
    drafters = speculative.drafters if speculative is not None else ()
    if any(isinstance(each, DraftModel) for each in drafters):
        raise ParameterError(
            f"{name}: a draft model is loaded with the model that it drafts for; pass it to Llama, "
            "and nothing to calls"
        )
    if any(isinstance(each, MTP) for each in drafters):
        raise ParameterError(
            f"{name}: next-token heads are loaded with their model; pass MTP() to Llama, and "
            "nothing to calls"
        )
    return read
