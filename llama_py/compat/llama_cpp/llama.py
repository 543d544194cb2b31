"""``Llama`` as llama-cpp-python has it, on ``llama_py.Llama``."""

from __future__ import annotations

import inspect
import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama_py.api.llama_cpp_names import logits_to_logprobs, longest_token_prefix, with_openai_types
from llama_py.compat import finder, loading
from llama_py.compat.byhand import ByHand
from llama_py.compat.caching import CacheUse
from llama_py.compat.facts import Facts
from llama_py.compat.failures import translated
from llama_py.compat.lending import Lending
from llama_py.compat.lenient import changed, lenient
from llama_py.compat.llama_cpp import llama_chat_format
from llama_py.compat.llama_cpp.llama_grammar import LlamaGrammar
from llama_py.compat.llama_cpp.llama_tokenizer import LlamaTokenizer
from llama_py.compat.position import Position, as_tokens
from llama_py.compat.replies import chunks, reply
from llama_py.compat.state import LlamaState
from llama_py.dialects.processors import LogitsProcessorList as NativeProcessorList
from llama_py.dialects.processors import StoppingCriteriaList as NativeCriteriaList
from llama_py.errors import ClosedError
from llama_py.params import RANDOM_SEED

__all__ = [
    "Llama",
    "LlamaGrammar",
    "LlamaState",
    "LogitsProcessor",
    "LogitsProcessorList",
    "MinTokensLogitsProcessor",
    "StoppingCriteria",
    "StoppingCriteriaList",
]

LogitsProcessor = Callable[[NDArray[np.intc], NDArray[np.single]], NDArray[np.single]]
StoppingCriteria = Callable[[NDArray[np.intc], NDArray[np.single]], bool]


