"""The ``Llama`` that is measured, a timed turn, and the verifier of its logits."""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from llama_py.bench.workloads import Message, Scripted, prose
from llama_py.errors import LlamaError, ModelNotFoundError
from llama_py.version import LLAMA_CPP_COMMIT, __version__

if TYPE_CHECKING:
    from llama_py.api.llama import Llama

__all__ = [
    "FINDERS",
    "Clock",
    "Turn",
    "Verifier",
    "add_model_arguments",
    "chat",
    "clock_of",
    "conditions",
    "counter",
    "load",
    "nmse",
    "prose_tokens",
    "resolve_model",
    "set_reuse",
    "tolerance",
    "whole_context",
]

Row = NDArray[np.float32]
Clock = Callable[[], float]
#: Asked for the file of a ``--model`` that is none: what other command lines know by name.
FINDERS: list[Callable[[str], str | None]] = []


def add_model_arguments(parser: argparse.ArgumentParser, model: str = "demo") -> None:
    """Add the options of every benchmark with a model."""
    parser.add_argument(
        "--model",
        default=model,
        metavar="NAME",
        help="a GGUF file, or 'demo' (the bundled model); with python -m benchmarks also a real "
        "model that was fetched (smollm2, gemma3, qwen05, qwen15) and random weights in a "
        "realistic shape, SHAPE[:vocab=N][:quant=Q] with smollm2-135m (full attention), "
        "gemma3-270m (sliding window), lfm2-350m (hybrid), mamba2-130m (recurrent) or "
        "llama-3b-half (a model of 3B at half its depth) (default: %(default)s)",
    )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2
    parser.add_argument("--threads", type=int, default=min(cores, 8), metavar="N")
    parser.add_argument("--n-batch", type=int, default=512, metavar="N")
    parser.add_argument(
        "--clock",
        choices=["wall", "cpu"],
        default="wall",
        help="cpu: processor time of the process, for machines that are busy with other work; "
        "sets --threads 1, since threads that wait for each other use processor time",
    )
    parser.add_argument(
        "--flash-attn",
        nargs="?",
        choices=["off", "on", "default"],
        default="off",
        const="on",
        help="flash attention, for both sides; default: each side as it is without an argument. "
        "Off, results depend less on how tokens are batched (default: %(default)s)",
    )
    parser.add_argument(
        "--kv-unified",
        choices=["on", "off"],
        default="on",
        help="off: each conversation has a buffer of cells of its own (default: %(default)s)",
    )


def resolve_model(name: str) -> str:
    """The file that the value of ``--model`` names: itself, or that of the bundled model.

    Raises:
        ModelNotFoundError: it is neither, and nobody of ``FINDERS`` knows it.
    """
    if name == "demo":
        from llama_py.demo import demo_model_path

        return demo_model_path()
    if Path(name).is_file():
        return name
    for find in FINDERS:
        path = find(name)
        if path is not None:
            return path
    shapes = "" if FINDERS else "; models in realistic shapes: python -m benchmarks, in a checkout"
    raise ModelNotFoundError(f"--model {name}: no such file, and not 'demo'{shapes}")


def clock_of(options: argparse.Namespace) -> Clock:
    """The clock that ``--clock`` names: wall-clock time, or processor time of the process."""
    return time.process_time if options.clock == "cpu" else time.perf_counter


def load(options: argparse.Namespace, n_ctx: int, **changes: Any) -> Llama:
    """The model of ``options`` with a context of ``n_ctx``."""
    from llama_py.api.llama import Llama

    arguments: dict[str, Any] = {
        "n_ctx": n_ctx,
        "n_threads": options.threads,
        "n_threads_batch": options.threads,
        "n_batch": options.n_batch,
        "n_ubatch": min(options.n_batch, 512),
        "kv_unified": options.kv_unified == "on",
        **flash_attention(options),
    }
    return Llama(resolve_model(options.model), **{**arguments, **changes})


def flash_attention(options: argparse.Namespace) -> dict[str, bool]:
    """The argument of ``Llama``, also of llama-cpp-python's, or none."""
    return {} if options.flash_attn == "default" else {"flash_attn": options.flash_attn == "on"}


def whole_context(tokens: int) -> int:
    """The number of cells that llama.cpp allocates for a number of tokens."""
    return (tokens + 255) // 256 * 256


