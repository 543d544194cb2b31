"""What the parsing of completions and of chats has in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llama_py.chat.grammar import CompiledGrammar, LlamaGrammar
from llama_py.dialects.arguments import Arguments
from llama_py.dialects.context import CallContext
from llama_py.dialects.encode import ResponseHead
from llama_py.dialects.sampling import GENERATION_PARAMETERS, SAMPLING_PARAMETERS
from llama_py.engine.request import GenerationRequest, Prompt
from llama_py.errors import ParameterError, ParameterTypeError, shown
from llama_py.params import GenerationParams, GrammarSpec, SamplingParams

__all__ = [
    "MAX_CHOICES",
    "SHARED_PARAMETERS",
    "Plan",
    "make_plan",
    "read_choices",
    "read_grammar",
    "read_head",
    "read_max_tokens",
]

#: ``metadata``, ``service_tier`` and ``store`` are about OpenAI's own service: clients send them,
#: and nothing comes of them here.
SHARED_PARAMETERS = (
    SAMPLING_PARAMETERS
    | GENERATION_PARAMETERS
    | {
        "grammar",
        "logprobs",
        "metadata",
        "model",
        "n",
        "on_progress",
        "priority",
        "service_tier",
        "session_id",
        "store",
        "stream",
        "stream_options",
        "user",
    }
)

#: Most replies to generate for one prompt, and most prompts in one call.
MAX_CHOICES = 128


def read_head(arguments: Arguments, context: CallContext, prefix: str) -> ResponseHead:
    stream = arguments.flag("stream")
    options = arguments.mapping("stream_options")
    if options is not None and not stream:
        raise ParameterError("stream_options is given, but stream is not True")
    unknown = set(options or ()) - {"include_usage", "include_obfuscation"}
    if unknown:
        raise ParameterError(
            f"stream_options has no member {sorted(map(str, unknown))[0]!r}; allowed: include_usage"
        )
    include = (options or {}).get("include_usage", False)
    if not isinstance(include, bool):
        raise ParameterTypeError(
            f"stream_options.include_usage must be a bool, not {shown(include)}"
        )
    model = arguments.text("model") or context.model_path
    return ResponseHead(model, prefix, stream, include)


def read_max_tokens(arguments: Arguments, name: str, absent: int | None) -> int | None:
    """None, 0 and less are "as many as there is room for"."""
    if not arguments.given(name):
        return absent
    value = arguments.integer(name)
    return value if value is not None and value > 0 else None


def read_choices(arguments: Arguments) -> int:
    return arguments.integer("n", 1, 1, MAX_CHOICES) or 1


def _session(arguments: Arguments) -> str | None:
    user = arguments.text("user", empty=True)
    return arguments.text("session_id") or user or None


def read_grammar(arguments: Arguments, context: CallContext) -> CompiledGrammar:
    """The grammar of a call: a ``LlamaGrammar``, GBNF text, or a ``GrammarSpec``."""
    grammar = arguments.get("grammar")
    if grammar is None or isinstance(grammar, GrammarSpec):
        return CompiledGrammar(grammar)
    if isinstance(grammar, str):
        grammar = LlamaGrammar.from_string(grammar)
    if isinstance(grammar, LlamaGrammar):
        return grammar.compile(context.vocab)
    raise ParameterTypeError(
        f"grammar must be a LlamaGrammar or GBNF text, not {type(grammar).__name__}"
    )


@dataclass(slots=True)
class Plan:
    """What the requests of one call share."""

    sampling: SamplingParams
    generation: GenerationParams
    session: str | None
    priority: int
    on_progress: Any
    visible: frozenset[int] = frozenset()

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
            )
            for index, prompt in enumerate(prompts)
            for number in range(per_prompt)
        ]


def make_plan(arguments: Arguments, sampling: SamplingParams, generation: GenerationParams) -> Plan:
    """A plan with what the remaining arguments say."""
    return Plan(
        sampling,
        generation,
        _session(arguments),
        arguments.integer("priority", 0) or 0,
        arguments.function("on_progress"),
    )
