"""What is done for a request before the engine gets it, in the thread of whoever asks.

Compiling a grammar, tokenizing a long prompt and feeding it to the penalties may take long. None of
it touches the context, so that other streams go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

from llama_py.core.sampling.sampler import Sampler
from llama_py.core.vocab import Vocab
from llama_py.engine.clock import Clock
from llama_py.engine.generation import Generation
from llama_py.engine.request import GenerationRequest, Record
from llama_py.memory.cache import SequenceCache
from llama_py.memory.sequences import ResolvedPrompt

__all__ = ["prepare", "resolve"]


def prepare(
    requests: Sequence[GenerationRequest],
    cache: SequenceCache,
    vocab: Vocab,
    resolved_at: int,
    clock: Clock,
) -> list[Generation]:
    """Find the tokens of the prompts and make the samplers: of all requests, or of none.

    Args:
        resolved_at: how many requests had ended before the cache was looked at.
        clock: says when they were submitted.

    Raises:
        ContextOverflowError: a prompt does not fit.
        GrammarError, ParameterError, TokenizationError: a sampler or a prompt cannot be made.
    """
    prepared: list[Generation] = []
    try:
        for request in requests:
            sampler = Sampler(vocab, request.sampling, (), request.choice, longest=cache.limit)
            before = prepared[-1] if prepared else None
            try:
                if before is not None and before.request.prompt is request.prompt:
                    prompt = before.prompt  # another choice of the same prompt
                else:
                    prompt = resolve(request, cache, vocab)
                record = Record(request, prompt.tokens.tolist(), submitted=clock())
                running = Generation(request, record, prompt, sampler, resolved_at)
                begin_sampler(running)
            except BaseException:
                sampler.close()
                raise
            prepared.append(running)
    except BaseException:
        for running in prepared:
            running.sampler.close()
        raise
    return prepared


def resolve(request: GenerationRequest, cache: SequenceCache, vocab: Vocab) -> ResolvedPrompt:
    """The tokens of a prompt, those of cached replies in its text among them."""
    prompt = request.prompt
    if prompt.tokens is None:
        return cache.resolve_text(
            prompt.text or b"",
            prompt.boundaries,
            plain=prompt.plain,
            add_special=prompt.add_special,
            namespace=request.namespace,
            fresh=not request.reuse,
            media=prompt.text_media if prompt.media else (),
        )
    if not request.targets:  # which are thousands that begin alike, checked by whoever made them
        vocab.check_tokens(prompt.tokens)
    return cache.resolve_tokens(prompt.tokens, namespace=request.namespace)


def begin_sampler(running: Generation) -> None:
    """Show the prompt to penalties and processors."""
    if running.sampler.remembers:
        running.sampler.begin([token for token in running.record.tokens if token >= 0])