#: Options that are shown under another name, or say nothing about what was measured.
_NOT_CONDITIONS = {"name", "model", "n_ctx", "json", "output", "strict", "peer_python"}


def conditions(options: argparse.Namespace, n_ctx: int) -> dict[str, Any]:
    """Everything that is needed to repeat the measurement."""
    load_average = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    given = {name: value for name, value in vars(options).items() if name not in _NOT_CONDITIONS}
    return {
        "llama_py": __version__,
        "llama.cpp": LLAMA_CPP_COMMIT,
        "model": Path(options.model).name,
        "n_ctx": n_ctx,
        **given,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load": load_average,
    }


def set_reuse(llm: Llama, mode: str) -> None:
    """Select reuse: ``off`` (none), ``token`` (only token prefixes) or ``text`` (all)."""
    llm.runtime.limit_reuse(reuse=mode != "off", text=mode == "text")


def counter(llm: Llama) -> Any:
    """A function that counts the tokens of a text."""
    return lambda text: len(llm.tokenize(text, add_bos=False))


def prose_tokens(llm: Llama, seed: str, count: int, *, add_bos: bool = True) -> list[int]:
    """``count`` tokens of English words."""
    return llm.tokenize(prose(seed, count, counter(llm)), add_bos=add_bos)[:count]


@dataclass(frozen=True, slots=True)
class Turn:
    """One answered conversation.

    Attributes:
        seconds: of the whole call; ``prompt_seconds`` until the first token.
        tokens: of the prompt, as they were in memory, and of the reply.
        evaluated, reused: tokens of the prompt.
        held: tokens in memory after the call.
        logits: at the last evaluated position.
    """

    seconds: float
    prompt_seconds: float
    text: str
    tokens: Sequence[int]
    generated: Sequence[int]
    info: Mapping[str, Any]
    logits: Row

    @property
    def evaluated(self) -> int:
        return int(self.info["evaluated"])

    @property
    def reused(self) -> int:
        return int(self.info["reused"])

    @property
    def held(self) -> int:
        return len(self.tokens) + len(self.generated) - 1


def chat(
    llm: Llama,
    messages: Sequence[Message],
    script: Sequence[int] | None = None,
    clock: Clock = time.perf_counter,
    **options: Any,
) -> Turn:
    """One greedy turn, timed; ``script`` makes the model say just these tokens."""
    if script is not None:
        options["logits_processor"] = [Scripted(script)]
    options = {"temperature": 0.0, **options}
    start = clock()
    answer: Any = llm.create_chat_completion(messages, **options)
    seconds = clock() - start
    record = llm.runtime.last.ended
    if record is None:
        raise LlamaError("the call left no record")
    return Turn(
        seconds,
        answer["timings"]["prompt_ms"] / 1e3,
        answer["choices"][0]["message"]["content"] or "",
        [*record.tokens],
        [*record.generated],
        dict(record.cache),
        llm.last_logits,
    )


def nmse(a: Row, b: Row) -> float:
    """Mean squared difference, divided by the mean square of ``b``."""
    wide = a.astype(np.float64), b.astype(np.float64)
    return float(np.mean((wide[0] - wide[1]) ** 2) / np.mean(wide[1] ** 2))


def tolerance(llm: Llama) -> float:
    """The largest NMSE that batches of other sizes, or cells in another order, explain.

    With quantized weights, their inputs are quantized as well, which magnifies small differences.
    """
    unquantized = llm.metadata.get("general.file_type") == "0"
    return 1e-8 if unquantized and llm.runtime.given.get("flash_attn") is False else 2e-3


class Verifier:
    """Evaluates the tokens of a turn in an empty context, and compares the logits at the end.

    Args:
        llm: a model of its own, with nothing in memory.
    """

    def __init__(self, llm: Llama, clock: Clock = time.perf_counter) -> None:
        self._llm = llm
        self._clock = clock
        self.tolerance = tolerance(llm)

    def check(self, turn: Turn) -> tuple[float, float]:
        """The NMSE, and the seconds that the prompt took in the empty context."""
        self._llm.reset()
        start = self._clock()
        self._llm.eval(turn.tokens)
        seconds = self._clock() - start
        for token in turn.generated[:-1]:  # one by one, as they were generated
            self._llm.eval([token])
        return nmse(turn.logits, self._llm.last_logits), seconds

    def close(self) -> None:
        """Free the model."""
        self._llm.close()
