"""Checks a model file in pure Python, before llama.cpp loads it.

``check_model_file`` takes milliseconds. If a file cannot be used, the error says what it is (a web
page, a Git LFS pointer, an incomplete download, ...) and what to do. The check also protects the
process, which llama.cpp ends on some broken files: see ``rules``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from llama_py._native import llama_h
from llama_py.errors import InvalidModelError, ModelNotFoundError
from llama_py.gguf.reader import GGUFArray, GGUFHeader, Scalar, read_header
from llama_py.gguf.rules import check_rules
from llama_py.regular_files import kind_of

__all__ = ["GGUFInfo", "check_model_file", "naming", "read_gguf", "whole_file"]


_FILE_TYPE = re.compile(r"LLAMA_FTYPE_(MOSTLY|ALL)_")


@dataclass(frozen=True)
class GGUFInfo:
    """The contents of a model file's header.

    Attributes:
        path: the file; of a split model, the first part.
        architecture: ``general.architecture``.
        version: the GGUF version.
        metadata: all metadata that is not an array (``tokenizer.chat_template`` among it).
        arrays: the metadata arrays; short numeric ones with their values.
        n_tensors, n_params: numbers of tensors, and of their elements, in all parts together.
        n_bytes: the size of the file or of all parts.
        shards: all parts of a split model in order, else just the file.
        tensor_types: how many tensors there are of each type.
        shapes: of all tensors, by name; the length of a row comes first.
        places: for each part, where its header ends and where each of its tensors begins.
        has_head: there is a classification head, whose outputs are scores of a text.
        n_heads: next-token heads (MTP), each with the weights of a layer.
        embedding_bytes: the size of the embeddings of tokens.
    """

    path: Path
    architecture: str
    version: int
    metadata: Mapping[str, Scalar]
    arrays: Mapping[str, GGUFArray]
    n_tensors: int
    n_params: int
    n_bytes: int
    shards: tuple[Path, ...]
    tensor_types: Mapping[str, int]
    shapes: Mapping[str, tuple[int, ...]]
    places: Mapping[Path, tuple[int, ...]]
    has_head: bool = False
    n_heads: int = 0
    embedding_bytes: int = 0

    @property
    def chat_template(self) -> str | None:
        value = self.metadata.get("tokenizer.chat_template")
        return value if isinstance(value, str) else None

    @property
    def n_vocab(self) -> int | None:
        """Number of tokens in the vocabulary; None if the file does not list them."""
        tokens = self.arrays.get("tokenizer.ggml.tokens")
        return None if tokens is None else tokens.count

    @property
    def file_type(self) -> int | None:
        """``general.file_type``: llama.cpp's number for the quantization."""
        value = self.metadata.get("general.file_type")
        return value if isinstance(value, int) else None

    @property
    def quantization(self) -> str:
        """The name of ``file_type`` ("Q4_K_M"); "" if the file does not say, or it has none."""
        names = {value: name for name, value in vars(llama_h).items() if _FILE_TYPE.match(name)}
        name = names.get(self.file_type if self.file_type is not None else -1, "")
        return _FILE_TYPE.sub("", name)

    @property
    def n_split(self) -> int:
        return len(self.shards)

    @cached_property
    def context_length(self) -> int | None:
        """The context length, in tokens, that the model was trained for."""
        value = self.metadata.get(f"{self.architecture}.context_length")
        return value if isinstance(value, int) else None


def check_model_file(path: str | os.PathLike[str]) -> GGUFInfo:
    """Check a model file, or the first part of a split one, and return its header.

    Raises:
        ModelNotFoundError: there is no such file; the message names similar ones beside it.
        InvalidModelError: it is not a GGUF, it is incomplete or damaged, it is not a language
            model, or it would make llama.cpp end the process.
    """
    # A Path has one slash where an address has two.
    given = re.sub(r"^(\w+):/+", r"\1://", os.fspath(path))
    path = Path(path)
    try:
        return _check(path)
    except ModelNotFoundError:
        if "://" not in given:
            raise
        raise ModelNotFoundError(
            f"there is no model file at {given}; an address is not opened: download the file, and "
            "give its path"
        ) from None
    except InvalidModelError as error:
        raise InvalidModelError(f"{path}: {error}") from None
    except OSError as error:
        raise InvalidModelError(f"{path} cannot be read: {error}") from error


def whole_file(path: Path) -> GGUFHeader:
    """The header of a GGUF of any kind, all of whose bytes are there.

    Raises:
        ModelNotFoundError, InvalidModelError: see ``check_model_file``.
    """
    with naming(path, "file"):
        return read_gguf(path)


def _check(path: Path) -> GGUFInfo:
    header = read_gguf(path)
    architecture = _architecture(header)
    headers = {path: header}
    for shard in _other_shards(path, header):
        try:
            part = read_gguf(shard)
        except InvalidModelError as error:
            raise InvalidModelError(f"its part {shard.name}: {error}") from None
        if part.types.get("split.no") != "u16":
            raise InvalidModelError(
                f"its part {shard.name} does not say which part it is (split.no)"
            )
        headers[shard] = part
    check_rules(list(headers.values()), architecture)
    return _info(path, architecture, headers)


