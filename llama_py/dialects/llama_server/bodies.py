"""The bodies of llama-server's ``/completion`` and ``/infill`` to ``WireCall``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llama_py.chat.vocab import VocabLike
from llama_py.dialects.context import CallContext
from llama_py.dialects.failures import Kind, RequestError
from llama_py.dialects.known_fields import Dialect, ours
from llama_py.dialects.limits import RequestLimits
from llama_py.dialects.llama_server.infill import infill_prompt
from llama_py.dialects.llama_server.line_limits import LineLimit
from llama_py.dialects.llama_server.options import (
    described,
    read_native_sampling,
    read_number,
    read_stop_texts,
)
from llama_py.dialects.llama_server.wire import NativeReply, Shape
from llama_py.dialects.media_parts import MarkedPrompt, prompt_with_media
from llama_py.dialects.openai.bodies import placed
from llama_py.dialects.requests import read_generation
from llama_py.dialects.token_texts import as_bool, mixed_tokens, read_prompts
from llama_py.dialects.wire import WireCall, WireReply
from llama_py.engine.request import GenerationRequest, Prompt, Record
from llama_py.errors import ParameterError, ParameterTypeError, shown
from llama_py.options import COMPLETION
from llama_py.params import GenerationParams

__all__ = ["read_infill", "read_native", "slot_session"]


def slot_session(body: Mapping[str, Any]) -> str | None:
    """The session that ``id_slot`` stands for, or None.

    Clients of llama-server pin a conversation to a slot so that it stays there. Here conversations
    are found by what they begin with, wherever they are; a number is as good a name as any.
    """
    slot = read_number(body, "id_slot", low=-1, default=-1)
    return f"slot-{slot}" if slot >= 0 else None


def read_native(
    context: CallContext,
    body: Mapping[str, Any],
    limits: RequestLimits,
    model: str,
    session: str | None = None,
    *,
    expose_prompt: bool = False,
) -> WireCall:
    """The body of ``/completion``. Fields that no server knows mean nothing (``known_fields``).

    Args:
        model: the name that the reply gives.
        session: the conversation that it belongs to, or None.
        expose_prompt: the reply contains its prompt.

    Raises:
        RequestError, ParameterError: a field is wrong; the message names it and what is allowed.
        MediaError: a picture or sound cannot be used.
        GrammarError: ``grammar`` or ``json_schema`` cannot be enforced.
    """
    if body.get("prompt") is None:
        raise RequestError(Kind.MISSING, "the field 'prompt' is missing", "prompt")
    given = ours(Dialect.NATIVE, body, limits)
    with placed(body), given.named():
        body = given.fields
        fresh = not as_bool(body, "cache_prompt", True)
        texts = read_prompts(body["prompt"], limits.max_prompts)
        prompts = [_prompt(context, each, fresh=fresh) for each in texts]
        return _call(context, body, limits, _Asker(model, session, expose_prompt), prompts)


def read_infill(
    context: CallContext,
    body: Mapping[str, Any],
    limits: RequestLimits,
    model: str,
    session: str | None = None,
    *,
    room: int,
    expose_prompt: bool = False,
) -> WireCall:
    """The body of ``/infill``; see ``read_native``.

    Args:
        room: tokens that prompt and reply may have together.
    """
    given = ours(Dialect.NATIVE, body, limits)
    with placed(body), given.named():
        body = given.fields
        wanted = read_number(body, "n_predict", low=-1, default=-1)
        prompt = Prompt(tokens=infill_prompt(context, body, max(1, room - max(1, wanted))))
        return _call(context, body, limits, _Asker(model, session, expose_prompt), [prompt])


def _prompt(context: CallContext, value: str | list[Any] | MarkedPrompt, *, fresh: bool) -> Prompt:
    """``fresh``: with tokens of its own, also where a cached reply has others for the same text."""
    vocab = context.vocab
    if isinstance(value, MarkedPrompt):
        return prompt_with_media(context, value)
    if isinstance(value, str) and value and not fresh:
        return Prompt(text=value.encode())
    tokens = mixed_tokens(vocab, "prompt", value, add_special=True, parse_special=True)
    if not tokens and vocab.bos < 0:
        raise ParameterError("prompt is empty, and this model has no BOS token to begin with")
    return Prompt(tokens=tokens or [vocab.bos])


@dataclass(frozen=True, slots=True)
class _Asker:
    """The caller, and the model that is asked.

    Attributes:
        model: the name that replies give.
        session: the conversation, or None.
        sees_prompt: the reply contains the prompt.
    """

    model: str
    session: str | None
    sees_prompt: bool


def _call(
    context: CallContext,
    body: Mapping[str, Any],
    limits: RequestLimits,
    asker: _Asker,
    prompts: Sequence[Prompt],
) -> WireCall:
    _refuse_what_is_not_there(body)
    base = GenerationRequest(
        prompts[0],
        read_native_sampling(context, body),
        _generation(context, body, limits),
        priority=read_number(body, "priority", low=-(2**31), default=0),
        reuse=as_bool(body, "cache_prompt", True),
    )
    choices = read_number(body, "n_cmpl", low=1, default=1)
    if choices > limits.max_choices:
        raise ParameterError(
            f"n_cmpl={choices} is out of range: allowed is 1 to {limits.max_choices}"
        )
    ends = _line_limits(context.vocab, body, len(prompts) * choices)
    shape = _shape(body, base, asker, context.vocab.eog_tokens())

    def encoder(records: Sequence[Record]) -> WireReply:
        return NativeReply(shape, records, context.vocab, ends)

    requests = []
    for i, end in enumerate(ends):
        request = replace(base, prompt=prompts[i // choices], choice=i)
        if end is not None:
            limited = replace(base.generation, stopping_criteria=(end,))
            request = replace(request, generation=limited)
        requests.append(request)
    if len(prompts) == 1:  # of several replies to it, the first one is the conversation
        requests[0] = replace(requests[0], session=asker.session)
    return WireCall(requests, shape.stream, encoder, as_bool(body, "return_progress", False))


def _shape(
    body: Mapping[str, Any], request: GenerationRequest, asker: _Asker, ends: Sequence[int]
) -> Shape:
    stream = as_bool(body, "stream", False)
    return_tokens = as_bool(body, "return_tokens", False)
    timings = as_bool(body, "timings_per_token", False)
    fields = [] if body.get("response_fields") is None else body["response_fields"]
    if not isinstance(fields, list) or not all(isinstance(each, str) for each in fields):
        raise ParameterTypeError(f"response_fields must be a list of strings, not {shown(fields)}")
    return Shape(
        asker.model,
        described(request.sampling, request.generation, stream, ends),
        stream=stream,
        return_tokens=return_tokens,
        timings=timings,
        fields=tuple(fields),
        slot=read_number(body, "id_slot", low=-1, default=-1),
        indentation=read_number(body, "n_indent", low=0, default=0),
        expose_prompt=asker.sees_prompt,
    )


def _refuse_what_is_not_there(body: Mapping[str, Any]) -> None:
    """Options that would silently give another reply, or other numbers, than was asked for."""
    if as_bool(body, "post_sampling_probs", False):
        raise RequestError(
            Kind.NOT_IMPLEMENTED,
            "post_sampling_probs is not supported; leave it out for the model's own probabilities",
            "post_sampling_probs",
        )
    if body.get("lora"):
        raise RequestError(
            Kind.NOT_IMPLEMENTED,
            "lora: requests cannot change the adapters; load a second model with other scales",
            "lora",
        )


def _generation(
    context: CallContext, body: Mapping[str, Any], limits: RequestLimits
) -> GenerationParams:
    most = read_number(body, "n_predict", low=-1, default=-1)
    limits.check_biases(body)
    probs = read_number(body, "n_probs", "logprobs", low=0, default=0)
    if probs > limits.max_top_logprobs:
        raise ParameterError(
            f"n_probs={probs} is out of range: allowed is 0 to {limits.max_top_logprobs}"
        )
    names = [
        name for name in ("min_tokens", "stop_token_ids", "timeout") if body.get(name) is not None
    ]
    options = COMPLETION.read({name: body[name] for name in names})
    return replace(
        read_generation(
            options,
            context,
            max_tokens=None if most < 0 else most,
            logprobs=probs or None,
        ),
        stop=read_stop_texts(body, limits.max_stops),
        ignore_eos=as_bool(body, "ignore_eos", False),
    )


def _line_limits(vocab: VocabLike, body: Mapping[str, Any], count: int) -> list[LineLimit | None]:
    """One for each request, if there is something for it to do."""
    milliseconds = read_number(body, "t_max_predict_ms", low=-1, default=0)
    indentation = read_number(body, "n_indent", low=0, default=0)
    if milliseconds <= 0 and not indentation:
        return [None] * count
    seconds = max(0, milliseconds) / 1e3
    return [LineLimit(vocab.plain_piece, seconds, indentation) for _ in range(count)]
