"""``check_model_file``: what it says about models, and about what is none."""

from __future__ import annotations

import mmap
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_py import Llama
from llama_py import llama_cpp as C
from llama_py.core.model import Model
from llama_py.errors import InvalidModelError, ModelLoadError, ModelNotFoundError
from llama_py.gguf.check import check_model_file
from llama_py.gguf.reader import GGML_TYPES
from llama_py.gguf.strings import duplicate_string, end_of_strings, unspelled_byte
from tests.core.gguf_mutations import ARRAY, STRING, Gguf, Pair, Tensor, lay_out, parse
from tests.models import CHATML, KINDS, tiny_model, tiny_vocab

U16, U32, I32, F32 = 2, 4, 5, 6


def healthy(kind: str = "full") -> Gguf:
    return parse(tiny_model(kind).read_bytes())


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def put(model: Gguf, key: str, kind: int, raw: bytes) -> None:
    """Set a metadata entry; it stays where it is if there is one already."""
    for pair in model.pairs:
        if pair.key == key.encode():
            pair.type, pair.raw = kind, raw
            return
    model.pairs.append(Pair(key.encode(), kind, raw))


def put_number(model: Gguf, key: str, value: int | float) -> None:
    whole = isinstance(value, int)
    put(model, key, U32 if whole else F32, struct.pack("<I" if whole else "<f", value))


def tensor(model: Gguf, name: str) -> Tensor:
    return next(tensor for tensor in model.tensors if tensor.name == name.encode())


def problem_of(path: Path) -> str:
    with pytest.raises(InvalidModelError) as caught:
        check_model_file(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.fixture
def problem(tmp_path: Path) -> Callable[[Gguf], str]:
    """Write a model, check it, and return what is wrong with it."""

    def check(model: Gguf) -> str:
        path = tmp_path / "model.gguf"
        path.write_bytes(model.encode())
        return problem_of(path)

    return check


def rwkv(*tokens: str) -> Gguf:
    """A model with these tokens, escaped as RWKV's are."""
    model = healthy()
    put(model, "tokenizer.ggml.model", STRING, text("rwkv"))
    raw = struct.pack("<IQ", STRING, len(tokens)) + b"".join(map(text, tokens))
    put(model, "tokenizer.ggml.tokens", ARRAY, raw)
    return model


@pytest.mark.parametrize(
    ("tokens", "byte"),
    [(["a", "wo"], "77"), (["\\n", "\\r\\n"], "0D"), (["\\xc3", "\\xc4\\xb6"], "C4")],
)
def test_an_rwkv_vocabulary_that_would_never_end(
    problem: Callable[[Gguf], str], tokens: list[str], byte: str
) -> None:
    assert f"begin with the byte 0x{byte}, and none for this byte" in problem(rwkv(*tokens))


def test_an_rwkv_vocabulary_that_ends(tmp_path: Path) -> None:
    single = [chr(byte) for byte in range(32, 127) if chr(byte) != "\\"]
    single += [f"\\x{byte:02x}" for byte in range(128, 256)] + ["\\n", "\\\\"]
    path = tmp_path / "model.gguf"
    path.write_bytes(rwkv(*single, "wo", "\\xc3\\xb6", "\\\\x").encode())
    try:
        check_model_file(path)
    except InvalidModelError as error:
        assert "byte" not in str(error)  # noqa: PT017


# --- models ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "architecture"),
    [
        ("full", "llama"),
        ("recurrent", "mamba2"),
        ("hybrid", "granitehybrid"),
        ("hybrid_swa", "lfm2"),
    ],
)
def test_a_model_is_described(kind: str, architecture: str) -> None:
    path = tiny_model(kind)
    info = check_model_file(path)
    reader = gguf.GGUFReader(path)
    assert info.path == path
    assert info.architecture == architecture
    assert info.chat_template == CHATML
    assert info.n_vocab == len(tiny_vocab().tokens)
    assert info.context_length == 4096
    assert info.n_tensors == len(reader.tensors)
    assert info.n_params == sum(int(tensor.n_elements) for tensor in reader.tensors)
    assert info.n_bytes == path.stat().st_size
    assert info.shards == (path,)
    assert info.file_type == 0
    assert info.tensor_types == {"F32": info.n_tensors}


def test_quantized_models_pass(tmp_path: Path) -> None:
    for quant in ("f16", "q8_0"):
        assert check_model_file(tiny_model("full", quant=quant)).tensor_types.keys() == {
            "F32",
            quant.upper(),
        }


