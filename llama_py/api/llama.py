"""``Llama``: a GGUF model, ready to talk.

A face: its parts do the work, and each gets what it needs when the model is loaded. Parameter and
method names are those of llama-cpp-python where they exist there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from typing_extensions import Self, Unpack

from llama_py.api.llama_cpp_names import CacheNames, LlamaCppNames
from llama_py.api.opening import open_model
from llama_py.errors import ParameterError
from llama_py.options import (
    CHAT,
    COMPLETION,
    GENERATE,
    LOAD,
    SAMPLE,
    ChatOptions,
    CompletionOptions,
    GenerateOptions,
    LoadOptions,
    PromptOptions,
    SampleOptions,
    TurnOptions,
)
from llama_py.options.docstrings import describe_options
from llama_py.options.values import ChatPolicy

# Nothing of these is imported before the weights are read: api/opening.py says why.
if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from llama_py.api.call import ChatReply, CompletionReply, ReplyStream
    from llama_py.api.embedding.calls import Ranked
    from llama_py.api.embedding.lists import VectorLists
    from llama_py.api.kept.model_cache import ModelStates
    from llama_py.api.scoring.scoring import Score, TokenIds
    from llama_py.api.sessions.session import ChatSession
    from llama_py.chat.formats import ChatHandler
    from llama_py.chat.messages import ChatRequest
    from llama_py.chat.rendered import RenderedChat
    from llama_py.chat.templates.template import ChatTemplate
    from llama_py.core.vocab import Vocab
    from llama_py.dialects.openai.types import (
        CreateChatCompletionStreamResponse,
        CreateCompletionStreamResponse,
        CreateEmbeddingResponse,
    )
    from llama_py.engine.metrics import MetricsReport
    from llama_py.functions.options import ToolRunOptions
    from llama_py.functions.rounds import ToolEvent, ToolRun
    from llama_py.llama_cpp import llama_context_p, llama_model_p

__all__ = ["Llama"]

T = TypeVar("T")


class _Setting(Generic[T]):
    """An attribute of ``Llama`` that its parts see as ``ChatSettings`` of the same name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, llm: None, owner: type) -> Self: ...
    @overload
    def __get__(self, llm: Llama, owner: type) -> T: ...
    def __get__(self, llm: Llama | None, owner: type) -> T | Self:
        value: T | Self = self if llm is None else getattr(llm.runtime.settings, self._name)
        return value

    def __set__(self, llm: Llama, value: T) -> None:
        setattr(llm.runtime.settings, self._name, value)