def _info(path: Path, architecture: str, headers: Mapping[Path, GGUFHeader]) -> GGUFInfo:
    header = headers[path]
    tensors = [tensor for part in headers.values() for tensor in part.tensors]
    sizes = {tensor.name: tensor.n_bytes for tensor in tensors}
    names = set(sizes)
    types: dict[str, int] = {}
    for tensor in tensors:
        types[tensor.type] = types.get(tensor.type, 0) + 1
    # Scores come out: a dense layer alone (`cls`) is a head only in Jina's first one.
    last = "cls.weight" if architecture == "jina-bert-v2" else "cls.output.weight"
    return GGUFInfo(
        path=path,
        architecture=architecture,
        version=header.version,
        metadata=header.scalars,
        arrays=header.arrays,
        n_tensors=len(tensors),
        n_params=sum(tensor.n_elements for tensor in tensors),
        n_bytes=sum(part.file_size for part in headers.values()),
        shards=tuple(headers),
        tensor_types=types,
        shapes={tensor.name: tensor.shape for tensor in tensors},
        places={
            path: (part.data_offset, *(part.data_offset + tensor.offset for tensor in part.tensors))
            for path, part in headers.items()
        },
        has_head=bool(names & {last, "cls.output.weight"}),
        n_heads=_n_heads(architecture, header.scalars, names),
        embedding_bytes=sizes.get("token_embd.weight", 0),
    )


def _n_heads(architecture: str, metadata: Mapping[str, Scalar], names: set[str]) -> int:
    """Next-token heads: they follow the layers, and may be announced without being there."""
    layers = metadata.get(f"{architecture}.block_count")
    heads = metadata.get(f"{architecture}.nextn_predict_layers")
    if not isinstance(layers, int) or not isinstance(heads, int):
        return 0
    needed = ["nextn.eh_proj"]
    if architecture == "mimo2":  # whose other tensors are taken to be there
        needed += ["attn_qkv", "ffn_gate"]
    blocks = range(max(0, layers - heads), layers)
    wanted = {f"blk.{block}.{name}.weight" for block in blocks for name in needed}
    return len(blocks) if wanted <= names else 0


@contextmanager
def naming(path: Path, noun: str) -> Iterator[None]:
    """Within, an error about a file says which it is.

    Args:
        noun: what the file is to be: "projector", ...

    Raises:
        ModelNotFoundError: there is no such file.
        InvalidModelError: it cannot be read, or what was raised within.
    """
    if not path.exists():
        raise ModelNotFoundError(f"there is no {noun} at {path}")
    try:
        yield
    except InvalidModelError as error:
        raise InvalidModelError(f"the {noun} {path} cannot be used: {error}") from None
    except OSError as error:
        raise InvalidModelError(f"the {noun} {path} cannot be read: {error}") from error


def read_gguf(path: Path) -> GGUFHeader:
    """The header of a file that may be anything.

    Raises:
        InvalidModelError: it is not a GGUF, or damaged; the message says what it is.
    """
    check_is_gguf(path)
    return read_header(path)


# --- is it a GGUF at all? -------------------------------------------------------------------------

#: How files begin that people load by mistake, what they are, and what to do.
_OTHER_FILES: Final[tuple[tuple[bytes, str], ...]] = (
    (
        rb"version https://git-lfs",
        "this is a Git LFS pointer, not the model: run `git lfs pull` in its repository, or "
        "download the file itself",
    ),
    (
        rb"\s*(<!doctype|<html|<head|<\?xml)",
        "this is a web page, not a model: the download link led to a page (a login, or the page "
        "of the file); use the link of the file itself",
    ),
    (
        rb"PK\x03\x04",
        "this is a ZIP archive, perhaps a PyTorch checkpoint: convert the model to GGUF with "
        "llama.cpp's convert_hf_to_gguf.py, or download a GGUF of it",
    ),
    (
        rb"\x80[\x02-\x05]",
        "this is a Python pickle, perhaps a PyTorch checkpoint: convert the model to GGUF with "
        "llama.cpp's convert_hf_to_gguf.py, or download a GGUF of it",
    ),
    (
        rb"(ggml|lmgg|fmgg|tjgg|algg|GGLA|ggjt|ggmf)",
        "this is a model in the old GGML format of 2023: download a GGUF of it",
    ),
    (rb"\x1f\x8b|BZh|\xfd7zXZ|\x28\xb5\x2f\xfd|7z\xbc\xaf", "this is compressed: unpack it first"),
    (rb"FUGG", "this GGUF is big-endian: use a little-endian file"),
    (rb"\x89HDF|\x08\x00\x00\x00TFL|\x18\x00\x00\x00TFL3", "this is a model of another framework"),
    (rb"[\s\S]{8}\{\s*\"", "this is a safetensors file: convert the model to GGUF with llama.cpp's "
        "convert_hf_to_gguf.py, or download a GGUF of it"),
)  # fmt: skip