def test_a_path_may_be_a_string() -> None:
    assert check_model_file(str(tiny_model("full"))).architecture == "llama"


def test_arrays_of_numbers_are_kept() -> None:
    arrays = check_model_file(tiny_model("hybrid")).arrays
    assert arrays["granitehybrid.attention.head_count_kv"].values == (0, 2, 0, 2)
    assert arrays["tokenizer.ggml.tokens"].values is None
    assert arrays["tokenizer.ggml.tokens"].type == "str"


def test_unknown_architectures_are_left_to_llama_cpp(tmp_path: Path) -> None:
    model = healthy()
    put(model, "general.architecture", STRING, text("of-next-year"))
    path = tmp_path / "model.gguf"
    path.write_bytes(model.encode())
    assert check_model_file(path).architecture == "of-next-year"


def test_types_are_those_of_the_library() -> None:
    for kind, (name, block, size) in GGML_TYPES.items():
        assert C.ggml_blck_size(kind) == block
        assert C.ggml_type_size(kind) == size
        assert (C.ggml_type_name(kind) or b"").decode().upper() == name
    missing = set(range(C.GGML_TYPE_COUNT)) - set(GGML_TYPES)
    assert all(C.ggml_blck_size(kind) == 0 for kind in missing)


# --- files that are not models --------------------------------------------------------------------


def test_a_missing_file_names_similar_ones(tmp_path: Path) -> None:
    (tmp_path / "llama-3.2-1b-q4_k_m.gguf").touch()
    with pytest.raises(ModelNotFoundError, match=r"llama-3\.2-1b-q4_k_m\.gguf") as caught:
        check_model_file(tmp_path / "llama-3.2-1b-q4_K.gguf")
    assert isinstance(caught.value, FileNotFoundError)
    assert isinstance(caught.value, ModelLoadError)


def test_a_missing_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="there is no folder"):
        check_model_file(tmp_path / "nowhere" / "model.gguf")


def test_an_address_is_no_path() -> None:
    path = "https://a.example/c.gguf"
    for form in (path, Path(path)):
        with pytest.raises(ModelNotFoundError, match=f"at {path}; an address is not opened"):
            check_model_file(form)


def test_a_path_may_begin_in_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))  # Windows
    with pytest.raises(ModelNotFoundError, match="there is no model file at") as caught:
        Llama("~/x.gguf")
    assert str(tmp_path / "x.gguf") in str(caught.value)
    (tmp_path / "x.gguf").write_bytes(tiny_model("full").read_bytes())
    with Llama("~/x.gguf", vocab_only=True) as llm:
        assert llm.n_vocab() > 0


@pytest.mark.parametrize("path", ["models/missing.gguf", "missing", "tests/missing", "/a/b/c"])
def test_other_paths_are_no_repositories(path: str) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        check_model_file(path)
    assert "from_pretrained" not in str(caught.value)


def test_folders(tmp_path: Path) -> None:
    assert "no .gguf file" in problem_of(tmp_path)
    (tmp_path / "config.json").touch()
    assert "convert_hf_to_gguf" in problem_of(tmp_path)
    (tmp_path / "a.gguf").touch()
    assert "a.gguf" in problem_of(tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 1\n", "git lfs pull"),
        (b"<!DOCTYPE html>\n<html><head>", "web page"),
        (b"\n  <html lang='en'>", "web page"),
        (b'\x40\x01\x00\x00\x00\x00\x00\x00{"__metadata__":{"format":"pt"}', "safetensors"),
        (b"PK\x03\x04\x00\x00\x08\x08archive/data.pkl", "PyTorch"),
        (b"\x80\x02}q\x00(X\x05\x00\x00\x00model", "pickle"),
        (b"lmgg\x01\x00\x00\x00", "old GGML"),
        (b"\x1f\x8b\x08\x00\x00", "compressed"),
        (b"FUGG\x00\x00\x00\x03", "big-endian"),
        (b"\0" * 600, "zeros"),
        (b"Repository not found\n", "text file, not a GGUF"),
        (b"\xff\xfe\x00\x01\x02\x03", "not a GGUF"),
    ],
)
def test_other_files_are_recognized(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    assert said in problem_of(path)


@pytest.mark.parametrize("secret", [b"AKIA-my-key-1234\n", b"\xffAKI\x00my-key", b"root:x:0:0\n"])
def test_the_content_of_another_file_is_not_told(tmp_path: Path, secret: bytes) -> None:
    """Whoever may name a path, in a service, does not learn what is there."""
    path = tmp_path / "model.gguf"
    path.write_bytes(secret)
    problem = problem_of(path).replace(str(path), "")
    assert not any(part in problem for part in ("AKI", "my-key", "root", "\\xff"))


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("general.type", "adapter", "LoRA adapter"),
        ("general.type", "mmproj", "projector"),
        ("general.architecture", "clip", "projector"),
        ("general.type", "imatrix", "importance matrix"),
        ("general.architecture", "clef", "decision model"),
    ],
)
def test_other_ggufs_are_recognized(
    problem: Callable[[Gguf], str], key: str, value: str, said: str
) -> None:
    model = healthy()
    put(model, key, STRING, text(value))
    assert said in problem(model)


