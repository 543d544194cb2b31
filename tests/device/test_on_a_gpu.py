"""What users do, with all layers on a GPU: a real one, or a driver in software.

A device in software is enough to find what goes wrong between its memory and that of the machine.
With Mesa's for Vulkan, and a build with ``-DGGML_VULKAN=on``::

    GGML_VK_VISIBLE_DEVICES=0 python -m pytest -m gpu tests/device

Its kernels for one token and for many round differently, as those of GPUs do. So what is compared
with a fresh context on the same device is close, and not equal.

On llvmpipe, on two cores: 65 passed, none skipped, 507 s with ``LLAMA_PY_DEVICE_RUNS=3``. With 17,
643 operations of each of the seven kinds of memory, in 146 to 1,537 s, differ by 5.3e-6 at most.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from llama_py import Embedder, Image, Llama, LlamaDiskCache, demo_model_path
from llama_py.core import backend
from llama_py.core.device_memory import measured, memory_by_device
from llama_py.errors import NotEnoughMemoryError
from llama_py.params import ContextParams, ModelParams
from tests.embeddings.models import encoder
from tests.media.pictures import disc, stripes
from tests.media.projectors import tiny_projector
from tests.media.text_models import media_model
from tests.memory.adapters import write_adapter
from tests.memory.driver import N_CTX, Driver
from tests.memory.oracle import Oracle, Row, nmse
from tests.memory.test_invariant import VARIANTS, run
from tests.models import tiny_model


def devices() -> list[dict[str, Any]]:
    kinds = ("gpu", "integrated gpu")
    return [device for device in backend.devices() if device["kind"] in kinds]


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not devices(), reason="no backend of this build sees a GPU"),
]

KINDS = ("full", "iswa", "recurrent", "hybrid", "hybrid_swa")
PROMPT = "The quick brown fox jumps over the lazy dog, and the dog does not mind. " * 2
#: Between the device and the CPU, and on the device between a prompt cut one way and another.
SAME, CLOSE = 1e-4, 1e-4
#: A cell that is lost, or another conversation's, changes the logits by more.
OTHER = 1e-3
LONG_RUNS = int(os.environ.get("LLAMA_PY_DEVICE_RUNS", "15"))


def load(kind: str = "full", **options: Any) -> Llama:
    given: dict[str, Any] = {"n_ctx": 512, "n_seq_max": 2, "n_threads": 1, **options}
    return Llama(str(tiny_model(kind)), flash_attn=False, type_k=0, type_v=0, **given)


def on_cpu(kind: str = "full", **options: Any) -> Llama:
    return load(kind, n_gpu_layers=0, op_offload=False, offload_kqv=False, **options)


def after(llm: Llama, prompt: str) -> Row:
    """The logits behind a prompt."""
    llm.create_completion(prompt, max_tokens=1, temperature=0.0)
    row: Row = llm.last_logits.copy()
    return row


def action(llm: Llama) -> Any:
    return llm.runtime.last.record.cache["action"]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_layers_and_cells_are_there(kind: str) -> None:
    with load(kind) as llm:
        found = {each.device: each for each in memory_by_device(llm.runtime.loaded.context)}
        first = found[devices()[0]["name"]]
        assert first.weights > 0.8 * llm.runtime.loaded.model.size_bytes
        assert first.cells > 0
        assert "CPU" not in found or found["CPU"].cells == 0


def test_what_is_predicted_is_what_is_taken(kind: str) -> None:
    context = ContextParams(n_ctx=512, n_seq_max=2, n_threads=1, type_k=0, type_v=0)
    name = devices()[0]["name"]
    predicted = {
        each.device: each for each in measured(tiny_model(kind), ModelParams(), context).devices
    }
    with Llama(str(tiny_model(kind)), n_ctx=512, n_seq_max=2, type_k=0, type_v=0) as llm:
        found = {each.device: each for each in memory_by_device(llm.runtime.loaded.context)}
    assert predicted[name].total == pytest.approx(found[name].total, rel=0.05)


def test_logits_are_those_of_the_cpu(kind: str) -> None:
    with load(kind) as llm, on_cpu(kind) as cpu:
        for prompt in (PROMPT, "word " * 60, "x"):
            assert nmse(after(llm, prompt), after(cpu, prompt)) <= SAME


def test_what_is_reused_is_what_was_evaluated(kind: str) -> None:
    with load(kind) as llm:
        after(llm, PROMPT)
        reused = after(llm, PROMPT + "And then")
        assert llm.runtime.last.record.cache["reused"] > 20
        llm.reset()
        assert nmse(reused, after(llm, PROMPT + "And then")) <= CLOSE
        llm.reset()
        assert nmse(reused, after(llm, PROMPT[5:] + "And then")) > OTHER


def test_a_conversation_leaves_the_device_and_comes_back(kind: str) -> None:
    with load(kind, n_seq_max=1) as llm:
        expected = after(llm, PROMPT)
        after(llm, "Something else altogether, which takes its place. " * 3)
        assert nmse(after(llm, PROMPT), expected) <= CLOSE
        assert action(llm) in ("load", "restore")


@pytest.mark.parametrize("back", [False, True])
def test_a_state_goes_from_one_device_to_the_other(kind: str, back: bool, tmp_path: Path) -> None:
    """Or it is refused, with a reason, and evaluated again."""
    for made, where in enumerate((on_cpu, load) if back else (load, on_cpu)):
        with where(kind) as llm:
            llm.set_cache(LlamaDiskCache(str(tmp_path)))
            row = after(llm, PROMPT + ("And?" if made else ""))
            cache = llm.runtime.last.record.cache
            llm.set_cache(None)
    assert cache["action"] in ("load", "restore") or cache["refused"] or cache["reason"]
    with load(kind) as fresh:
        assert nmse(row, after(fresh, PROMPT + "And?")) <= SAME


def test_a_store_is_read_by_the_next_process(kind: str, tmp_path: Path) -> None:
    for _ in range(2):
        with load(kind) as llm:
            llm.set_cache(LlamaDiskCache(str(tmp_path)))
            row = after(llm, PROMPT)
            last = action(llm)
            llm.set_cache(None)
    assert last in ("load", "restore")
    with load(kind) as fresh:
        assert nmse(row, after(fresh, PROMPT)) <= CLOSE


def test_snapshots_and_branches(kind: str) -> None:
    with load(kind, n_seq_max=3) as llm:
        after(llm, PROMPT)
        llm.snapshot("here")
        for word in ("one", "other"):
            row = after(llm, PROMPT + word)
            llm.reset()
            assert nmse(row, after(llm, PROMPT + word)) <= CLOSE
            llm.restore("here")


def test_drafts_change_nothing() -> None:
    with Llama(demo_model_path(), n_ctx=512) as llm:
        asked: list[Any] = [{"role": "user", "content": "Count to 9."}]
        plain = llm.create_chat_completion(asked, max_tokens=30, temperature=0.0)
        drafted = llm.create_chat_completion(
            asked, max_tokens=30, temperature=0.0, speculative="lookup"
        )
        one, other = (each["choices"][0]["message"]["content"] for each in (plain, drafted))
        assert one == other
        assert one is not None
        assert "9" in one


def test_two_streams_at_once() -> None:
    options: dict[str, Any] = {"max_tokens": 6, "temperature": 0.0, "ignore_eos": True}
    with load(n_seq_max=2) as llm, load(n_seq_max=1) as alone:
        prompts = (PROMPT, "Another one, of other words. ")
        streams = [llm.create_completion(each, stream=True, **options) for each in prompts]
        first = [next(stream) for stream in streams]  # both have begun
        pieces = [[begun, *stream] for begun, stream in zip(first, streams, strict=True)]
        for stream, prompt in zip(pieces, prompts, strict=True):
            text = "".join(piece["choices"][0]["text"] for piece in stream)
            assert text == alone.create_completion(prompt, **options)["choices"][0]["text"]


@pytest.mark.parametrize("name", ["causal", "bert"])
def test_embeddings_are_those_of_the_cpu(name: str) -> None:
    path = tiny_model("full") if name == "causal" else encoder(name)
    texts = ["a text", "another one that is longer than the first", "x"]
    with Embedder(path) as there, Embedder(path, n_gpu_layers=0) as here:
        assert (there.embed(texts) * here.embed(texts)).sum(1).min() > 0.999


def test_an_adapter_is_applied(tmp_path: Path) -> None:
    adapter = str(write_adapter(tmp_path / "adapter.gguf"))
    with load(lora_path=adapter) as llm, on_cpu(lora_path=adapter) as cpu, load() as plain:
        row = after(llm, PROMPT)
        assert nmse(row, after(cpu, PROMPT)) <= SAME
        assert nmse(row, after(plain, PROMPT)) > OTHER


@pytest.mark.parametrize("projector", ["mlp", "gemma3"])
def test_pictures(projector: str) -> None:
    kind = "iswa" if projector == "gemma3" else "full"
    options: dict[str, Any] = {"mmproj": str(tiny_projector(projector)), "n_ctx": 512}
    rows = []
    for layers in (-1, 0):
        with Llama(str(media_model(kind)), n_gpu_layers=layers, **options) as llm:
            for picture in (disc(), stripes()):
                content = ["Look: ", Image(picture), " what is it?"]
                message: Any = {"role": "user", "content": content}
                for question in (
                    message,
                    {**message, "content": [*content[:2], "and its colour?"]},
                ):
                    llm.create_chat_completion([question], max_tokens=1, temperature=0.0)
                    rows.append(llm.last_logits.copy())
    for there, here in zip(rows[:4], rows[4:], strict=True):
        assert nmse(there, here) <= 1e-3
    assert nmse(rows[1], rows[3]) > OTHER


@pytest.mark.parametrize("kind", ["q8_0", "f16"])
def test_types_of_cells(kind: Any) -> None:
    with (
        Llama(demo_model_path(), n_ctx=512, type_k=kind, type_v=kind, flash_attn=True) as llm,
        Llama(demo_model_path(), n_ctx=512, n_gpu_layers=0) as cpu,
    ):
        assert nmse(after(llm, PROMPT), after(cpu, PROMPT)) <= 1e-2


def test_a_reply_is_left_and_the_next_call_works() -> None:
    with load(n_ctx=2048) as llm:
        expected = after(llm, PROMPT)
        stream = llm.create_completion("word " * 400, max_tokens=100, ignore_eos=True, stream=True)
        next(stream)
        stream.close()
        llm.reset()
        assert nmse(after(llm, PROMPT), expected) <= CLOSE


def test_too_little_memory_is_an_error_that_says_so() -> None:
    """Before llama.cpp is asked, which would end the process."""
    with load() as llm:
        expected = after(llm, PROMPT)
        with pytest.raises(NotEnoughMemoryError, match=rf"{devices()[0]['name']}.*n_ctx"):
            load(n_ctx=twice_the_memory(), n_gpu_layers=99)
        llm.reset()
        assert nmse(after(llm, PROMPT), expected) <= CLOSE
        with load() as other:
            assert nmse(after(other, PROMPT), expected) <= CLOSE


def test_by_itself_it_takes_what_fits() -> None:
    """Also if that is nothing, and the machine's memory has the cells."""
    with load(n_ctx=twice_the_memory(), offload_kqv=True) as llm:
        found = {each.device: each for each in memory_by_device(llm.runtime.loaded.context)}
        assert found["CPU"].cells > 0
        with on_cpu() as cpu:
            assert nmse(after(llm, PROMPT), after(cpu, PROMPT)) <= SAME


