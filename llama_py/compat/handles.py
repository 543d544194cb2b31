"""``LlamaModel`` and ``Freed``, of llama-cpp-python's ``_internals``."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from llama_py.compat.llama_cpp import llama_cpp as C
from llama_py.compat.llama_cpp._utils import suppress_stdout_stderr
from llama_py.gguf.check import check_model_file

__all__ = ["Freed", "LlamaModel"]


class Freed:
    """Something that is freed at the end, or by ``close``."""

    def __init__(self) -> None:
        self._exit_stack = ExitStack()

    def close(self) -> None:
        """Free it; closing twice does nothing."""
        stack = getattr(self, "_exit_stack", None)
        if stack is not None:
            stack.close()

    def __del__(self) -> None:
        if not sys.is_finalizing():  # the process's end frees it
            self.close()


class LlamaModel(Freed):
    """A loaded model.

    Attributes:
        model, vocab: the pointers, as integers.
    """

    def __init__(self, *, path_model: str, params: Any, verbose: bool = True) -> None:
        super().__init__()
        if not os.path.exists(path_model):  # noqa: PTH110 - bytes and paths alike
            raise ValueError(f"Model path does not exist: {path_model}")
        check_model_file(os.fsdecode(path_model))
        with suppress_stdout_stderr(disable=verbose):
            model = C.llama_model_load_from_file(os.fsencode(path_model), params)
        if model is None:
            raise ValueError(f"Failed to load model from file: {path_model}")
        self._describe(path_model, params, verbose)
        self._pointer: int | None = model
        self._exit_stack.callback(self._free)

    @staticmethod
    def lent(path_model: str, params: Any, verbose: bool, owner: Any) -> LlamaModel:
        """The model of a ``llama_py.Llama``, which is kept, and frees it."""
        made = _LentModel.__new__(_LentModel)
        Freed.__init__(made)
        made._owner = owner
        made._describe(path_model, params, verbose)
        return made

    def _describe(self, path_model: str, params: Any, verbose: bool) -> None:
        self.path_model = path_model
        self.params = params
        self.verbose = verbose
        self.sampler = None
        self.custom_samplers: list[Any] = []

    @property
    def model(self) -> int | None:
        """The pointer; None after ``close``."""
        return self._pointer

    @property
    def vocab(self) -> int:
        """The pointer of its vocabulary."""
        return C.llama_model_get_vocab(self.model)  # type: ignore[no-any-return]

    def _free(self) -> None:
        if self._pointer is not None:
            C.llama_model_free(self._pointer)
            self._pointer = None

    # -- facts ---------------------------------------------------------------------------------

    def vocab_type(self) -> int:
        """``LLAMA_VOCAB_TYPE_...``."""
        return C.llama_vocab_type(self.vocab)  # type: ignore[no-any-return]

    def n_vocab(self) -> int:
        """Tokens in the vocabulary."""
        return C.llama_vocab_n_tokens(self.vocab)  # type: ignore[no-any-return]

    def n_ctx_train(self) -> int:
        """Tokens of context that it was trained with."""
        return C.llama_model_n_ctx_train(self.model)  # type: ignore[no-any-return]

    def n_embd(self) -> int:
        """Width of the embeddings."""
        return C.llama_model_n_embd(self.model)  # type: ignore[no-any-return]

    def rope_freq_scale_train(self) -> float:
        """Scale of the frequencies of RoPE."""
        return C.llama_model_rope_freq_scale_train(self.model)  # type: ignore[no-any-return]

    def desc(self) -> str:
        """Architecture, size and quantization in words."""
        buffer = ctypes.create_string_buffer(1024)
        C.llama_model_desc(self.model, buffer, 1024)
        return buffer.value.decode("utf-8", "replace")

    def size(self) -> int:
        """Bytes of all tensors."""
        return C.llama_model_size(self.model)  # type: ignore[no-any-return]

    def n_params(self) -> int:
        """Number of parameters."""
        return C.llama_model_n_params(self.model)  # type: ignore[no-any-return]

    def get_tensor(self, name: str) -> ctypes.c_void_p:
        """Not in llama.cpp."""
        raise NotImplementedError("get_tensor is not implemented in llama.cpp")

    def metadata(self) -> dict[str, str]:
        """The scalar metadata, as text."""
        count = C.llama_model_meta_count(self.model)
        return {
            self._meta(C.llama_model_meta_key_by_index, index): self._meta(
                C.llama_model_meta_val_str_by_index, index
            )
            for index in range(count)
        }

    def _meta(self, read: Any, index: int) -> str:
        size = read(self.model, index, None, 0) + 1
        buffer = ctypes.create_string_buffer(size)
        read(self.model, index, buffer, size)
        return buffer.value.decode("utf-8", "replace")

    # -- tokens --------------------------------------------------------------------------------

    def token_get_text(self, token: int) -> str:
        """The text of a token, as the vocabulary spells it."""
        return C.llama_vocab_get_text(self.vocab, token).decode("utf-8")  # type: ignore[no-any-return]

    def token_get_score(self, token: int) -> float:
        """The score of a token."""
        return C.llama_vocab_get_score(self.vocab, token)  # type: ignore[no-any-return]

    def token_get_attr(self, token: int) -> int:
        """``LLAMA_TOKEN_ATTR_...`` of a token."""
        return C.llama_vocab_get_attr(self.vocab, token)  # type: ignore[no-any-return]

    def token_bos(self) -> int:
        """Beginning of sequence, -1 if there is none; and so on."""
        return C.llama_vocab_bos(self.vocab)  # type: ignore[no-any-return]

    def token_eos(self) -> int:
        """End of sequence."""
        return C.llama_vocab_eos(self.vocab)  # type: ignore[no-any-return]

    def token_cls(self) -> int:
        """Classification: the same as BOS."""
        return C.llama_vocab_bos(self.vocab)  # type: ignore[no-any-return]

    def token_sep(self) -> int:
        """Separator."""
        return C.llama_vocab_sep(self.vocab)  # type: ignore[no-any-return]

    def token_nl(self) -> int:
        """Newline."""
        return C.llama_vocab_nl(self.vocab)  # type: ignore[no-any-return]

    def token_prefix(self) -> int:
        """Before the beginning, to fill in the middle."""
        return C.llama_vocab_fim_pre(self.vocab)  # type: ignore[no-any-return]

    def token_middle(self) -> int:
        """Before the middle."""
        return C.llama_vocab_fim_mid(self.vocab)  # type: ignore[no-any-return]

    def token_suffix(self) -> int:
        """Before the end."""
        return C.llama_vocab_fim_suf(self.vocab)  # type: ignore[no-any-return]

    def token_eot(self) -> int:
        """End of turn."""
        return C.llama_vocab_eot(self.vocab)  # type: ignore[no-any-return]

    def add_bos_token(self) -> bool:
        """Whether prompts begin with BOS."""
        return C.llama_vocab_get_add_bos(self.vocab)  # type: ignore[no-any-return]

    def add_eos_token(self) -> bool:
        """Whether prompts end with EOS."""
        return C.llama_vocab_get_add_eos(self.vocab)  # type: ignore[no-any-return]

    def tokenize(self, text: bytes, add_bos: bool, special: bool) -> list[int]:
        """Token ids of ``text``.

        Raises:
            RuntimeError: the vocabulary cannot tokenize it.
        """
        room = len(text) + 8
        tokens = (ctypes.c_int32 * room)()
        count = C.llama_tokenize(self.vocab, text, len(text), tokens, room, add_bos, special)
        if count < 0:
            room = -count
            tokens = (ctypes.c_int32 * room)()
            count = C.llama_tokenize(self.vocab, text, len(text), tokens, room, add_bos, special)
            if count < 0:
                raise RuntimeError(f'Failed to tokenize: text="{text!r}" n_tokens={count}')
        return list(tokens[:count])

    def token_to_piece(self, token: int, special: bool = False) -> bytes:
        """The bytes of a token, filled up with zeros to 32."""
        buffer = ctypes.create_string_buffer(32)
        C.llama_token_to_piece(self.vocab, token, buffer, 32, 0, special)
        return bytes(buffer)

    def detokenize(self, tokens: Sequence[int], special: bool = False) -> bytes:
        """The bytes of ``tokens``, without the space that a first BOS brings."""
        data = b"".join(self._piece(token, special) for token in tokens)
        starts = len(tokens) > 0 and tokens[0] == self.token_bos() and data[:1] == b" "
        return data[1:] if starts else data

    def _piece(self, token: int, special: bool) -> bytes:
        buffer = ctypes.create_string_buffer(64)
        size = C.llama_token_to_piece(self.vocab, token, buffer, 64, 0, special)
        if size < 0:
            buffer = ctypes.create_string_buffer(-size)
            size = C.llama_token_to_piece(self.vocab, token, buffer, -size, 0, special)
        return buffer.raw[:size]

    @staticmethod
    def default_params() -> Any:
        """``llama_model_params`` as llama.cpp has them."""
        return C.llama_model_default_params()


class _LentModel(LlamaModel):
    """A model that somebody else frees."""

    _owner: Any

    @property
    def model(self) -> int | None:
        """The pointer.

        Raises:
            ClosedError: its owner was closed.
        """
        return self._owner.model.value  # type: ignore[no-any-return]