@pytest.mark.parametrize("layers", [1, 2])
def test_a_model_with_a_decision_head_is_none_that_writes(
    problem: Callable[[Gguf], str], layers: int
) -> None:
    model = healthy("hybrid_swa")
    put_number(model, "lfm2.decision.block_count", layers)
    assert "decision model (lfm2)" in problem(model)


# --- damaged files --------------------------------------------------------------------------------


def test_a_cut_off_file_says_how_much_is_missing(tmp_path: Path) -> None:
    data = tiny_model("full").read_bytes()
    path = tmp_path / "model.gguf"
    path.write_bytes(data[:-1000])
    said = problem_of(path)
    assert "1000 are missing" in said
    assert str(len(data)) in said
    assert str(len(data) - 1000) in said


@pytest.mark.parametrize("kind", KINDS)
def test_a_header_that_is_cut_off_anywhere(tmp_path: Path, kind: str) -> None:
    data = tiny_model(kind).read_bytes()
    path = tmp_path / "model.gguf"
    for size in (*range(1, 200), *range(200, 24_000, 487)):
        path.write_bytes(data[:size])
        problem_of(path)


@pytest.mark.parametrize(
    ("version", "said"), [(0, "big-endian"), (0x03000000, "big-endian"), (1, "version 1"), (9, "9")]
)
def test_versions(problem: Callable[[Gguf], str], version: int, said: str) -> None:
    model = healthy()
    model.version = version
    assert said in problem(model)


def test_absurd_counts(problem: Callable[[Gguf], str]) -> None:
    model = healthy()
    model.n_pairs = 2**40
    assert "more than the file can hold" in problem(model)
    model.n_pairs, model.n_tensors = None, 2**63
    assert "more than the file can hold" in problem(model)


def test_no_architecture(problem: Callable[[Gguf], str]) -> None:
    model = healthy()
    del model.pairs[0]
    assert "general.architecture" in problem(model)


def test_a_key_that_occurs_twice(problem: Callable[[Gguf], str]) -> None:
    model = healthy()
    model.pairs.append(model.pairs[3])
    assert "twice" in problem(model)


@pytest.mark.parametrize("alignment", [0, 3, 8])
def test_alignment(problem: Callable[[Gguf], str], alignment: int) -> None:
    model = healthy()
    model.pairs.insert(0, Pair(b"x", STRING, text("y" * 5)))
    put_number(model, "general.alignment", alignment)
    assert "general.alignment" in problem(model) or "aligned" in problem(model)


def test_tensor_records(problem: Callable[[Gguf], str]) -> None:
    def said(change: Callable[[Tensor], object]) -> str:
        model = healthy()
        change(model.tensors[5])
        return problem(model)

    assert "belongs at" in said(lambda tensor: setattr(tensor, "offset", 32))
    assert "unknown type" in said(lambda tensor: setattr(tensor, "type", 31))
    assert "unknown type" in said(lambda tensor: setattr(tensor, "type", 77))
    assert "absurd" in said(lambda tensor: setattr(tensor, "dims", [2**40, 2**40]))
    assert "dimensions" in said(lambda tensor: setattr(tensor, "dims", [1] * 5))
    assert "too long" in said(lambda tensor: setattr(tensor, "name", b"n" * 64))
    assert "rows of 7" in said(lambda tensor: vars(tensor).update(type=8, dims=[7, 7]))