class Llama(LlamaCppNames, CacheNames):
    """A loaded model with its context.

    It may be called from any number of threads; calls in flight together are batched together. It
    belongs to the process that loaded it: in a forked child, using it is a ``ForkedProcessError``.

    Args:
        model_path: a GGUF file (the first one, if it is split).
        n_gpu_layers: layers on the GPU, -1 (the default) for as many as there is memory for;
            ignored without a GPU.
        n_ctx: tokens in memory, of all conversations together; 0 (the default) is the model's own
            context length, as far as there is memory for it: a quarter of what this process may
            use, or most of what is free on the GPUs.
        n_batch, n_ubatch: most tokens in one decode, and computed at once.
        n_seq_max: conversations in memory side by side; others are offloaded and brought back.
        n_threads, n_threads_batch: default to the physical cores that this process may use
            (affinity, a container's quota), to fewer while other programs use them, and to one for
            a tiny model.
        seed: for calls that give none; ``0xFFFFFFFF`` chooses one for every call.
        flash_attn: True, False, or None for automatic.
        swa_full: keep a full-size cache for sliding-window layers. Not needed for correctness.
        kv_unified: all conversations share the ``n_ctx`` cells; False gives each a buffer of its
            own, of ``n_ctx / n_seq_max`` cells, which is faster when several long ones are in
            memory.
        type_k, type_v: ggml types of the KV cache.
        logits_all: ``eval`` keeps the logits of every token, in ``scores``.
        chat_format: the name of a chat format, in place of the model's own template.
        chat_template: a Jinja template in place of the model's own, or the name of one of
            llama.cpp's (``"command-r"``).
        chat_handler: a function that replaces ``create_chat_completion``.
        special_tokens_in_content: what the texts of special tokens (``<|im_end|>``) in user and
            tool messages are: ``"text"`` (the default), ``"parse"`` for the tokens themselves, or
            ``"refuse"`` for an error. A call may say otherwise.
        tool_form: how tools are declared and called: ``"template"`` is the model's own way,
            ``"hermes"`` a general one, and ``"auto"`` (the default) that where there is no other.
        json_calls: where tools may be called, a reply that as a whole is a call in plain JSON
            becomes that call. A call may say otherwise.
        parking_bytes: RAM for conversations that do not fit into the context.
        checkpoint_bytes: RAM for checkpoints (sliding-window, recurrent and hybrid models).
        overflow: what to do when a conversation is too long; by default that is an error.
        prefix_cache_slots: named snapshots that are kept (0 to 8).
        max_waiting: most requests that may wait for a free sequence.
        isolate: compute in a process of its own, which is started again when it dies. What needs
            the context here (``eval``, ``ctx``, ``save_state``, callbacks that choose tokens)
            raises ``IsolationError``.
        in_place: start no thread: calls step the engine themselves (WebAssembly, tests). One
            thread at a time may use the model then.
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
        **options: Unpack[LoadOptions],
    ) -> None:
        """Load a model: see the class."""
        given = LOAD.complete(options)
        self._tokenizer = given["tokenizer"]
        self.verbose = given["verbose"]
        self.chat_handler: ChatHandler | None = given["chat_handler"]
        own: dict[str, Any] = {"model_path": model_path, **options}
        #: The inside, for the packages above; it changes with the versions.
        self.runtime, self.cache = open_model(model_path, given, own)

    #: What calls get that say nothing else; may be set.
    model_path = _Setting[str]()
    seed = _Setting[int]()
    last_n_tokens_size = _Setting[int]()
    spm_infill = _Setting[bool]()
    special_tokens_in_content = _Setting[str]()
    json_calls = _Setting[bool]()
    overflow = _Setting[ChatPolicy | None]()

    @property
    def states(self) -> ModelStates:
        """Conversations that are kept: states, snapshots, pins, stores."""
        return self.cache

    # -- facts ---------------------------------------------------------------------------------

    @property
    def vocab(self) -> Vocab:
        """The model's tokens, and the functions that turn text into tokens and back."""
        return self.runtime.port.model.vocab

    @property
    def metadata(self) -> dict[str, str]:
        """The scalar metadata of the GGUF, as text."""
        return self.runtime.port.model.metadata

    def n_ctx(self) -> int:
        """Tokens that one conversation can have: all of the context, if ``kv_unified``."""
        return self.runtime.port.facts.n_ctx_seq

    # -- completions ---------------------------------------------------------------------------

    @overload
    def create_completion(
        self,
        prompt: str | Sequence[int],
        *,
        stream: Literal[False] = ...,
        **options: Unpack[CompletionOptions],
    ) -> CompletionReply: ...
    @overload
    def create_completion(
        self,
        prompt: str | Sequence[int],
        *,
        stream: Literal[True],
        **options: Unpack[CompletionOptions],
    ) -> ReplyStream[CreateCompletionStreamResponse]: ...
    @overload
    def create_completion(
        self, prompt: str | Sequence[int], *, stream: bool, **options: Unpack[CompletionOptions]
    ) -> CompletionReply | ReplyStream[CreateCompletionStreamResponse]: ...
    def create_completion(
        self,
        prompt: str | Sequence[int],
        *,
        stream: bool = False,
        **options: Unpack[CompletionOptions],
    ) -> CompletionReply | ReplyStream[CreateCompletionStreamResponse]:
        """Continue a text.

        Args:
            prompt: text, or token ids.
            stream: return an iterator of chunks; closing it cancels the request.
        """
        call = self.runtime.calls.completion(prompt, stream, options)
        return self.runtime.respond(call)  # type: ignore[no-any-return]

    __call__ = create_completion

    @overload
    def create_chat_completion(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        stream: Literal[False] = ...,
        **options: Unpack[ChatOptions],
    ) -> ChatReply: ...
    @overload
    def create_chat_completion(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        stream: Literal[True],
        **options: Unpack[ChatOptions],
    ) -> ReplyStream[CreateChatCompletionStreamResponse]: ...
    @overload
    def create_chat_completion(
        self, messages: Sequence[Mapping[str, Any]], *, stream: bool, **options: Unpack[ChatOptions]
    ) -> ChatReply | ReplyStream[CreateChatCompletionStreamResponse]: ...
    def create_chat_completion(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        stream: bool = False,
        **options: Unpack[ChatOptions],
    ) -> ChatReply | ReplyStream[CreateChatCompletionStreamResponse]:
        """Answer a conversation.

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
        call = self.runtime.calls.chat(messages, stream, options)
        return self.runtime.respond(call)  # type: ignore[no-any-return]

    @overload
    def run_tools(  # type: ignore[misc]  # its tools are functions
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Callable[..., Any]],
        *,
        stream: Literal[False] = ...,
        **options: Unpack[ToolRunOptions],
    ) -> ToolRun: ...
    @overload
    def run_tools(  # type: ignore[misc]  # its tools are functions
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Callable[..., Any]],
        *,
        stream: Literal[True],
        **options: Unpack[ToolRunOptions],
    ) -> Iterator[ToolEvent]: ...
    def run_tools(  # type: ignore[misc]  # its tools are functions
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Callable[..., Any]],
        *,
        stream: bool = False,
        **options: Unpack[ToolRunOptions],
    ) -> ToolRun | Iterator[ToolEvent]:
        """Answer a conversation with functions as tools: calls are made until it is answered.

        The name, docstring, parameters and type hints of a function are what the model sees of it.
        What cannot be called (other arguments, an exception, a refusal) is a result that it sees.

        Args:
            messages: see ``create_chat_completion``.
            tools: functions. Calls of one reply run beside each other, in threads.
            stream: return an iterator of events (``llama_py.functions.rounds``).
            options: those of ``create_chat_completion``, and ``max_rounds``, ``on_call``,
                ``tool_timeout``, ``max_result_chars`` (``llama_py.functions.options``).

        Raises:
            ParameterError: a function has no form as a tool.
        """
        from llama_py.functions.options import begin_run

        loop, given = begin_run(messages, tools, options)
        events = loop.events(lambda asked: self.create_chat_completion(asked, **given))
        if stream:
            return events
        for _ in events:
            pass
        return loop.run

    def score(
        self,
        prefix: str | TokenIds | Sequence[Mapping[str, Any]],
        continuations: Sequence[str | TokenIds],
        *,
        timeout: float | None = None,
        **options: Unpack[PromptOptions],
    ) -> list[Score]:
        """Log-probabilities of many continuations of one beginning, which is evaluated only once.

        They are natural logarithms of the model's own probabilities, before any temperature, bias
        or penalty. Apart from rounding, they equal those of ``create_completion`` with ``echo`` and
        ``logprobs``, called once for each continuation.

        A continuation is tokenized together with the prefix. If it merges with the last token of a
        text prefix (``"The answer is "`` and ``"yes"`` share the token ``" yes"``), that token is
        scored too, for every continuation of the call, so that they can be compared. Prefixes of
        tokens or messages are continued where they end. Pass tokens to determine exactly what is
        scored.

        Args:
            prefix: a text, which begins as a prompt of ``create_completion`` does (with BOS, if the
                model wants one; texts of special tokens are these tokens); or token ids, exactly
                as they are; or messages, whose reply is scored.
            continuations: texts or lists of token ids, any number of them. One that is empty has
                the probability 1.
            timeout: seconds for the whole call.
            options: with messages, what changes the prompt: ``tools``, ``chat_template_kwargs``.

        Returns:
            One ``Score`` for each continuation, in their order.

        Raises:
            ContextOverflowError: the prefix, or the prefix with one of the continuations, which is
                named by its index, does not fit; nothing was evaluated.
            GenerationTimeout: it took too long.
            ParameterError: an argument is wrong.
        """
        from llama_py.api.scoring.scoring import ScoringJob

        return ScoringJob(self.runtime, prefix, continuations, timeout, options).run()

    # -- embeddings ----------------------------------------------------------------------------

    @overload
    def embed(
        self,
        input: str | Sequence[str],
        normalize: bool = ...,
        truncate: bool = ...,
        return_count: Literal[False] = ...,
    ) -> VectorLists: ...
    @overload
    def embed(
        self,
        input: str | Sequence[str],
        normalize: bool = ...,
        truncate: bool = ...,
        *,
        return_count: Literal[True],
    ) -> tuple[VectorLists, int]: ...
    @overload
    def embed(
        self,
        input: str | Sequence[str],
        normalize: bool = ...,
        truncate: bool = ...,
        return_count: bool = ...,
    ) -> VectorLists | tuple[VectorLists, int]: ...
    def embed(
        self,
        input: str | Sequence[str],
        normalize: bool = False,
        truncate: bool = True,
        return_count: bool = False,
    ) -> VectorLists | tuple[VectorLists, int]:
        """Vectors of texts, as lists of numbers, with the signature of llama-cpp-python.

        ``Embedder`` gives arrays, and has more options. What computes is made at the first call,
        on the same weights; calls that generate go on beside it.

        Args:
            normalize: vectors of length 1.
            truncate: leave out the end of texts that are too long; otherwise they are an error.
            return_count: return the number of all tokens as well.

        Returns:
            A vector for a text, a list of them for a list. A model whose file says no pooling
            (``pooling_type() == 0``) has a vector for each token, in one more list.

        Raises:
            InputTooLongError: a text is too long; nothing was computed.
        """
        vectors, count = self.runtime.embedding.lists(input, normalize, truncate)
        return (vectors, count) if return_count else vectors

    def create_embedding(
        self, input: str | Sequence[str], model: str | None = None
    ) -> CreateEmbeddingResponse:
        """Vectors of texts in OpenAI's form; see ``embed``.

        Args:
            model: the name that the response gives.
        """
        return self.runtime.embedding.response(input, self.model_path if model is None else model)

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        normalize: bool = False,
        truncate: bool = False,
    ) -> list[Ranked]:
        """``Embedder.rerank``: documents, best match for the query first."""
        return self.runtime.embedding.calls.ranking(
            query, documents, top_n=top_n, normalize=normalize, truncate=truncate
        ).result()

    def pooling_type(self) -> int:
        """How the vectors of a text become one (``LLAMA_POOLING_TYPE_*``); 0 means no pooling."""
        return self.runtime.embedding.pooling_type

    # -- chat templates ------------------------------------------------------------------------

    @property
    def chat_template(self) -> ChatTemplate:
        """The template that conversations are rendered with.

        Raises:
            TemplateError: the model's own does not parse; pass ``chat_template`` or
                ``chat_format``.
        """
        return self.runtime.rendering.template

    @property
    def chat_format(self) -> str | None:
        """The name of the chat format in place of the model's template, or None; may be set.

        Raises:
            ParameterError: there is no format of that name.
        """
        return self.runtime.rendering.chat_format

    @chat_format.setter
    def chat_format(self, name: str | None) -> None:
        self.runtime.rendering.chat_format = name

    def render_chat(
        self, messages: ChatRequest | Sequence[Mapping[str, Any]], **options: Unpack[ChatOptions]
    ) -> RenderedChat:
        """The prompt of a conversation (``.prompt``), and how its reply is to be read.

        Args:
            messages: as for ``create_chat_completion``; or a ``ChatRequest``, without options.
            options: those of ``create_chat_completion``: ``tools``, ``response_format``, ...

        Raises:
            ParameterError, TemplateError: as ``create_chat_completion`` would.
        """
        from llama_py.chat.messages import ChatRequest

        if not isinstance(messages, ChatRequest):
            return self.runtime.calls.rendered(messages, options)
        if options:
            raise ParameterError(f"{next(iter(options))}: a ChatRequest has its options already")
        return self.runtime.rendering.render(messages)

    def chat_session(
        self, system: str | None = None, **options: Unpack[TurnOptions]
    ) -> ChatSession:
        """A new conversation; see ``ChatSession``."""
        from llama_py.api.sessions.session import ChatSession

        return ChatSession(self, system, **options)

    # -- tokens --------------------------------------------------------------------------------

    def tokenize(
        self,
        text: bytes | str,
        add_bos: bool = True,
        special: bool = False,
        *,
        plain: bool = False,
    ) -> list[int]:
        """Token ids of ``text``.

        Args:
            add_bos: add BOS / EOS as the model was trained with.
            special: read texts such as ``<|im_end|>`` as the special tokens they name. Without it,
                llama.cpp still reads those that the vocabulary calls user-defined, such as
                ``<tool_call>``.
            plain: read none of them, as in the messages of users: for texts of strangers.

        Raises:
            ParameterError: ``plain`` contradicts ``special``.
        """
        if plain:
            if special:
                raise ParameterError("plain=True contradicts special=True: pass one of them")
            return self.runtime.rendering.tokenize_plain(text, add_bos)
        if self._tokenizer is not None:
            data = text.encode("utf-8") if isinstance(text, str) else text
            tokens: list[int] = self._tokenizer.tokenize(data, add_bos, special)
            return tokens
        return self.vocab.tokenize(text, add_special=add_bos, parse_special=special)

    def detokenize(
        self,
        tokens: Sequence[int],
        prev_tokens: Sequence[int] | None = None,
        special: bool = False,
    ) -> bytes:
        """The bytes of ``tokens``; special tokens have none unless ``special``.

        Where the first one is BOS, the space that SentencePiece put before the text goes again, so
        that ``detokenize(tokenize(text))`` is ``text``; elsewhere every space stays. A BOS is all
        that tells the two apart, so a text that begins with a space of its own loses that one on a
        vocabulary that adds BOS and no space (as in llama-cpp-python).

        Args:
            prev_tokens: the tokens before these; only a ``tokenizer`` of the caller's needs them.
        """
        if self._tokenizer is not None:
            text: bytes = self._tokenizer.detokenize(tokens, prev_tokens, special)
            return text
        self.runtime.port.model.check_open()  # known pieces would not raise after close()
        return self.vocab.detokenize_prompt(tokens, special=special)

    # -- by hand -------------------------------------------------------------------------------

    @property
    def model(self) -> llama_model_p:
        """The C pointer of the model, for functions of ``llama_py.llama_cpp``.

        It is valid until ``close()``, and so is ``ctx``. Raises ``ClosedError`` afterwards.
        """
        pointer: llama_model_p = self.runtime.loaded.model.pointer
        return pointer

    @property
    def ctx(self) -> llama_context_p:
        """The C pointer of the context, for functions of ``llama_py.llama_cpp``.

        The cache does not notice when they change its memory: call ``reset()`` afterwards.
        """
        return self.runtime.loaded.context.pointer

    @property
    def n_tokens(self) -> int:
        """Tokens that ``eval`` has in memory."""
        return self.runtime.by_hand.n_tokens

    @property
    def eval_tokens(self) -> list[int]:
        """The tokens that ``eval`` has in memory; a copy."""
        return self.runtime.by_hand.tokens

    @property
    def last_logits(self) -> NDArray[np.float32]:
        """Logits at the last evaluated position, of ``eval`` or of the call that ended last.

        float32 ``(n_vocab,)``; a copy, before any bias or penalty.

        Raises:
            LlamaError: nothing was evaluated yet.
        """
        return self.runtime.by_hand.last_logits

    @property
    def scores(self) -> NDArray[np.float32]:
        """Logits of all tokens that ``eval`` has evaluated, float32 ``(n_tokens, n_vocab)``.

        Read-only; what ``eval`` evaluates later does not change it. With ``logits_all=False`` only
        the last of them has a row that is not zero. Tokens that came with ``load_state`` have none
        either.
        """
        return self.runtime.by_hand.scores

    def eval(self, tokens: Sequence[int]) -> None:
        """Evaluate tokens after those that ``eval`` evaluated before.

        They are appended to the sequence of ``eval``. Conversations of other calls are not
        affected. ``reset()`` begins a new sequence.

        Raises:
            ContextOverflowError: they do not fit; nothing was evaluated.
            TokenizationError: an id is not in the vocabulary.
        """
        self.runtime.by_hand.eval(tokens)

    def sample(self, *, idx: int | None = None, **options: Unpack[SampleOptions]) -> int:
        """Choose a token from the logits at ``idx`` (default: the last), and do not evaluate it.

        Penalties count the tokens that ``eval`` evaluated, also after an earlier ``sample``.

        Args:
            idx: a position that ``eval`` evaluated with ``logits_all=True``.
            options: as for ``create_completion``: ``temperature`` (or ``temp``), ``top_k``, ...

        Raises:
            LlamaError: nothing was evaluated yet.
        """
        return self.runtime.by_hand.sample(idx, options)

    def generate(
        self,
        tokens: Sequence[int],
        *,
        reset: bool = True,
        **options: Unpack[GenerateOptions],
    ) -> Generator[int, Sequence[int] | None, None]:
        """Generate tokens after ``tokens`` until the caller leaves the loop.

        The beginning that the prompt shares with cached tokens is reused. Closing the generator
        ends the request; its tokens stay in the cache. ``send(tokens)`` appends tokens of the
        caller after the last one, and returns the token that follows them.

        Args:
            reset: False continues the tokens of ``eval`` with these.
            options: ``temperature`` (or ``temp``), ``top_k``, ``grammar``, ``logits_processor``,
                ``stopping_criteria``, ...

        Raises:
            RequestCancelled: another thread called ``reset(cancel=True)``.
        """
        return self.runtime.by_hand.generate(tokens, reset, options)

    @property
    def metrics(self) -> MetricsReport:
        """Counters and histograms of the engine since loading or ``reset()``."""
        return self.runtime.port.metrics.as_dict()

    # -- life ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Free everything. Closing twice does nothing.

        Raises:
            LlamaError: it is called from a callback of a request; nothing was freed.
        """
        self.runtime.close()
        self.runtime.rendering.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """The arguments it was made with; unpickling loads the model again."""
        return {**self.runtime.given, "chat_format": self.chat_format}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __repr__(self) -> str:
        name = repr(Path(self.model_path).name)
        if self.runtime.port.inherited:
            return f"Llama({name}, of another process)"
        if self.runtime.port.model.closed:
            return f"Llama({name}, closed)"
        size = "vocab_only=True" if self.runtime.port.vocab_only else "an encoder"
        if self.runtime.port.generates:
            size = f"n_ctx={self.runtime.port.facts.n_ctx}"
        return f"Llama({name}, {size})"

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
        **options: Unpack[LoadOptions],
    ) -> Self:
        """Download a GGUF from the Hugging Face hub (extra ``hub``), and load it.

        With it comes a projector for pictures and sounds, if the repository has one. Of several,
        those in the folder of the model and with most of its name come first, and then F16 before
        Q8_0, BF16, F32 and all else. If that leaves more than one, none is taken, and a warning
        names them.

        Args:
            repo_id: for example ``"Qwen/Qwen3-0.6B-GGUF"``.
            filename: a file name or a pattern such as ``"*Q8_0.gguf"``; None if there is one only.
            additional_files: further files to download.
            options: those of ``Llama``; ``mmproj`` is a projector of the repository or a pattern
                (``"*mmproj*Q8_0.gguf"``), a file of this machine, ``"auto"``, or None for none.

        Raises:
            ParameterError: a pattern matches no file, or several.
        """
        from llama_py.models.downloads import download, projector_for

        path = download(repo_id, filename, additional_files, local_dir, cache_dir)
        wanted = options.get("mmproj", "auto")
        if wanted is not None:
            options["mmproj"] = projector_for(repo_id, path, wanted, local_dir, cache_dir)
        return cls(path, **options)


describe_options(Llama.__init__, LOAD)
describe_options(Llama.create_completion, COMPLETION)
describe_options(Llama.create_chat_completion, CHAT)
describe_options(Llama.sample, SAMPLE)
describe_options(Llama.generate, GENERATE)
