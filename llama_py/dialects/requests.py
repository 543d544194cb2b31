"""The options of a call to engine requests, in every dialect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from llama_py.dialects.context import CallContext
from llama_py.engine.request import GenerationRequest, Prompt
from llama_py.errors import ParameterTypeError
from llama_py.options import ChatOptions, CompletionOptions, CriteriaOptions
from llama_py.options.drafters import as_speculative
from llama_py.params import GenerationParams, GrammarSpec, SamplingParams

if TYPE_CHECKING:
    from llama_py.chat.constraints import CompiledGrammar
    from llama_py.chat.reasoning import Reasoning

__all__ = ["NO_PROMPT", "read_grammar", "read_request", "requests_of"]

#: Of a request whose prompt is not known yet.
NO_PROMPT = Prompt(b"")


def read_grammar(
    options: CriteriaOptions, context: CallContext, reasoning: Reasoning | None = None
) -> CompiledGrammar | None:
    """The grammar of a call: a ``LlamaGrammar``, GBNF text, or a ``GrammarSpec``; None without one.

    Args:
        reasoning: what may come before the text that the grammar is for, and is free.
    """
    grammar: object = options.get("grammar")
    if grammar is None:
        return None
    # Not before one is given: api/opening.py says why.
    from llama_py.chat.constraints import CompiledGrammar, LlamaGrammar
    from llama_py.chat.reasoning import NO_REASONING

    reasoning = reasoning or NO_REASONING
    if isinstance(grammar, GrammarSpec):
        return CompiledGrammar(reasoning.framed(grammar))
    if isinstance(grammar, str):
        grammar = LlamaGrammar.from_string(grammar)
    if isinstance(grammar, LlamaGrammar):
        return grammar.compile(context.vocab, reasoning=reasoning)
    raise ParameterTypeError(
        f"grammar must be a LlamaGrammar or GBNF text, not {type(grammar).__name__}"
    )


def read_request(
    options: CompletionOptions | ChatOptions, sampling: SamplingParams, generation: GenerationParams
) -> GenerationRequest:
    """A request with what the remaining options say, and no prompt."""
    speculative: Any = options.get("speculative")
    return GenerationRequest(
        NO_PROMPT,
        sampling,
        generation,
        session=options.get("session_id") or options.get("user") or None,
        priority=options.get("priority") or 0,
        on_progress=options.get("on_progress"),
        speculative=None if speculative is None else as_speculative(speculative),
        reuse=options.get("reuse") is not False,
    )


def requests_of(
    wanted: GenerationRequest, prompts: Sequence[Prompt], per_prompt: int
) -> list[GenerationRequest]:
    """One request for each choice; only the first one is the session's conversation."""
    many = len(prompts) > 1
    return [
        replace(
            wanted,
            prompt=prompt,
            session=None if many or number else wanted.session,
            choice=index * per_prompt + number,
        )
        for index, prompt in enumerate(prompts)
        for number in range(per_prompt)
    ]