# --- what llama.cpp would not survive -------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("full", "llama.block_count", 0),
        ("full", "llama.block_count", 513),
        ("full", "llama.nextn_predict_layers", 5),
        ("full", "llama.n_deepstack_layers", 2**32 - 1),
        ("full", "llama.expert_count", 2000),
        ("full", "llama.expert_used_count", 2),
        ("full", "llama.expert_group_count", 2),
        ("full", "llama.attention.layer_norm_rms_epsilon", -1.0),
        ("full", "llama.attention.layer_norm_rms_epsilon", float("nan")),
        ("full", "llama.rope.dimension_count", 16),
        ("full", "llama.attention.value_length", 16),
        ("hybrid_swa", "lfm2.rope.dimension_count", 0),
        ("hybrid_swa", "lfm2.rope.dimension_count", 7),
        ("hybrid_swa", "lfm2.rope.dimension_count", 64),
        ("hybrid_swa", "lfm2.attention.head_count", 3),
        ("hybrid_swa", "lfm2.attention.sliding_window", 2**31),
        ("hybrid_swa", "lfm2.shortconv.l_cache", 1),
        ("iswa_gemma", "gemma3.attention.sliding_window_pattern", 1),
        ("recurrent", "mamba2.ssm.group_count", 0),
        ("recurrent", "mamba2.ssm.time_step_rank", 7),
        ("hybrid", "granitehybrid.ssm.inner_size", 128),
    ],
)
def test_impossible_hyper_parameters(
    problem: Callable[[Gguf], str], kind: str, key: str, value: int | float
) -> None:
    model = healthy(kind)
    put_number(model, key, value)
    assert key.split(".")[-1].split("_")[0] in problem(model)


def renamed(architecture: str, kind: str = "full") -> Gguf:
    """A tiny model that says it has another architecture."""
    model = healthy(kind)
    (old,) = (pair.raw[8:] for pair in model.pairs if pair.key == b"general.architecture")
    put(model, "general.architecture", STRING, text(architecture))
    for pair in model.pairs:
        if pair.key.startswith(old + b"."):
            pair.key = architecture.encode() + pair.key[len(old) :]
    return model


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"attention.value_expert_count": 2000, "attention.value_expert_used_count": 2}, "2000"),
        ({"attention.value_expert_count": 2, "attention.value_expert_used_count": 3}, "is 3, of 2"),
        ({"attention.value_expert_count": 2}, "is 0, of 2"),
        ({"attention.value_expert_used_count": 2}, "is 2, of 0"),
        ({"attention.group_norm_groups": 7}, "does not divide"),
        ({"attention.value_length": 16}, "values of 16"),
        (
            {
                "attention.value_expert_count": 2,
                "attention.value_expert_used_count": 1,
                "expert_gating_func": 4,
            },
            "expert_gating_func is 4",
        ),
    ],
)
def test_impossible_experts_for_values(
    problem: Callable[[Gguf], str], numbers: dict[str, int], said: str
) -> None:
    model = renamed("k2-horizon")
    for name, value in numbers.items():
        put_number(model, f"k2-horizon.{name}", value)
    assert said in problem(model)


def test_experts_for_values_pass(tmp_path: Path) -> None:
    model = renamed("k2-horizon")
    put_number(model, "k2-horizon.attention.value_expert_count", 4)
    put_number(model, "k2-horizon.attention.value_expert_used_count", 2)
    put_number(model, "k2-horizon.attention.group_norm_groups", 2)
    path = tmp_path / "model.gguf"
    path.write_bytes(model.encode())
    assert check_model_file(path).architecture == "k2-horizon"


def test_a_file_of_next_token_heads_alone(problem: Callable[[Gguf], str], tmp_path: Path) -> None:
    model = renamed("glm4moe")
    put_number(model, "glm4moe.nextn_predict_layers", 1)
    path = tmp_path / "whole.gguf"
    path.write_bytes(model.encode())
    assert check_model_file(path).n_heads == 0
    tensor(model, "blk.0.attn_norm.weight").name = b"blk.9.attn_norm.weight"
    assert "next-token heads (MTP)" in problem(model)


def test_an_unknown_activation_of_a_classifier(problem: Callable[[Gguf], str]) -> None:
    model = healthy()
    put(model, "llama.classifier.activation", STRING, text("softplus"))
    assert "softplus" in problem(model)


def test_rope_sections_that_do_not_fit(problem: Callable[[Gguf], str]) -> None:
    model = healthy()
    put(model, "llama.rope.dimension_sections", ARRAY, struct.pack("<IQ4i", I32, 4, 7, 255, 0, 0))
    assert "rope.dimension_sections" in problem(model)


def test_unknown_rope_scaling(problem: Callable[[Gguf], str]) -> None:
    model = healthy()
    put(model, "llama.rope.scaling.type", STRING, text("bogus"))
    assert "bogus" in problem(model)