class Llama(Facts, ByHand):
    """A loaded model with the methods, defaults and attributes of llama-cpp-python.

    Attributes:
        native: the ``llama_py.Llama`` that does the work; methods that only it has can be called on
            this object as well.
    """

    def __init__(
        self,
        model_path: str,
        *,
        n_gpu_layers: int = 0,
        split_mode: int = 1,
        main_gpu: int = 0,
        tensor_split: list[float] | None = None,
        vocab_only: bool = False,
        use_mmap: bool = True,
        use_mlock: bool = False,
        kv_overrides: dict[str, bool | int | float | str] | None = None,
        seed: int = 0xFFFFFFFF,
        n_ctx: int = 512,
        n_batch: int = 512,
        n_ubatch: int = 512,
        n_threads: int | None = None,
        n_threads_batch: int | None = None,
        rope_scaling_type: int | None = -1,
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
        flash_attn: bool = False,
        op_offload: bool | None = None,
        swa_full: bool | None = None,
        no_perf: bool = False,
        last_n_tokens_size: int = 64,
        lora_base: str | None = None,
        lora_scale: float = 1.0,
        lora_path: str | None = None,
        numa: bool | int = False,
        chat_format: str | None = None,
        chat_handler: Any = None,
        draft_model: Any = None,
        tokenizer: Any = None,
        type_k: int | None = None,
        type_v: int | None = None,
        spm_infill: bool = False,
        verbose: bool = True,
        **kwargs: Any,
    ) -> None:
        given = {name: each for name, each in locals().items() if name in LOADING_DEFAULTS}
        self._stack = ExitStack()
        options = loading.native_options(given, kwargs, finder.defaults())
        self.native = loading.open_model(model_path, options)
        self._stack.callback(self.native.close)
        self._given = given
        self._extra = kwargs
        self.verbose, self.numa, self.spm_infill = verbose, int(numa), spm_infill
        self.tensor_split, self.kv_overrides = tensor_split, kv_overrides
        self.lora_base, self.lora_scale, self.lora_path = lora_base, lora_scale, lora_path
        self.last_n_tokens_size = last_n_tokens_size
        self._logits_all = logits_all
        self._position = Position(self.native, logits_all=logits_all)
        self._caching = CacheUse(self)
        self._sampler: Any = None
        self._lending = Lending(self.native)
        self.draft_model = draft_model
        self.tokenizer_ = tokenizer or LlamaTokenizer(self)
        self._own_tokenizer = tokenizer is not None
        self.chat_handler = chat_handler
        self._chat_handlers = llama_chat_format.handlers_of(self.native)
        self.chat_format = chat_format or llama_chat_format.format_of(self)

    # -- completions ---------------------------------------------------------------------------

    def create_completion(
        self,
        prompt: str | list[int],
        suffix: str | None = None,
        max_tokens: int | None = 16,
        temperature: float = 0.8,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        logprobs: int | None = None,
        echo: bool = False,
        stop: str | list[str] | None = [],  # noqa: B006 - the signature of llama-cpp-python
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        top_k: int = 40,
        stream: bool = False,
        seed: int | None = None,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        stopping_criteria: StoppingCriteriaList | None = None,
        logits_processor: LogitsProcessorList | None = None,
        grammar: LlamaGrammar | None = None,
        logit_bias: dict[int, float] | None = None,
    ) -> Any:
        """Continue a text.

        Returns:
            A ``CreateCompletionResponse``, or with ``stream`` a generator of its chunks.

        Raises:
            ValueError: the prompt does not fit into the context.
        """
        given = {name: each for name, each in locals().items() if name not in _OF_CALL}
        options = {name: each for name, each in changed(given).items() if each is not None}
        if not suffix:
            options.pop("suffix", None)
        if max_tokens is None:
            options["max_tokens"] = None
        if isinstance(logprobs, bool):
            options["logprobs"] = 1 if logprobs else None
        asked = _prompt(prompt)
        self._draw_seed(options)
        self._before_call()
        return self._complete(asked, bool(stream), lenient(options))

    __call__ = create_completion

    def _complete(self, prompt: str | list[int], stream: bool, options: dict[str, Any]) -> Any:
        self._caching.before(prompt)
        with translated():
            found: Any = self.native.create_completion(prompt, stream=stream, **options)
        if stream:
            return self._caching.after_stream(chunks(found))
        self._caching.after()
        return reply(found)

    def _create_completion(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """``create_completion`` as an iterator, also of the one whole reply."""
        found = self.create_completion(*args, **kwargs)
        return iter([found]) if isinstance(found, dict) else found

    # -- chats ---------------------------------------------------------------------------------

    def create_chat_completion(
        self,
        messages: list[Any],
        functions: list[Any] | None = None,
        function_call: Any = None,
        tools: list[Any] | None = None,
        tool_choice: Any = None,
        temperature: float = 0.2,
        top_p: float = 0.95,
        top_k: int = 40,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        stream: bool = False,
        stop: str | list[str] | None = [],  # noqa: B006 - the signature of llama-cpp-python
        seed: int | None = None,
        response_format: Any = None,
        max_tokens: int | None = None,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        logits_processor: LogitsProcessorList | None = None,
        grammar: LlamaGrammar | None = None,
        logit_bias: dict[int, float] | None = None,
        logprobs: bool | None = None,
        top_logprobs: int | None = None,
    ) -> Any:
        """Answer a conversation, by ``chat_handler`` or else by ``chat_format``.

        Returns:
            A ``CreateChatCompletionResponse``, or with ``stream`` a generator of its chunks.
        """
        given = {name: each for name, each in locals().items() if name != "self"}
        handler = (
            self.chat_handler
            or self._chat_handlers.get(self.chat_format)
            or llama_chat_format.get_chat_completion_handler(str(self.chat_format))
        )
        return handler(llama=self, **given)

    def create_chat_completion_openai_v1(self, *args: Any, **kwargs: Any) -> Any:
        """``create_chat_completion`` with the types of the package ``openai``.

        Raises:
            ImportError: it is not installed.
        """
        return with_openai_types(self.create_chat_completion(*args, **kwargs))

    # -- embeddings ----------------------------------------------------------------------------

    def create_embedding(self, input: str | list[str], model: str | None = None) -> Any:
        """The embeddings of texts, as OpenAI's API gives them."""
        texts = input if isinstance(input, list) else [input]
        vectors, count = self.embed(texts, return_count=True)
        data = [
            {"object": "embedding", "embedding": vector, "index": index}
            for index, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": count, "total_tokens": count}
        return {
            "object": "list",
            "data": data,
            "model": self.model_path if model is None else model,
            "usage": usage,
        }

    def embed(
        self,
        input: str | list[str],
        normalize: bool = False,
        truncate: bool = True,
        return_count: bool = False,
    ) -> Any:
        """The embeddings of a text, or of several; of each token, if nothing is pooled.

        Raises:
            RuntimeError: the model was loaded without ``embedding=True``.
        """
        if not self._given["embedding"]:
            raise RuntimeError(
                "Llama model must be created with embedding=True to call this method"
            )
        vectors, count = self.native.embed(input, normalize, truncate, return_count=True)
        return (vectors, count) if return_count else vectors

    def pooling_type(self) -> int:
        """How the embeddings of a text become one: ``LLAMA_POOLING_TYPE_...``."""
        return self.native.pooling_type()

    # -- caches -------------------------------------------------------------------------------

    @property
    def cache(self) -> Any:
        """The argument of ``set_cache``."""
        return self._caching.cache

    def set_cache(self, cache: Any) -> None:
        """Use a cache of ``llama_cpp.llama_cache``, or any mapping of tokens to states."""
        self._caching.use(cache)

    # -- llama.cpp's objects -------------------------------------------------------------------

    @property
    def model(self) -> int:
        """The pointer of the model."""
        pointer = self.native.model.value
        if pointer is None:
            raise ClosedError("the model is closed")
        return pointer

    @property
    def ctx(self) -> int:
        """The pointer of the context.

        What is changed in its memory is noticed before the next call: it begins with nothing.
        """
        return self._lending.lend()

    def _take_back(self) -> None:
        """Forget everything if somebody else has used the context meanwhile."""
        if self._lending.changed():
            self._position.set(self._position.tokens())
            self.native.reset()

    def _before_call(self) -> None:
        """A completion or a chat begins: what is asked about afterwards is that one."""
        self._take_back()
        if self._position.by_hand:
            self._position.forget_by_hand()
        self._position.set(None)

    def _draw_seed(self, options: dict[str, Any]) -> None:
        """The seed of a call: the one that it gives, or one that is drawn from that of the model.

        Either is the model's from then on, so that the calls after ``set_seed(1)`` differ from each
        other, and are the same ones after the next ``set_seed(1)`` or ``load_state``. A model
        that was given no seed draws another one for every call.
        """
        given = options.get("seed")
        if given is None and self._seed != RANDOM_SEED:
            given = options["seed"] = random.Random(self._seed).randint(0, 1 << 32) % (1 << 32)
        if given is not None:
            self.set_seed(given)

    @cached_property
    def model_params(self) -> Any:
        """``llama_model_params``; changing it has no effect."""
        from llama_py.compat.structs import model_struct

        return model_struct(self._given)

    @cached_property
    def context_params(self) -> Any:
        """``llama_context_params``; changing it has no effect."""
        from llama_py.compat.structs import context_struct

        if self.native.runtime.port.vocab_only:
            given = self._given
            return context_struct(given, given["n_ctx"], given["n_batch"], given["n_threads"] or 1)
        return context_struct(self._given, self.n_ctx(), self.n_batch, self.n_threads)

    @cached_property
    def _model(self) -> Any:
        from llama_py.compat.handles import LlamaModel

        return LlamaModel.lent(self.model_path, self.model_params, self.verbose, self.native)

    @cached_property
    def _ctx(self) -> Any:
        from llama_py.compat.contexts import LlamaContext

        if self.native.runtime.port.vocab_only:  # there, such a model has a context as well
            made = LlamaContext(model=self._model, params=self.context_params, verbose=self.verbose)
            self._stack.callback(made.close)
            return made
        return LlamaContext.lent(self._model, self.context_params, self.verbose, self._lending.lend)

    @cached_property
    def _batch(self) -> Any:
        from llama_py.compat.contexts import LlamaBatch

        batch = LlamaBatch(n_tokens=self.n_batch, embd=0, n_seq_max=8, verbose=self.verbose)
        self._stack.callback(batch.close)
        return batch

    @cached_property
    def _candidates(self) -> Any:
        from llama_py.compat.samplers import LlamaTokenDataArray

        return LlamaTokenDataArray(n_vocab=self.n_vocab())

    def __getattr__(self, name: str) -> Any:
        """Names that only ``llama_py.Llama`` has: ``chat_session``, ``score``, ..."""
        if name.startswith("_") or name == "native":
            raise AttributeError(f"'Llama' object has no attribute {name!r}")
        return getattr(self.native, name)

    # -- life ----------------------------------------------------------------------------------

    logits_to_logprobs = staticmethod(logits_to_logprobs)
    longest_token_prefix = staticmethod(longest_token_prefix)

    def close(self) -> None:
        """Free everything. Closing twice does nothing."""
        self._stack.close()

    def __getstate__(self) -> dict[str, Any]:
        """The arguments it was made with; unpickling loads the model again."""
        return {**self._given, **self._extra, "model_path": self.model_path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"llama_cpp.{self.native!r}" if "native" in vars(self) else "llama_cpp.Llama()"

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str,
        filename: str | None,
        additional_files: list[str] | None = None,
        local_dir: str | os.PathLike[str] | None = None,
        local_dir_use_symlinks: bool | str = "auto",
        cache_dir: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ) -> Llama:
        """Download a GGUF from the Hugging Face hub, and load it.

        Args:
            filename: a file name or a pattern such as ``"*Q8_0.gguf"``.
            additional_files: further files to download.
            kwargs: arguments of ``Llama``.
        """
        from llama_py.models.downloads import download

        path = download(repo_id, filename, additional_files or (), local_dir, cache_dir)
        return cls(model_path=path, **kwargs)


class LogitsProcessorList(NativeProcessorList):
    """Processors that are applied one after the other."""

    def __call__(
        self, input_ids: NDArray[np.intc], scores: NDArray[np.single]
    ) -> NDArray[np.single]:
        """The scores after all of them."""
        return super().__call__(input_ids, scores)


class StoppingCriteriaList(NativeCriteriaList):
    """Criteria of which one is enough."""

    def __call__(self, input_ids: NDArray[np.intc], logits: NDArray[np.single]) -> bool:
        """Whether one of them says stop."""
        return super().__call__(input_ids, logits)


class MinTokensLogitsProcessor:
    """Forbids the end-of-sequence token until there are ``min_tokens`` new tokens."""

    def __init__(self, min_tokens: int, token_eos: int) -> None:
        self.min_tokens = min_tokens
        self.token_eos = token_eos
        self.prompt_tokens: int | None = None

    def __call__(
        self, input_ids: NDArray[np.intc], scores: NDArray[np.single]
    ) -> NDArray[np.single]:
        """The scores to use."""
        if self.prompt_tokens is None:
            self.prompt_tokens = len(input_ids)
        if len(input_ids) - self.prompt_tokens < self.min_tokens:
            scores[self.token_eos] = -np.inf
        return scores


def _prompt(prompt: Any) -> str | list[int]:
    """A prompt as text or token ids."""
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, (bytes, bytearray)):
        return bytes(prompt).decode("utf-8", "replace")
    return as_tokens(prompt)


_OF_CALL = ("self", "prompt", "stream")
#: The arguments of ``Llama`` that llama-cpp-python knows, beside the path, and their defaults.
LOADING_DEFAULTS = {
    name: each.default
    for name, each in inspect.signature(Llama.__init__).parameters.items()
    if each.kind is inspect.Parameter.KEYWORD_ONLY
}