def check_is_gguf(path: Path) -> None:
    """Raise unless a file begins like a GGUF; the error says what it is."""
    if path.is_dir():
        files = sorted(name.name for name in path.glob("*.gguf"))
        if files:
            raise InvalidModelError(
                f"this is a folder; name one of the files in it: {_listed(files)}"
            )
        if (path / "config.json").exists():
            raise InvalidModelError(
                "this is a folder with a model of another format: convert it to GGUF with "
                "llama.cpp's convert_hf_to_gguf.py, or download a GGUF of it"
            )
        raise InvalidModelError("this is a folder, and there is no .gguf file in it")
    if not path.exists():
        raise ModelNotFoundError(_missing_problem(path))
    if kind := kind_of(path):
        raise InvalidModelError(f"this is {kind}, not a regular file")
    with path.open("rb") as file:
        head = file.read(512)
    if not head:
        raise InvalidModelError("the file is empty; the download failed: download it again")
    if head.startswith(b"GGUF"):
        return
    if not any(head):
        raise InvalidModelError(
            "the file begins with zeros: the download was not finished; download it again"
        )
    for pattern, problem in _OTHER_FILES:
        if re.match(pattern, head, re.IGNORECASE):
            raise InvalidModelError(problem)
    # Without quoting it: a path may be wrong and the file a secret one, and errors go to logs.
    text = head.decode("utf-8", "replace")
    if "\ufffd" not in text[:-4] and "\0" not in text:
        raise InvalidModelError("this is a text file, not a GGUF")
    raise InvalidModelError("this is not a GGUF: it does not begin with the four letters GGUF")


def _missing_problem(path: Path) -> str:
    problem = f"there is no model file at {path}"
    folder = path.parent
    if not folder.is_dir():
        return f"{problem}: there is no folder {folder} (the current one is {Path.cwd()})"
    names = [name.name for name in folder.iterdir() if name.is_file()]
    import difflib  # for the error only

    similar = difflib.get_close_matches(path.name, names, n=3, cutoff=0.5)
    similar = similar or sorted(name for name in names if name.endswith(".gguf"))[:5]
    if similar:
        return f"{problem}; in the same folder there are: {_listed(similar)}"
    return f"{problem}, and no .gguf file in {folder.resolve()}"


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:8])
    return f"{shown}, and {len(names) - 8} more" if len(names) > 8 else shown


# --- is it a language model? ----------------------------------------------------------------------


def _architecture(header: GGUFHeader) -> str:
    architecture = header.scalars.get("general.architecture")
    kind = header.scalars.get("general.type")
    if kind == "adapter":
        raise InvalidModelError(
            "this is a LoRA adapter, not a model: load the model it was made for, and give this "
            "file as an adapter"
        )
    if architecture == "clip" or kind == "mmproj":
        raise InvalidModelError(
            "this is a multimodal projector (mmproj), not a model: load the language model, and "
            "give this file as its projector"
        )
    if kind == "imatrix":
        raise InvalidModelError("this is an importance matrix for quantizing, not a model")
    if not isinstance(architecture, str) or not architecture:
        raise InvalidModelError(
            "the metadata has no general.architecture: this is not a model, or a damaged one"
        )
    if architecture == "clef" or header.scalars.get(f"{architecture}.decision.block_count"):
        raise InvalidModelError(
            f"this is a decision model ({architecture}), which scores the options of a question: "
            "it neither writes text nor embeds it"
        )
    return architecture


# --- split models ---------------------------------------------------------------------------------

_SHARD_NAME = re.compile(r"(?P<prefix>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def _other_shards(path: Path, header: GGUFHeader) -> list[Path]:
    """Return the further parts of a split model, all of which must be there."""
    count = header.scalars.get("split.count", 0)
    if not isinstance(count, int) or isinstance(count, bool) or count <= 1:
        return []
    name = _SHARD_NAME.fullmatch(path.name)
    number = header.scalars.get("split.no")
    if number != 0:
        first = path.name
        if name:
            first = f"{name['prefix']}-00001-of-{count:05d}.gguf"
        raise InvalidModelError(
            f"this is one of the {count} parts of a split model; load the first one ({first})"
        )
    if name is None or int(name["count"]) != count or int(name["number"]) != 1:
        raise InvalidModelError(
            f"this is the first of the {count} parts of a split model, and must keep its name, "
            f"which ends with -00001-of-{count:05d}.gguf, for the others to be found"
        )
    shards = [
        path.with_name(f"{name['prefix']}-{index:05d}-of-{count:05d}.gguf")
        for index in range(2, count + 1)
    ]
    missing = [shard.name for shard in shards if not shard.exists()]
    if missing:
        raise InvalidModelError(
            f"this model is split into {count} files, and of them these are missing: "
            f"{_listed(missing)}"
        )
    return shards
