"""``Model``: the weights and the metadata of one GGUF file."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from llama_py._native import llama_h as C
from llama_py.core import logs
from llama_py.core.handle import Handle
from llama_py.core.mtp_check import check_heads
from llama_py.core.native_load import NativeLoad, ProgressCallback
from llama_py.core.placement import Placement, placement
from llama_py.errors import InvalidModelError, ModelChangedError, ParameterError, ParameterTypeError
from llama_py.gguf.check import GGUFInfo, check_model_file
from llama_py.params import ModelParams

__all__ = ["Model", "ModelFiles"]

#: Architectures of llama.cpp that keep no memory of a sequence and predict no next token: what they
#: compute of a text are its embeddings. ("t5encoder" is the first half of a T5.)
_ENCODERS = frozenset(
    """
    bert eurobert gemma-embedding gemma-embedding2 jina-bert-v2 jina-bert-v3 modern-bert neo-bert
    nomic-bert nomic-bert-moe t5encoder
    """.split()  # noqa: SIM905
)


class Model(Handle[C.llama_model_p]):
    """A loaded model.

    Attributes:
        path: the file it was loaded from.
        params: how it was loaded.
        vocab: its vocabulary.
        metadata: the scalar metadata of the GGUF, as text.
        devices: names of those that it may use, without the CPU.
        watch: tells whether a device that it is on was lost; None if none of them can be.

    Args:
        info: what ``check_model_file`` said of the path just now, if it was asked.
        progress: called with the fraction loaded, in the calling thread. Returning False stops the
            loading, and so does raising, or a Ctrl-C.
        verbose: print llama.cpp's log on standard error until this model is freed.
        meanwhile: done by the calling thread, one after the other, while another one reads the
            weights: the first in any case, the others as long as it does. Not done at all where no
            other one does: only the main thread has them read.

    Raises:
        ParameterError: next-token heads are to be loaded, and it has none that could be used; or
            there is no such device.
        DeviceUnavailableError: an RPC server cannot be reached, or was lost meanwhile.
        ModelNotFoundError, InvalidModelError: see ``check_model_file``; also when llama.cpp
            refuses the file, with llama.cpp's reason in the message, and when the file was replaced
            while it was being loaded.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        params: ModelParams | None = None,
        *,
        info: GGUFInfo | None = None,
        progress: ProgressCallback | None = None,
        verbose: bool = False,
        without_weights: bool = False,
        meanwhile: Iterable[Callable[[], object]] = (),
    ) -> None:
        if not isinstance(path, (str, os.PathLike)):
            raise ParameterTypeError(
                f"model_path must be a path, not {type(path).__name__} ({path!r})"
            )
        self.path = Path(path)
        self.params = params or ModelParams()
        self.info = info or check_model_file(self.path)
        if self.params.load_mtp:
            check_heads(self.info)
        files = _files(self.info)
        logs.install()
        printing = logs.Printing() if verbose else None
        try:
            where = placement(self.params)
            self.devices, self.watch = where.devices, where.watch
            struct, self._kept_alive = _model_struct(self.params, where)
            if without_weights:
                struct.no_alloc, struct.load_mode = True, C.LLAMA_LOAD_MODE_NONE
            free = partial(_free, C.llama_model_free, printing)
            self._load(struct, NativeLoad(progress, meanwhile), free)
            if self.watch is not None:
                self.watch.check()
            files.check()
            self._mapped = files if self.params.use_mmap else None
            # It needs numpy, which nothing needs before the weights.
            from llama_py.core.vocab import Vocab

            self.vocab = Vocab(self)
            self.metadata = _metadata(self.pointer)
            known = [self.size_bytes, self.n_params, sorted(self.metadata.items()), files.digest]
            #: Identifies the weights, wherever the file lies.
            self.fingerprint = hashlib.blake2b(repr(known).encode(), digest_size=16).hexdigest()
        except BaseException:  # also Ctrl-C: the weights may be gigabytes
            self.close()
            if printing is not None:
                printing.close()
            raise

    def _load(
        self,
        struct: C.llama_model_params,
        loading: NativeLoad,
        free: Callable[[C.llama_model_p], None],
    ) -> None:
        kept = loading.attach(struct)
        lines = logs.ErrorLines()

        def load(_kept: Any = kept) -> None:
            with lines:
                pointer = C.llama_model_load_from_file(os.fsencode(self.path), struct)
            if pointer:
                Handle.__init__(self, pointer, free)

        loading.run(load)
        if self.closed:
            if self.watch is not None:
                self.watch.check()
            reason = str(lines) or "no reason was logged; is there enough memory?"
            if loading.stopped:
                reason = "the loading was stopped, because progress returned False"
            raise InvalidModelError(f"llama.cpp cannot load {self.path}: {reason}")

    def check_file(self) -> None:
        """Look whether what is mapped is still what was loaded; about a microsecond.

        Raises:
            ModelChangedError: the file was truncated or written to in place. Computing would end
                the process (SIGBUS), or give nonsense.
        """
        if self._mapped is not None:
            self._mapped.check_in_place()

    @property
    def architecture(self) -> str:
        """``general.architecture``."""
        return self.metadata.get("general.architecture", "")

    @property
    def description(self) -> str:
        """llama.cpp's one line about the model, for example ``llama 1B Q8_0``."""
        buffer = ctypes.create_string_buffer(256)
        C.llama_model_desc(self.pointer, buffer, 256)
        return buffer.value.decode("utf-8", "replace")

    @property
    def n_params(self) -> int:
        """Number of parameters."""
        return int(C.llama_model_n_params(self.pointer))

    @property
    def size_bytes(self) -> int:
        """Size of all tensors, in bytes."""
        return int(C.llama_model_size(self.pointer))

    @property
    def n_ctx_train(self) -> int:
        """The context length that the model was trained with."""
        return int(C.llama_model_n_ctx_train(self.pointer))

    @property
    def n_embd(self) -> int:
        """Width of the embeddings."""
        return int(C.llama_model_n_embd(self.pointer))

    @property
    def n_embd_out(self) -> int:
        """Width of the vectors that come out, where that is another one than ``n_embd``'s."""
        return int(C.llama_model_n_embd_out(self.pointer))

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the outputs of a classification head; empty where the file has none."""
        count = int(C.llama_model_n_cls_out(self.pointer))
        found = [C.llama_model_cls_label(self.pointer, index) for index in range(count)]
        return tuple(each.decode("utf-8", "replace") for each in found if each is not None)

    @property
    def n_labels(self) -> int:
        """Outputs of the classification head, 0 if there is none."""
        return int(C.llama_model_n_cls_out(self.pointer)) if self.info.has_head else 0

    @property
    def n_layer(self) -> int:
        """Number of layers."""
        return int(C.llama_model_n_layer(self.pointer))

    @property
    def n_swa(self) -> int:
        """Width of the sliding window in tokens, 0 if there is none."""
        return int(C.llama_model_n_swa(self.pointer))

    @property
    def is_recurrent(self) -> bool:
        """True if there is no attention at all (Mamba, RWKV)."""
        return bool(C.llama_model_is_recurrent(self.pointer))

    @property
    def is_hybrid(self) -> bool:
        """True if there is attention beside a recurrent state (Jamba, LFM2)."""
        return bool(C.llama_model_is_hybrid(self.pointer))

    @property
    def has_experts(self) -> bool:
        """True for a mixture of experts."""
        return self.metadata.get(f"{self.architecture}.expert_count", "0") != "0"

    @property
    def has_encoder(self) -> bool:
        """True if ``llama_encode`` has to run before decoding (T5)."""
        return bool(C.llama_model_has_encoder(self.pointer))

    @property
    def is_encoder(self) -> bool:
        """True if it embeds texts and does nothing else (BERT, Gemma Embedding, T5's encoder)."""
        return self.architecture in _ENCODERS

    @property
    def is_causal(self) -> bool:
        """True if a token sees only those before it, also those of earlier batches."""
        causal = self.metadata.get(f"{self.architecture}.attention.causal", "true")
        whole = self.is_encoder or self.architecture == "llama-embed"  # whose graph has no cache
        return not whole and causal != "false"

    @property
    def is_diffusion(self) -> bool:
        """True if text is made by removing noise, and not token by token (LLaDA, Dream)."""
        return bool(C.llama_model_is_diffusion(self.pointer))

    @property
    def has_decoder(self) -> bool:
        """True if the model can generate."""
        return bool(C.llama_model_has_decoder(self.pointer))

    def chat_template(self, name: str | None = None) -> str | None:
        """The chat template in the GGUF, or None."""
        raw = C.llama_model_chat_template(self.pointer, name.encode() if name else None)
        return raw.decode("utf-8", "replace") if raw is not None else None


def _files(info: GGUFInfo) -> ModelFiles:
    try:
        return ModelFiles(info.places)
    except OSError as error:  # it was there a moment ago
        raise InvalidModelError(f"{info.path} cannot be read: {error}") from error


def _free(
    free: Callable[[C.llama_model_p], None],
    printing: logs.Printing | None,
    pointer: C.llama_model_p,
) -> None:
    free(pointer)
    if printing is not None:
        printing.close()


def _model_struct(params: ModelParams, where: Placement) -> tuple[C.llama_model_params, list[Any]]:
    """The C struct, and the objects that must live as long as C may look at it."""
    struct = C.llama_model_default_params()
    kept: list[Any] = [where]
    if where.pointers is not None:
        struct.devices = where.pointers
    struct.n_gpu_layers = params.n_gpu_layers
    struct.split_mode = params.split_mode
    struct.main_gpu = params.main_gpu
    struct.load_mode = int(params.use_mmap) + 2 * int(params.use_mlock)
    struct.use_extra_bufts = params.repack
    struct.vocab_only = params.vocab_only
    struct.check_tensors = params.check_tensors
    struct.load_mtp = params.load_mtp
    if params.tensor_split is not None:
        shares, room = params.tensor_split, C.llama_max_devices()
        if len(shares) > room:
            raise ParameterError(
                f"tensor_split has {len(shares)} shares, and this build knows {room} devices "
                "at most"
            )
        kept.append((ctypes.c_float * max(room, 1))(*shares))
        struct.tensor_split = kept[-1]
    if params.kv_overrides:
        struct.kv_overrides = _kv_overrides(params.kv_overrides, kept)
    overrides = where.overrides(params, kept)
    if overrides is not None:
        struct.tensor_buft_overrides = overrides
    return struct, kept


def _kv_overrides(overrides: Mapping[str, bool | int | float | str], kept: list[Any]) -> Any:
    """An array that ends with an empty key, as llama.cpp wants it."""
    array = (C.llama_model_kv_override * (len(overrides) + 1))()
    for item, (key, value) in zip(array, overrides.items(), strict=False):
        item.key = key.encode()
        if isinstance(value, bool):
            item.tag, item.val_bool = C.LLAMA_KV_OVERRIDE_TYPE_BOOL, value
        elif isinstance(value, int):
            item.tag, item.val_i64 = C.LLAMA_KV_OVERRIDE_TYPE_INT, value
        elif isinstance(value, float):
            item.tag, item.val_f64 = C.LLAMA_KV_OVERRIDE_TYPE_FLOAT, value
        else:
            item.tag, item.val_str = C.LLAMA_KV_OVERRIDE_TYPE_STR, value.encode()
    kept.append(array)
    return array


def _metadata(pointer: C.llama_model_p) -> dict[str, str]:
    """All scalar metadata, as llama.cpp prints it."""
    count = C.llama_model_meta_count(pointer)
    return {
        _read_text(C.llama_model_meta_key_by_index, pointer, index): _read_text(
            C.llama_model_meta_val_str_by_index, pointer, index
        )
        for index in range(count)
    }


def _read_text(function: Callable[..., int], pointer: C.llama_model_p, index: int) -> str:
    size = 256
    while True:
        buffer = ctypes.create_string_buffer(size)
        needed = function(pointer, index, buffer, size)
        if needed < size:
            return buffer.value.decode("utf-8", "replace")
        size = needed + 1


# ---- model files ---------------------------------------------------------------------------------
#
# ``ModelFiles``: which bytes a model was loaded from.
#
# Saved states belong to weights, so the weights are identified when they are loaded: the files may
# be replaced or deleted at any later time, and what is in memory stays what it is.


#: How much of each file the digest looks at, beside its header: places, and bytes at each.
_SAMPLES, _SAMPLE_BYTES = 64, 4096
#: Bytes of a header that are read at once: a whole one would be megabytes of new memory.
_PIECE = 1 << 17

_Identity = tuple[tuple[int, int], tuple[int, int]]


class ModelFiles:
    """The parts of a model (just one, as a rule), as they are when this object is made.

    Make it before llama.cpp opens them, and ask ``check`` when it has.

    Args:
        places: for each part, where its header ends (all up to there is read) and where each of
            its tensors begins.

    Attributes:
        digest: of the header, the beginning of every tensor, and samples from the whole length of
            each part; it does not depend on where they lie.
    """

    def __init__(self, places: Mapping[Path, tuple[int, ...]]) -> None:
        self._places = places
        self._parts = {path: _read(path, inside) for path, inside in places.items()}
        digest = hashlib.blake2b(digest_size=16)
        for content, _ in self._parts.values():
            digest.update(content)
        self.digest = digest.hexdigest()

    def check(self) -> None:
        """Raise ``InvalidModelError`` if llama.cpp may have opened other files.

        Files that are gone now were there, and opened.
        """
        for path, (content, (version, number)) in self._parts.items():
            with contextlib.suppress(FileNotFoundError):
                now, renumbered = _identity(path.stat())
                same = now == version and (
                    # Some file systems number their files anew: then the content decides.
                    renumbered == number or _read(path, self._places[path])[0] == content
                )
                if not same:
                    raise InvalidModelError(
                        f"{path} was replaced or changed while it was being loaded; load it again"
                    )

    def check_in_place(self) -> None:
        """Raise ``ModelChangedError`` if a file was truncated or written to since it was loaded.

        It costs a ``stat`` for each part. One that is gone, or that another one was renamed over,
        is still there for those who have it open; of one that was just touched, what the digest
        looks at is read once.
        """
        for path, (content, (version, number)) in self._parts.items():
            try:
                now, renumbered = _identity(path.stat())
            except OSError:
                continue
            if renumbered != number or now == version:
                continue
            same = now[0] == version[0]
            if same:  # in size; only touched, perhaps
                try:
                    same = _read(path, self._places[path])[0] == content
                except OSError:
                    same = False
            if not same:
                raise ModelChangedError(
                    f"{path} was truncated or written to after it was loaded, and its weights are "
                    "read from there: close (unload) the model and load it again; replace model "
                    "files by renaming"
                )
            self._parts[path] = content, (now, number)


def _identity(status: os.stat_result) -> _Identity:
    """Which version of a file it is, and which file."""
    return (status.st_size, status.st_mtime_ns), (status.st_dev, status.st_ino)


def _read(path: Path, inside: tuple[int, ...]) -> tuple[bytes, _Identity]:
    """The digest of one part, and the identity of what was read."""
    digest, (data, *tensors) = hashlib.blake2b(digest_size=16), inside
    with path.open("rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        spread = [status.st_size * index // _SAMPLES for index in range(_SAMPLES)]
        while data > 0 and (piece := file.read(min(data, _PIECE))):
            digest.update(piece)
            data -= len(piece)
        for place in (*tensors, *spread):
            file.seek(place)
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.digest(), _identity(status)