def twice_the_memory() -> int:
    """Cells of a context for which the device has not nearly enough."""
    one = measured(tiny_model("full"), ModelParams(), ContextParams(n_ctx=4096, type_k=0))
    return int(2 * 4096 * devices()[0]["free_bytes"] // one.devices[0].cells // 4096 * 4096)


class AtOnce(Oracle):
    """Evaluates all tokens in one piece, however they were cut before: hundreds of tokens one by
    one take minutes on a driver in software."""

    def _evaluate(self, tokens: Sequence[int], runs: Sequence[Sequence[int]] | None) -> Row:
        return super()._evaluate(tokens, None)


class OnDevice(Driver):
    """The operations of the invariant machine, with a tolerance for a GPU's rounding."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **{**settings, "tolerance": CLOSE})
        self.guide = Oracle(self.path, n_ctx=N_CTX, on_cpu=True)

    def make_oracle(self, flash_attn: bool) -> Oracle:
        return AtOnce(self.path, n_ctx=N_CTX, flash_attn=flash_attn)

    def close(self) -> None:
        super().close()
        self.guide.close()


@pytest.mark.parametrize(("kind", "swa_full", "flash_attn"), VARIANTS)
def test_reuse_is_close_to_a_fresh_context(kind: str, swa_full: bool, flash_attn: bool) -> None:
    driver = run(kind, swa_full, flash_attn, LONG_RUNS, make=OnDevice)
    print(f"\n{kind} swa_full={swa_full}: {driver.operations} operations, worst {driver.worst:.1e}")
    assert driver.operations >= 30 * LONG_RUNS
