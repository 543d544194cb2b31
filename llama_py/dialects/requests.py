"""Turns the options of completions and chats into engine requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llama_py.chat.constraints import CompiledGrammar, LlamaGrammar
from llama_py.chat.reasoning import NO_REASONING, Reasoning
from llama_py.dialects.context import CallContext
from llama_py.dialects.openai.encode import ResponseHead
from llama_py.engine.request import GenerationRequest, Prompt
from llama_py.errors import ParameterError, ParameterTypeError
from llama_py.options import ChatOptions, CompletionOptions, CriteriaOptions
from llama_py.options.checks import check_bool
from llama_py.options.drafters import Speculative, as_speculative
from llama_py.params import GenerationParams, GrammarSpec, SamplingParams

__all__ = ["RequestSettings", "read_grammar", "read_head", "read_settings"]


def read_head(
    options: CompletionOptions | ChatOptions, stream: bool | None, context: CallContext, prefix: str
) -> ResponseHead:
    """The fields that are the same in every chunk of the response.

    Raises:
        ParameterError: there are options for a stream, and there is none.
    """
    check_bool("stream", bool(stream) if stream is None else stream)
    of_stream = options.get("stream_options")
    if of_stream is not None and not stream:
        raise ParameterError("stream_options is given, but stream is not True")
    usage = bool(of_stream and of_stream["include_usage"])
    return ResponseHead(options.get("model") or context.model_path, prefix, bool(stream), usage)


def read_grammar(
    options: CriteriaOptions, context: CallContext, reasoning: Reasoning = NO_REASONING
) -> CompiledGrammar:
    """The grammar of a call: a ``LlamaGrammar``, GBNF text, or a ``GrammarSpec``.

    Args:
        reasoning: what may come before the text that the grammar is for, and is free.
    """
    grammar: object = options.get("grammar")
    if grammar is None or isinstance(grammar, GrammarSpec):
        return CompiledGrammar(grammar and reasoning.framed(grammar))
    if isinstance(grammar, str):
        grammar = LlamaGrammar.from_string(grammar)
    if isinstance(grammar, LlamaGrammar):
        return grammar.compile(context.vocab, reasoning=reasoning)
    raise ParameterTypeError(
        f"grammar must be a LlamaGrammar or GBNF text, not {type(grammar).__name__}"
    )


@dataclass(slots=True)
class RequestSettings:
    """The settings that all requests of one call share."""

    sampling: SamplingParams
    generation: GenerationParams
    session: str | None
    priority: int
    on_progress: Callable[[int, int], Any] | None
    visible: frozenset[int] = frozenset()
    speculative: Speculative | None = None
    reuse: bool = True

    def requests(self, prompts: Sequence[Prompt], per_prompt: int) -> list[GenerationRequest]:
        """One request for each choice; only the first one is the session's conversation."""
        many = len(prompts) > 1
        return [
            GenerationRequest(
                prompt,
                self.sampling,
                self.generation,
                session=None if many or number else self.session,
                priority=self.priority,
                choice=index * per_prompt + number,
                visible=self.visible,
                on_progress=self.on_progress,
                speculative=self.speculative,
                reuse=self.reuse,
            )
            for index, prompt in enumerate(prompts)
            for number in range(per_prompt)
        ]


def read_settings(
    options: CompletionOptions | ChatOptions, sampling: SamplingParams, generation: GenerationParams
) -> RequestSettings:
    """Settings with what the remaining options say."""
    return RequestSettings(
        sampling,
        generation,
        options.get("session_id") or options.get("user") or None,
        options.get("priority") or 0,
        options.get("on_progress"),
        speculative=as_speculative(options.get("speculative")),  # type: ignore[arg-type]
        reuse=options.get("reuse") is not False,
    )