def test_a_token_that_occurs_twice(problem: Callable[[Gguf], str]) -> None:
    model = healthy()
    tokens = tiny_vocab().tokens
    tokens = [*tokens[:-1], tokens[300]]
    raw = struct.pack("<IQ", STRING, len(tokens)) + b"".join(map(text, tokens))
    put(model, "tokenizer.ggml.tokens", ARRAY, raw)
    assert repr(tokens[300]) in problem(model)


def test_a_model_without_a_vocabulary(problem: Callable[[Gguf], str]) -> None:
    model = healthy()
    put(model, "tokenizer.ggml.model", STRING, text("no_vocab"))
    assert "no vocabulary" in problem(model)


def test_a_sentencepiece_vocabulary_without_bytes(problem: Callable[[Gguf], str]) -> None:
    model = healthy()
    put(model, "tokenizer.ggml.model", STRING, text("llama"))
    assert "<0x80>" in problem(model)


@pytest.mark.parametrize(
    ("kind", "name", "type_id"),
    [
        ("full", "blk.0.attn_q.weight", 26),  # I32
        ("full", "blk.0.attn_norm.weight", 1),  # F16
        ("full", "output.weight", 28),  # F64
        ("recurrent", "blk.0.ssm_a", 28),
        ("hybrid_swa", "blk.0.shortconv.conv.weight", 1),
        ("hybrid_swa", "token_embd.weight", 9),  # Q8_1
    ],
)
def test_types_that_a_layer_cannot_use(
    problem: Callable[[Gguf], str], kind: str, name: str, type_id: int
) -> None:
    model = healthy(kind)
    tensor(model, name).type = type_id
    lay_out(model)
    assert name in problem(model)


def test_a_bias_that_is_used_in_any_case(problem: Callable[[Gguf], str]) -> None:
    model = healthy("hybrid")
    model.tensors.remove(tensor(model, "blk.2.ssm_conv1d.bias"))
    lay_out(model)
    assert "blk.2.ssm_conv1d.bias" in problem(model)


# --- split models ---------------------------------------------------------------------------------


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    model = healthy()
    paths = []
    for number in range(3):
        part = Gguf(list(model.pairs if number == 0 else model.pairs[:1]), [], bytearray())
        part.pairs += [
            Pair(b"split.no", U16, struct.pack("<H", number)),
            Pair(b"split.count", U16, struct.pack("<H", 3)),
            Pair(b"split.tensors.count", I32, struct.pack("<i", len(model.tensors))),
        ]
        for each in model.tensors[number::3]:
            begin = len(part.data)
            size = 4 * int(np.prod(each.dims))
            part.data += model.data[each.offset : each.offset + size]
            part.data += bytes(-len(part.data) % 32)
            part.tensors.append(Tensor(each.name, each.dims, each.type, begin))
        path = tmp_path / f"model-{number + 1:05d}-of-00003.gguf"
        path.write_bytes(part.encode())
        paths.append(path)
    return paths


def test_a_split_model_is_described_as_a_whole(shards: list[Path]) -> None:
    info, whole = check_model_file(shards[0]), check_model_file(tiny_model("full"))
    assert info.shards == tuple(shards)
    assert info.n_split == 3
    assert info.n_params == whole.n_params
    assert info.n_tensors == whole.n_tensors
    assert info.n_bytes == sum(path.stat().st_size for path in shards)


def test_the_fingerprint_looks_into_every_shard(shards: list[Path]) -> None:
    prints = {Model(shards[0]).fingerprint}
    for path, (_, *tensors) in check_model_file(shards[0]).places.items():
        data = bytearray(path.read_bytes())
        data[tensors[-1] + 2] ^= 0x20
        path.write_bytes(data)
        prints.add(Model(shards[0]).fingerprint)
    assert len(prints) == 1 + len(shards)


def test_missing_shards_are_named(shards: list[Path]) -> None:
    shards[1].unlink()
    assert "missing: model-00002-of-00003.gguf" in problem_of(shards[0])


def test_a_damaged_shard_is_named(shards: list[Path]) -> None:
    shards[2].write_bytes(shards[2].read_bytes()[:-5000])
    assert "model-00003-of-00003.gguf" in problem_of(shards[0])


def test_another_than_the_first_shard(shards: list[Path]) -> None:
    assert "model-00001-of-00003.gguf" in problem_of(shards[1])


