"""``Llama``: a GGUF model, ready to talk.

The facade. It holds one model, one context, the cache of its sequences and the engine that drives
them, and turns calls into engine requests. Parameter and method names are those of
llama-cpp-python where they exist there.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, overload
from weakref import WeakSet

from typing_extensions import Self

from llama_py import forks
from llama_py.api.compat import CompatInterface
from llama_py.api.overflow import MessageSizes, OverflowPolicy, OverflowReport, fit
from llama_py.api.replies import Call, ReplyStream, raise_failure
from llama_py.api.reuse import ReuseInterface
from llama_py.api.scoring import ScoringInterface
from llama_py.api.session import ChatSession
from llama_py.chat.content import render_content
from llama_py.chat.formats import ChatFormat, ChatHandler, get_chat_format
from llama_py.chat.grammar import render_constrained
from llama_py.chat.jinja import explain_refusal
from llama_py.chat.markup import Markup
from llama_py.chat.messages import ChatRequest
from llama_py.chat.template import ChatTemplate, RenderedChat
from llama_py.chat.values import whole_text
from llama_py.core.context import Context
from llama_py.core.lora import LoraAdapter
from llama_py.core.model import Model
from llama_py.core.vocab import Vocab
from llama_py.dialects import openai
from llama_py.dialects.types import (
    CreateChatCompletionResponse,
    CreateChatCompletionStreamResponse,
    CreateCompletionResponse,
    CreateCompletionStreamResponse,
)
from llama_py.engine.engine import Engine
from llama_py.engine.request import Event, Prompt, Request
from llama_py.errors import (
    ParameterError,
    ParameterTypeError,
    TemplateError,
    UnknownParameterError,
    shown,
)
from llama_py.memory.cache import CacheLimits, SequenceCache
from llama_py.memory.kinds import traits_of
from llama_py.params import (
    RANDOM_SEED,
    ContextParams,
    ModelParams,
    as_shares,
    check_arguments,
    check_policy,
)
from llama_py.storage.store import LlamaRAMCache, StateStore

__all__ = ["Llama"]

#: Bytes of parked conversations that are kept in RAM unless the caller says otherwise.
_PARKING_BYTES = 1 << 30
#: ``attention_type`` of a context in which each token sees all others.
_NON_CAUSAL = 1


class Llama(CompatInterface, ReuseInterface, ScoringInterface):
    """A loaded model with its context.

    It may be called from any number of threads; calls in flight together are batched together. It
    belongs to the process that loaded it: in a forked child, using it is a ``ForkedProcessError``.

    Args:
        model_path: a GGUF file (the first one, if it is split).
        n_gpu_layers: layers on the GPU, -1 (the default) for all; ignored without a GPU.
        n_ctx: tokens in memory, shared by all conversations; 0 (the default) is the model's own
            context length, as far as there is memory for it: a quarter of what this process may
            use, or most of what is free on the GPUs.
        n_batch, n_ubatch: most tokens in one decode, and computed at once.
        n_seq_max: conversations in memory side by side; others are parked and brought back.
        n_threads, n_threads_batch: default to the physical cores that this process may use
            (affinity, a container's quota), and to one for a tiny model.
        seed: for calls that give none; ``0xFFFFFFFF`` chooses one for every call.
        flash_attn: True, False, or None for automatic.
        swa_full: keep a full-size cache for sliding-window layers. Not needed for correctness.
        type_k, type_v: ggml types of the KV cache.
        logits_all: ``eval`` keeps the logits of every token, in ``scores``.
        chat_format: the name of a chat format, in place of the model's own template.
        chat_template: a Jinja template, in place of the model's own.
        chat_handler: takes over ``create_chat_completion`` altogether.
        special_tokens_in_content: what the texts of special tokens (``<|im_end|>``) in user and
            tool messages are: ``"text"`` (the default), ``"parse"`` for the tokens themselves, or
            ``"refuse"`` for an error. A call may say otherwise.
        parking_bytes: RAM for conversations that there is no room for in the context.
        checkpoint_bytes: RAM for checkpoints (sliding-window, recurrent and hybrid models).
        overflow: what to do when a conversation is too long; by default that is an error.
        prefix_cache_slots: named snapshots that are kept (0 to 8).
        max_waiting: requests that may wait for a place.
        progress: called with the fraction loaded, by the calling thread. Returning False or raising
            stops the loading; Ctrl-C does so without it.
        verbose: print llama.cpp's log on standard error. It always goes to the logger
            ``llama_py``.

    Raises:
        ModelNotFoundError, InvalidModelError: there is no such file, or it cannot be used.
        ContextCreationError: not enough memory for the context.
        ParameterError: a parameter is out of range or unknown.
    """

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        *,
        n_gpu_layers: int = -1,
        split_mode: int = 1,
        main_gpu: int = 0,
        tensor_split: Sequence[float] | None = None,
        vocab_only: bool = False,
        use_mmap: bool = True,
        use_mlock: bool = False,
        kv_overrides: Mapping[str, bool | int | float | str] | None = None,
        seed: int = RANDOM_SEED,
        n_ctx: int = 0,
        n_batch: int = 2048,
        n_ubatch: int = 512,
        n_seq_max: int = 8,
        n_threads: int | None = None,
        n_threads_batch: int | None = None,
        rope_scaling_type: int = -1,
        pooling_type: int = -1,
        attention_type: int = -1,
        rope_freq_base: float = 0.0,
        rope_freq_scale: float = 0.0,
        yarn_ext_factor: float = -1.0,
        yarn_attn_factor: float = 1.0,
        yarn_beta_fast: float = 32.0,
        yarn_beta_slow: float = 1.0,
        yarn_orig_ctx: int = 0,
        logits_all: bool = False,
        embedding: bool = False,
        offload_kqv: bool = True,
        flash_attn: bool | None = None,
        op_offload: bool | None = None,
        swa_full: bool | None = None,
        no_perf: bool = True,
        last_n_tokens_size: int = 64,
        lora_base: str | None = None,
        lora_path: str | None = None,
        lora_scale: float = 1.0,
        numa: bool | int = False,
        chat_format: str | None = None,
        chat_template: str | None = None,
        chat_handler: ChatHandler | None = None,
        special_tokens_in_content: str = "text",
        draft_model: Any = None,
        tokenizer: Any = None,
        type_k: int | None = None,
        type_v: int | None = None,
        spm_infill: bool = False,
        parking_bytes: int = _PARKING_BYTES,
        checkpoint_bytes: int = 512 << 20,
        overflow: OverflowPolicy | None = None,
        prefix_cache_slots: int = 4,
        max_waiting: int = 1024,
        progress: Callable[[float], bool | None] | None = None,
        verbose: bool = False,
        **unknown: Any,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name not in _NOT_STATE}
        _reject_unknown(unknown, arguments)
        _reject_unsupported(draft_model, lora_base)
        self._arguments = arguments
        self._process = forks.current()
        _loaded.add(self)
        check_arguments(arguments)
        self.model_path = str(model_path)
        self.seed = seed
        self.verbose = verbose
        self.last_n_tokens_size = last_n_tokens_size
        self.spm_infill = spm_infill
        self.chat_format = chat_format
        self.chat_handler = chat_handler
        self.special_tokens_in_content = special_tokens_in_content
        self.overflow = overflow
        self._message_sizes = MessageSizes(self._count_plain)
        self._logits_all = logits_all
        self._vocab_only = vocab_only
        self._template_text = chat_template
        self._template: ChatTemplate | None = None
        self._tokenizer = tokenizer
        self._init_lowlevel()
        self._init_reuse(prefix_cache_slots)
        context_params = _context_params(arguments)
        if chat_template:
            _check_template(chat_template)
        # Without a causal mask, a token's cells depend on those that come after it.
        reuse = attention_type != _NON_CAUSAL
        limits = CacheLimits(checkpoint_bytes=checkpoint_bytes, reuse=reuse)
        try:
            self._model = self._load(_model_params(arguments), numa, progress)
            if vocab_only:
                self._lack_context()
                return
            parking = LlamaRAMCache(parking_bytes) if parking_bytes > 0 else None
            self._start_engine(context_params, limits, parking, max_waiting)
            if lora_path is not None:
                self._lora, self._lora_scale = LoraAdapter(self._model, lora_path), lora_scale
                self._context.set_adapters([(self._lora, lora_scale)])
        except BaseException:  # also Ctrl-C: who tries again must have the memory for it
            self.close()
            raise

    def _load(
        self, params: ModelParams, numa: bool | int, progress: Callable[[float], bool | None] | None
    ) -> Model:
        from llama_py.core import backend

        backend.start(numa, self.verbose)
        return Model(self.model_path, params, progress=progress)

    def _start_engine(
        self, params: ContextParams, limits: CacheLimits, store: StateStore | None, max_waiting: int
    ) -> None:
        model = self._model
        kind = "an encoder" if not model.has_decoder or model.has_encoder else ""
        kind = "a diffusion model" if model.is_diffusion else kind
        if kind:
            raise ParameterError(
                f"{self.model_path} is {kind} ({model.architecture}), which does not generate "
                "token by token; load a decoder model"
            )
        self._context = Context(model, params)
        traits = traits_of(model, self._context.params.swa_full)
        self._cache = SequenceCache(
            self._context, traits, model.vocab, self._fingerprint, limits, store
        )
        self._engine = Engine(self._context, self._cache, max_waiting=max_waiting)

    # -- facts ---------------------------------------------------------------------------------

    @property
    def vocab(self) -> Vocab:
        """The vocabulary."""
        return self._model.vocab

    @property
    def metadata(self) -> dict[str, str]:
        """The scalar metadata of the GGUF, as text."""
        return self._model.metadata

    def n_ctx(self) -> int:
        """Tokens that the context holds."""
        return self._context.n_ctx

    def n_embd(self) -> int:
        """Width of the embeddings."""
        return self._model.n_embd

    def n_vocab(self) -> int:
        """Number of tokens in the vocabulary."""
        return self._model.vocab.n_tokens

    def token_eos(self) -> int:
        """The end-of-sequence token, -1 if there is none."""
        return self._model.vocab.eos

    def token_bos(self) -> int:
        """The beginning-of-sequence token, -1 if there is none."""
        return self._model.vocab.bos

    def token_nl(self) -> int:
        """The newline token, -1 if there is none."""
        return self._model.vocab.nl

    # -- completions ---------------------------------------------------------------------------

    @overload
    def create_completion(
        self, prompt: str | Sequence[int], *, stream: Literal[False] = ..., **options: Any
    ) -> CreateCompletionResponse: ...
    @overload
    def create_completion(
        self, prompt: str | Sequence[int], *, stream: Literal[True], **options: Any
    ) -> ReplyStream[CreateCompletionStreamResponse]: ...
    @overload
    def create_completion(
        self, prompt: str | Sequence[int], *, stream: bool, **options: Any
    ) -> CreateCompletionResponse | ReplyStream[CreateCompletionStreamResponse]: ...
    def create_completion(
        self, prompt: str | Sequence[int], *, stream: bool = False, **options: Any
    ) -> CreateCompletionResponse | ReplyStream[CreateCompletionStreamResponse]:
        """Continue a text. See ``llama_py.dialects.openai.parse_completion`` for the options.

        Args:
            prompt: text, or token ids.
            stream: return an iterator of chunks; closing it cancels the request.
        """
        call = openai.parse_completion(self, prompt, stream=stream, **options)
        return self._respond(call, stream)  # type: ignore[no-any-return]

    __call__ = create_completion

    @overload
    def create_chat_completion(
        self, messages: Sequence[Mapping[str, Any]], *, stream: Literal[False] = ..., **options: Any
    ) -> CreateChatCompletionResponse: ...
    @overload
    def create_chat_completion(
        self, messages: Sequence[Mapping[str, Any]], *, stream: Literal[True], **options: Any
    ) -> ReplyStream[CreateChatCompletionStreamResponse]: ...
    @overload
    def create_chat_completion(
        self, messages: Sequence[Mapping[str, Any]], *, stream: bool, **options: Any
    ) -> CreateChatCompletionResponse | ReplyStream[CreateChatCompletionStreamResponse]: ...
    def create_chat_completion(
        self, messages: Sequence[Mapping[str, Any]], *, stream: bool = False, **options: Any
    ) -> CreateChatCompletionResponse | ReplyStream[CreateChatCompletionStreamResponse]:
        """Answer a conversation. See ``llama_py.dialects.openai.parse_chat`` for the options.

        Args:
            messages: in OpenAI's form: ``{"role": ..., "content": ...}``.
            stream: return an iterator of chunks; closing it cancels the request.

        Raises:
            ContextOverflowError: the conversation does not fit; nothing was evaluated.
        """
        if self.chat_handler is not None:
            copies = [dict(message) for message in messages]
            handled: Any = self.chat_handler(llama=self, messages=copies, stream=stream, **options)
            return handled  # type: ignore[no-any-return]
        policy = options.pop("overflow", self.overflow)
        check_policy(policy)
        if policy is not None:
            messages = self._fit(policy, messages, options)
        call = openai.parse_chat(self, messages, stream=stream, **options)
        return self._respond(call, stream)  # type: ignore[no-any-return]

    def _fit(
        self, policy: OverflowPolicy, messages: Sequence[Mapping[str, Any]], options: dict[str, Any]
    ) -> Sequence[Mapping[str, Any]]:
        def count(some: Sequence[Mapping[str, Any]]) -> int:
            return len(self._fresh_tokens(self._prompt_of(some, options)))

        if not all(isinstance(message, Mapping) for message in messages):
            return messages  # which is not for the policy to say
        tools = options.get("tools") or options.get("functions")
        kept, self._last.overflow = fit(
            count,
            self._cache.limit,
            policy,
            messages,
            size=self._message_sizes.of,
            fixed=self._message_sizes.of_json(tools) if tools else 0,
        )
        return kept

    def _fresh_tokens(self, prompt: Prompt) -> list[int]:
        """The tokens of a prompt, as the tokenizer gives them to somebody who knows no replies."""
        if prompt.tokens is not None:
            return [*prompt.tokens]
        spelling = self._cache.spelling
        text = spelling.mark(prompt.text or b"", prompt.plain)
        return spelling.read(text, add_special=prompt.add_special)

    def _count_plain(self, text: str) -> int:
        data = text.encode("utf-8", "surrogatepass")
        return len(self.vocab.tokenize(data, add_special=False))

    @property
    def last_overflow(self) -> OverflowReport | None:
        """What the overflow policy left out of this thread's last conversation, or None."""
        report: OverflowReport | None = getattr(self._last, "overflow", None)
        return report

    def _respond(self, call: Call, stream: bool) -> Any:
        for request in call.requests:
            request.whole = not stream
        self._submit(*call.requests)
        if stream:
            return ReplyStream(self._engine, call, self._events(call.requests))
        encoder = call.encoder()
        for request, event in self._events(call.requests):
            encoder.feed(request.choice, event)
            raise_failure(event, encoder)
        return encoder.response()

    def _submit(self, *requests: Request) -> None:
        if self._vocab_only:
            raise ParameterError("only the vocabulary was loaded (vocab_only=True)")
        self._engine.submit(*requests)
        try:
            self._release_manual()
            self._last.request = requests[-1]
        except BaseException:  # Ctrl-C: nobody would ever read these replies
            self._engine.discard(requests)
            raise

    def _events(self, requests: Sequence[Request]) -> Iterator[tuple[Request, Event]]:
        if len(requests) == 1:
            request = requests[0]
            for event in self._engine.events(request):
                yield request, event
            return
        yield from self._engine.events_of(requests)

    # -- chat templates ------------------------------------------------------------------------

    @property
    def chat_template(self) -> ChatTemplate:
        """The template that conversations are rendered with.

        Raises:
            TemplateError: the model's own does not parse; pass ``chat_template`` or
                ``chat_format``.
        """
        if self._template is None:
            text = self._template_text
            try:
                self._template = ChatTemplate.from_model(self._model, text)
            except TemplateError as error:
                raise explain_refusal(text or self._model.chat_template() or "", error) from None
        return self._template

    @property
    def chat_format(self) -> str | None:
        """The name of the chat format in place of the model's template, or None; may be set.

        Raises:
            ParameterError: there is no format of that name.
        """
        return self._chat_format

    @chat_format.setter
    def chat_format(self, name: str | None) -> None:
        if name is not None and not isinstance(name, str):
            raise ParameterTypeError(f"chat_format must be a name or None, not {shown(name)}")
        self._formatter: ChatFormat | None = get_chat_format(name) if name else None
        self._chat_format = name
        self._markup: Markup | None = None  # another format writes other marks

    def render_chat(
        self, messages: ChatRequest | Sequence[Mapping[str, Any]], **options: Any
    ) -> RenderedChat:
        """The prompt of a conversation (``.prompt``), and how its reply is to be read.

        Args:
            messages: as for ``create_chat_completion``; or a ``ChatRequest``, without options.
            options: those of ``create_chat_completion``: ``tools``, ``response_format``, ...

        Raises:
            ParameterError, TemplateError: as ``create_chat_completion`` would.
        """
        if not isinstance(messages, ChatRequest):
            return openai.parse_chat(self, messages, **options).rendered
        if options:
            raise ParameterError(f"{next(iter(options))}: a ChatRequest has its options already")
        return self._render(messages)

    def _render(self, request: ChatRequest) -> RenderedChat:
        mode = self.special_tokens_in_content
        return render_content(request, self._render_as_is, self._markup_of_chats, mode)

    def _render_as_is(self, request: ChatRequest) -> RenderedChat:
        if self._formatter is not None:
            return self._formatter.render(request, self._model)
        return render_constrained(self.chat_template, request, self.vocab)

    def _markup_of_chats(self) -> Markup:
        if self._markup is None:
            formatter = self._formatter
            sources = formatter.sources(self._model) if formatter else self.chat_template.sources
            self._markup = Markup.of(self.vocab.special_texts(), sources)
        return self._markup

    def chat_session(self, system: str | None = None, **options: Any) -> ChatSession:
        """A new conversation; see ``ChatSession``."""
        return ChatSession(self, system, **options)

    # -- life ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Free everything. Closing twice does nothing.

        Raises:
            LlamaError: it is called from a callback of a request; nothing was freed.
        """
        engine = getattr(self, "_engine", None)
        if engine is not None:
            engine.close()
            if isinstance(engine, Engine) and not engine.lock.inherited:
                self._write_what_is_left()
        if getattr(self, "_template", None) is not None:
            self.chat_template.close()
        model = getattr(self, "_model", None)
        if model is not None:
            model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """The arguments it was made with; unpickling loads the model again."""
        return {**self._arguments, "chat_format": self.chat_format}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __repr__(self) -> str:
        if self._process != forks.current():
            return f"Llama({Path(self.model_path).name!r}, of another process)"
        size = "vocab_only=True" if self._vocab_only else f"n_ctx={self._context.n_ctx}"
        return f"Llama({Path(self.model_path).name!r}, {size})"

    # -- from a hub ----------------------------------------------------------------------------

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str,
        filename: str | None = None,
        *,
        additional_files: Sequence[str] = (),
        local_dir: str | os.PathLike[str] | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> Self:
        """Download a GGUF from the Hugging Face hub (extra ``hub``), and load it.

        Args:
            repo_id: for example ``"Qwen/Qwen3-0.6B-GGUF"``.
            filename: a file name or a pattern such as ``"*Q8_0.gguf"``; None if there is one only.
            additional_files: further files to download.

        Raises:
            ParameterError: the pattern matches no file, or several.
        """
        from llama_py.hub import download

        path = download(repo_id, filename, additional_files, local_dir, cache_dir)
        return cls(path, **options)


#: The models of this process, and of those that it was forked from.
_loaded: WeakSet[Llama] = WeakSet()


def _in_child() -> None:
    for llm in list(_loaded):
        llm._stay_behind()


forks.after_in_child(_in_child)

_NOT_STATE = frozenset({"self", "unknown", "__class__"})


def _model_params(arguments: Mapping[str, Any]) -> ModelParams:
    """The arguments of the same name, and the one that may be any sequence."""
    shares = as_shares(arguments["tensor_split"])
    return ModelParams(**{**_fields_of(ModelParams, arguments), "tensor_split": shares})


def _context_params(arguments: Mapping[str, Any]) -> ContextParams:
    """The arguments of the same name, and those that llama-cpp-python lets be None."""
    op_offload, swa_full = arguments["op_offload"], arguments["swa_full"]
    changed = {
        "embeddings": arguments["embedding"],
        "op_offload": True if op_offload is None else op_offload,
        "swa_full": bool(swa_full),
    }
    return ContextParams(**{**_fields_of(ContextParams, arguments), **changed})


def _fields_of(kind: type[ModelParams | ContextParams], given: Mapping[str, Any]) -> dict[str, Any]:
    return {each.name: given[each.name] for each in fields(kind) if each.name in given}


def _check_template(text: str) -> None:
    """Raise unless it parses: before the weights are loaded, which may take minutes."""
    whole_text(text, "chat_template")
    try:
        ChatTemplate.from_text(text).close()
    except TemplateError as error:
        raise explain_refusal(text, error) from None


def _reject_unknown(unknown: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    for name in unknown:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UnknownParameterError(f"Llama has no parameter {name!r}{hint}")


def _reject_unsupported(draft_model: Any, lora_base: str | None) -> None:
    if draft_model is not None:
        raise ParameterError("draft_model: speculative decoding is not available in this version")
    if lora_base is not None:
        raise ParameterError(
            "lora_base: llama.cpp applies adapters to quantized weights directly; leave it out"
        )
