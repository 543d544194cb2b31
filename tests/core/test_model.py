"""A model: what it says about itself, how it is loaded, and how it ends."""

from __future__ import annotations

import gc
import hashlib
import shutil
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

from llama_py import demo_model_path
from llama_py.core.context import Context
from llama_py.core.lora import LoraAdapter
from llama_py.core.model import Model
from llama_py.errors import (
    ClosedError,
    InvalidModelError,
    ModelLoadError,
    ModelNotFoundError,
    ParameterError,
    ParameterTypeError,
)
from llama_py.gguf.check import check_model_file
from llama_py.params import ContextParams, ModelParams
from tests.models import CHATML, KINDS, TinySpec, tiny_model

FULL = tiny_model("full")
SMALL = ContextParams(n_ctx=256, n_seq_max=1, n_threads=1)


@pytest.mark.parametrize(
    ("kind", "architecture", "window", "recurrent", "hybrid"),
    [
        ("full", "llama", 0, False, False),
        ("iswa", "cohere2", 32, False, False),
        ("recurrent", "mamba2", 0, True, False),
        ("hybrid", "granitehybrid", 0, False, True),
        ("hybrid_swa", "lfm2", 32, False, True),
    ],
)
def test_what_a_model_says_about_its_memory(
    kind: str, architecture: str, window: int, recurrent: bool, hybrid: bool
) -> None:
    with Model(tiny_model(kind)) as model:
        assert model.architecture == architecture
        assert (model.n_swa, model.is_recurrent, model.is_hybrid) == (window, recurrent, hybrid)
        assert model.has_decoder
        assert not model.has_encoder


def test_facts() -> None:
    spec = TinySpec("full")
    with Model(FULL) as model:
        assert (model.n_embd, model.n_layer) == (spec.n_embd, spec.n_layer)
        assert model.n_ctx_train == spec.n_ctx_train
        assert model.size_bytes == 4 * model.n_params > 1_000_000
        assert model.chat_template() == CHATML == model.metadata["tokenizer.chat_template"]
        assert model.chat_template("nothing") is None
        assert model.metadata["general.name"] == "tiny full"
        assert "llama" in model.description
        assert model.path == FULL


def test_metadata_longer_than_a_buffer_is_whole(tmp_path: Path) -> None:
    template = "{# \u00e9 #}" * 2000
    with Model(tiny_model("full", cache_dir=tmp_path, chat_template=template)) as model:
        assert model.metadata["tokenizer.chat_template"] == template


def test_overrides_of_the_metadata() -> None:
    overrides: dict[str, bool | int | float | str] = {
        "llama.context_length": 777,
        "llama.attention.layer_norm_rms_epsilon": 0.25,
        "tokenizer.ggml.add_bos_token": True,
    }
    with Model(FULL, ModelParams(kv_overrides=overrides)) as model:
        assert model.n_ctx_train == 777
        assert model.vocab.add_bos


def test_progress_is_reported_and_can_stop_the_loading() -> None:
    seen: list[float] = []
    Model(FULL, progress=seen.append).close()
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    with pytest.raises(InvalidModelError, match="cannot load"):
        Model(FULL, progress=lambda done: False)


def test_only_the_vocabulary() -> None:
    with Model(FULL, ModelParams(vocab_only=True)) as model:
        assert model.vocab.tokenize("the")
        assert model.vocab.n_tokens == 519


@pytest.mark.parametrize(
    "params", [{"use_mmap": False}, {"use_mlock": True}, {"check_tensors": True}, {"repack": False}]
)
def test_ways_of_loading(params: dict[str, Any]) -> None:
    with Model(FULL, ModelParams(**params)) as model:
        assert model.n_params > 0


# -- fingerprints ----------------------------------------------------------------------------------


def test_the_fingerprint_is_of_the_weights_and_not_of_the_place(tmp_path: Path) -> None:
    copy = tmp_path / "other.gguf"
    shutil.copy(FULL, copy)
    prints = {Model(path, ModelParams(vocab_only=False)).fingerprint for path in (FULL, copy)}
    assert len(prints) == 1
    others = {Model(tiny_model(kind)).fingerprint for kind in KINDS}
    others |= {Model(tiny_model("full", seed=9)).fingerprint}
    assert len(others) == len(KINDS) + 1
    assert prints < others


def test_the_fingerprint_notices_a_change_in_any_tensor(tmp_path: Path) -> None:
    """States that were made with other weights give wrong logits, and no error."""
    fingerprint = Model(FULL).fingerprint
    for place in check_model_file(FULL).places[FULL][1:]:
        changed = tmp_path / "changed.gguf"
        data = bytearray(FULL.read_bytes())
        data[place + 2] ^= 0x20
        changed.write_bytes(data)
        assert Model(changed).fingerprint != fingerprint, place


# -- files that are not models ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "content", [b"", b"just some text\n" * 50, b"GGUF", b"GGUF" + b"\xff" * 99]
)
def test_a_file_that_is_no_model_is_a_typed_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(InvalidModelError) as caught:
        Model(path)
    assert str(path) in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"gone\.gguf") as caught:
        Model(tmp_path / "gone.gguf")
    assert isinstance(caught.value, FileNotFoundError)
    with pytest.raises(ModelLoadError, match="folder"):
        Model(tmp_path)


@pytest.mark.parametrize("path", [None, 3, b"model.gguf"])
def test_what_is_no_path(path: Any) -> None:
    with pytest.raises(ParameterTypeError, match="model_path must be a path"):
        Model(path)


def test_more_shares_than_devices() -> None:
    with pytest.raises(ParameterError, match="tensor_split has 999"):
        Model(FULL, ModelParams(tensor_split=(1.0,) * 999))


def test_adapters_that_are_none(tmp_path: Path) -> None:
    with Model(FULL) as model:
        with pytest.raises(ModelNotFoundError, match="no LoRA adapter"):
            LoraAdapter(model, tmp_path / "gone.gguf")
        with pytest.raises(InvalidModelError, match="LoRA"):
            LoraAdapter(model, FULL)


# -- life ------------------------------------------------------------------------------------------


def test_a_context_keeps_its_model_alive() -> None:
    context = Context(Model(FULL), SMALL)
    alive = weakref.ref(context.model)
    gc.collect()
    assert alive() is not None
    assert not context.model.closed
    assert context.model.vocab.tokenize("the")
    del context
    gc.collect()
    assert alive() is None


def test_closing_a_model_closes_its_contexts_first() -> None:
    model = Model(FULL)
    contexts = [Context(model, SMALL) for _ in range(2)]
    model.close()
    model.close()
    assert all(context.closed for context in contexts)
    for context in contexts:
        context.close()
        with pytest.raises(ClosedError):
            context.pos_max(0)
    with pytest.raises(ClosedError, match="this Model is closed"):
        _ = model.n_embd


def test_models_load_in_several_threads() -> None:
    found: list[str] = []

    def load(kind: str) -> None:
        with Model(tiny_model(kind)) as model, Context(model, SMALL) as context:
            found.append(model.architecture + str(context.n_ctx))

    threads = [threading.Thread(target=load, args=(kind,)) for kind in (*KINDS, *KINDS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2 * len(KINDS)
    assert len(set(found)) == len(KINDS)


def test_loading_does_not_change_the_file() -> None:
    path = Path(demo_model_path())
    before = hashlib.sha256(path.read_bytes()).digest()
    Model(path).close()
    assert hashlib.sha256(path.read_bytes()).digest() == before