def test_a_renamed_first_shard(shards: list[Path]) -> None:
    renamed = shards[0].rename(shards[0].with_name("mine.gguf"))
    assert "must keep its name" in problem_of(renamed)


# --- string arrays --------------------------------------------------------------------------------

pieces = st.lists(
    st.one_of(
        st.binary(max_size=12),
        st.text(alphabet="ab", max_size=20).map(str.encode),
        st.sampled_from([b"", b"\0", b"\0\0\0\0\0\0\0\0\0", b"x" * 255, b"y" * 256, b"z" * 70_000]),
    ),
    max_size=60,
)


def mapped(data: bytes) -> mmap.mmap:
    buffer = mmap.mmap(-1, max(1, len(data)))
    buffer[: len(data)] = data
    return buffer


@given(pieces, st.binary(max_size=20))
def test_strings_are_found_where_they_are(strings: list[bytes], before: bytes) -> None:
    data = before + b"".join(struct.pack("<Q", len(each)) + each for each in strings)
    buffer, end = mapped(data), len(before)
    assert end_of_strings(buffer, end, 0) == end
    for count, each in enumerate(strings, 1):
        end += 8 + len(each)
        assert end_of_strings(buffer, len(before), count) == end


@given(pieces, st.data())
def test_strings_of_a_cut_off_file_are_fewer(strings: list[bytes], choice: st.DataObject) -> None:
    data = b"".join(struct.pack("<Q", len(each)) + each for each in strings)
    cut = choice.draw(st.integers(0, len(data)))
    end = end_of_strings(mapped(data[:cut]), 0, len(strings))
    assert end == (None if cut < len(data) else len(data))


@given(pieces)
def test_duplicates_are_those_of_a_set(strings: list[bytes]) -> None:
    data = b"".join(struct.pack("<Q", len(each)) + each for each in strings)
    seen = [each.split(b"\0")[0] for each in strings]
    seen = [each for each in seen if each]
    duplicate = duplicate_string(mapped(data + bytes(8)), 0, len(strings))
    assert (duplicate is not None) == (len(set(seen)) < len(seen))


@given(pieces)
def test_lengths_that_lie_lead_nowhere(strings: list[bytes]) -> None:
    """Lengths of up to 2**64 - 1, at the very end of what is mapped as well."""
    data = b"".join(struct.pack("<Q", len(each)) + each for each in strings)
    for lie in (1, 2**63 - 1, 2**63, 2**64 - 9, 2**64 - 8, 2**64 - 1):
        buffer = mapped(data + struct.pack("<Q", lie))
        assert end_of_strings(buffer, 0, len(strings) + 1) is None
        assert end_of_strings(buffer, 0, 2**64 - 1) is None
        assert end_of_strings(buffer, 2**64 - 1, 1) is None
        duplicate_string(buffer, 0, 2**64 - 1)
        unspelled_byte(buffer, 0, 2**64 - 1)


def test_the_one_token_that_is_there_twice_is_named() -> None:
    strings = [b"token %d" % index for index in range(200_000)]
    data = b"".join(struct.pack("<Q", len(each)) + each for each in [*strings, strings[77]])
    buffer = mapped(data)
    assert duplicate_string(buffer, 0, len(strings)) is None
    assert duplicate_string(buffer, 0, len(strings) + 1) == "token 77"


_LITTLE = """
import mmap, resource, sys
from llama_py.gguf.strings import duplicate_string
count, path = 1 << 26, sys.argv[1]
with open(path, "wb+") as file:
    file.truncate(8 * count)
    buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
assert duplicate_string(buffer, 0, 10) is None
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), -1))
try:
    duplicate_string(buffer, 0, count)
except MemoryError:
    print("refused")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="as Linux tells and limits it")
def test_a_vocabulary_that_leaves_no_memory_does_not_end_the_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _LITTLE, str(tmp_path / "sparse")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "refused\n", done.stderr


def test_a_large_vocabulary_is_checked_quickly(tmp_path: Path) -> None:
    model = healthy()
    tokens = [*tiny_vocab().tokens, *(f"token number {index}" for index in range(150_000))]
    for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.merges"):
        raw = struct.pack("<IQ", STRING, len(tokens)) + b"".join(map(text, tokens))
        put(model, key, ARRAY, raw)
    path = tmp_path / "model.gguf"
    path.write_bytes(model.encode())
    began = time.thread_time()
    assert check_model_file(path).n_vocab == len(tokens)
    assert time.thread_time() - began < 1  # about 0.03 on an idle machine
