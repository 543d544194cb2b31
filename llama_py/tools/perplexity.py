"""``perplexity`` and ``kl_divergence``: how well a model predicts a text, alone and beside another.

The formulas, the numbers' types and the file of the base model's logits are those of llama.cpp's
``llama-perplexity`` (tools/perplexity/perplexity.cpp).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama_py.errors import InvalidModelError, ParameterError
from llama_py.gguf.writer import new_file
from llama_py.regular_files import open_regular
from llama_py.tools.chunks import ChunkLogits, TextChunks

__all__ = ["Divergence", "Estimate", "Perplexity", "kl_divergence", "perplexity"]

_MAGIC = b"_logits_"
#: Below this, a logarithm of a probability of the base model does not count.
_LEAST = np.float32(-16)
#: Values below which there are no statistics.
_FEWEST = 100

#: Called with the pieces that are done, all of them, and the perplexity so far.
Progress = Callable[[int, int, float], object]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and its standard error."""

    value: float
    error: float

    def __str__(self) -> str:
        return f"{self.value:.4f} ± {self.error:.5f}"


@dataclass(frozen=True, slots=True)
class Perplexity:
    """How well a model predicts a text: the exponential of the mean negative logarithm.

    Attributes:
        estimate: the perplexity.
        so_far: behind each piece.
        n_tokens: how many predictions were counted.
    """

    estimate: Estimate
    so_far: tuple[float, ...]
    n_tokens: int


def perplexity(
    model: str | os.PathLike[str],
    text: str,
    *,
    n_ctx: int = 512,
    n_batch: int = 2048,
    chunks: int | None = None,
    base: str | os.PathLike[str] | None = None,
    n_threads: int | None = None,
    progress: Progress | None = None,
) -> Perplexity:
    """The perplexity of a model on a text.

    Args:
        n_ctx: tokens of a piece; its second half is counted.
        n_batch: tokens that are evaluated at once.
        chunks: pieces at most; None for all.
        base: a file that is written for ``kl_divergence`` of another model: two bytes for each
            token of the vocabulary and counted token.

    Raises:
        ParameterError: the text is too short.
        ModelLoadError: see ``Llama``.
    """
    with TextChunks(Path(model), n_ctx, n_batch, n_threads) as evaluated:
        tokens = evaluated.tokens(text, chunks)
        parts = evaluated.evaluate(tokens)
        count = len(tokens) // n_ctx
        if base is None:
            return _perplexity(parts, count, progress, lambda _: None)
        with new_file(Path(base)) as (file, _):
            head = np.array([n_ctx, evaluated.n_vocab, count], np.int32)
            file.write(_MAGIC + head.tobytes() + tokens.tobytes())
            return _perplexity(parts, count, progress, lambda part: _write(file.write, part))


def _perplexity(
    parts: Iterator[ChunkLogits],
    count: int,
    progress: Progress | None,
    keep: Callable[[ChunkLogits], None],
) -> Perplexity:
    found: list[float] = []
    so_far: list[float] = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for part in parts:
            keep(part)
            rows = zip(part.logits, part.following, strict=True)
            found += pool.map(lambda each: _negative_log(*each), rows)
            so_far.append(math.exp(math.fsum(found) / len(found)))
            if progress is not None:
                progress(part.number + 1, count, so_far[-1])
    mean = _mean(found)
    return Perplexity(
        Estimate(math.exp(mean.value), mean.error * math.exp(mean.value)), (*so_far,), len(found)
    )


def _negative_log(logits: NDArray[np.float32], token: np.int32) -> float:
    most = logits.max()
    total = math.log(np.exp(logits - most).sum(dtype=np.float64))
    return total - float(logits[token] - most)


def _mean(values: Iterable[float]) -> Estimate:
    every = np.asarray([*values], np.float64)
    mean = float(every.mean())
    spread = float((every**2).mean()) - mean**2
    return Estimate(
        mean, math.sqrt(spread / (len(every) - 1)) if spread > 0 and len(every) > 10 else 0.0
    )


# ---- the base model's logits -------------------------------------------------------------------


def _write(write: Callable[[bytes], object], part: ChunkLogits) -> None:
    for logits in part.logits:
        most = logits.max()
        least = max(logits.min(), most - np.float32(16))
        total = np.float32(math.log(np.exp(logits - most).sum(dtype=np.float64)))
        scale = (most - least) / np.float32(65535)
        steps = np.zeros(2 * ((len(logits) + 1) // 2), np.uint16)
        if scale:
            inverse = np.float32(1) / scale
            steps[: len(logits)] = np.rint(np.maximum(inverse * (logits - least), 0))
        write(np.array([scale, least - most - total], np.float32).tobytes() + steps.tobytes())


class _Base:
    """The file of a base model's logits."""

    def __init__(self, file: BufferedIOBase, path: str) -> None:
        self._file, self._path = file, path
        if self._read(8) != _MAGIC:
            raise InvalidModelError(f"{path} does not have the logits of a base model")
        head = np.frombuffer(self._read(12), np.int32)
        self.n_ctx, self.n_vocab, self.n_chunks = (int(each) for each in head)
        if not (8 <= self.n_ctx < 2**24 and 0 < self.n_vocab < 2**24 and 0 < self.n_chunks < 2**24):
            raise InvalidModelError(f"{path} is damaged: its sizes are {head.tolist()}")
        size = 4 * self.n_ctx * self.n_chunks
        self.tokens = np.frombuffer(self._read(size), np.int32)
        if self.tokens.min() < 0 or self.tokens.max() >= self.n_vocab:
            raise InvalidModelError(f"{path} is damaged: it has tokens beyond its vocabulary")

    def rows(self, count: int) -> NDArray[np.float32]:
        """Logarithms of probabilities of the next counted tokens: ``(count, n_vocab)``."""
        width = 2 * ((self.n_vocab + 1) // 2) + 4
        raw = np.frombuffer(self._read(2 * count * width), np.uint16).reshape(count, width)
        scales = raw[:, :4].copy().view(np.float32)
        steps = raw[:, 4 : 4 + self.n_vocab].astype(np.float32)
        found: NDArray[np.float32] = scales[:, :1] * steps + scales[:, 1:2]
        return found

    def _read(self, size: int) -> bytes:
        found = self._file.read(size)
        if len(found) != size:
            raise InvalidModelError(f"{self._path} is cut off")
        return found


# ---- two models --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Divergence:
    """How a model's predictions differ from those of a base model.

    Attributes:
        perplexity, base_perplexity: of each of them.
        log_ratio: ``ln(perplexity / base_perplexity)``.
        ratio, difference: the same as a quotient, and as a difference.
        correlation: of the logarithms of both, 0 to 1.
        mean: the mean Kullback-Leibler divergence, in nats.
        values: the divergence for each counted token, in ascending order.
        changes: the change of the probability of each right token, in ascending order.
        mean_change, rms_change: of these.
        same_top: how often both find the same token the most probable.
    """

    perplexity: Estimate
    base_perplexity: Estimate
    log_ratio: Estimate
    ratio: Estimate
    difference: Estimate
    correlation: float
    mean: Estimate
    values: NDArray[np.float32]
    changes: NDArray[np.float32]
    mean_change: Estimate
    rms_change: Estimate
    same_top: Estimate

    @staticmethod
    def percentile(values: NDArray[np.float32], fraction: float) -> float:
        """A percentile of ``values`` or ``changes``, 0.0 to 1.0."""
        place = fraction * (len(values) - 1)
        low = int(place)
        high = min(low + 1, len(values) - 1)
        return float((1 - (place - low)) * values[low] + (place - low) * values[high])

    def report(self) -> str:
        """All figures, in the lines of ``llama-perplexity --kl-divergence``."""
        lines = [
            "====== Perplexity statistics ======",
            _line("Mean PPL(Q)                   ", self.perplexity),
            _line("Mean PPL(base)                ", self.base_perplexity),
            f"Cor(ln(PPL(Q)), ln(PPL(base))): {100 * self.correlation:6.2f}%",
            _line("Mean ln(PPL(Q)/PPL(base))     ", self.log_ratio),
            _line("Mean PPL(Q)/PPL(base)         ", self.ratio),
            _line("Mean PPL(Q)-PPL(base)         ", self.difference),
            "",
            "====== KL divergence statistics ======",
            _line("Mean    KLD", self.mean),
            f"Maximum KLD: {self.values[-1]:10.6f}",
            *(self._kl_line(part) for part in (0.999, 0.99, 0.95, 0.9)),
            f"Median  KLD: {self.percentile(self.values, 0.5):10.6f}",
            *(self._kl_line(part) for part in (0.1, 0.05, 0.01, 0.001)),
            f"Minimum KLD: {self.values[0]:10.6f}",
            "",
            "====== Token probability statistics ======",
            _share("Mean    Δp", self.mean_change),
            f"Maximum Δp: {100 * self.changes[-1]:6.3f}%",
            *(self._change_line(part) for part in (0.999, 0.99, 0.95, 0.9, 0.75)),
            f"Median  Δp: {100 * self.percentile(self.changes, 0.5):6.3f}%",
            *(self._change_line(part) for part in (0.25, 0.1, 0.05, 0.01, 0.001)),
            f"Minimum Δp: {100 * self.changes[0]:6.3f}%",
            _share("RMS Δp    ", self.rms_change),
            _share("Same top p", self.same_top),
        ]
        return "\n".join(lines)

    def _kl_line(self, part: float) -> str:
        return f"{100 * part:4.1f}%   KLD: {self.percentile(self.values, part):10.6f}"

    def _change_line(self, part: float) -> str:
        return f"{100 * part:4.1f}%   Δp: {100 * self.percentile(self.changes, part):6.3f}%"


def _line(name: str, estimate: Estimate) -> str:
    return f"{name}: {estimate.value:10.6f} ± {estimate.error:10.6f}"


def _share(name: str, estimate: Estimate) -> str:
    return f"{name}: {100 * estimate.value:6.3f} ± {100 * estimate.error:5.3f} %"


def kl_divergence(
    model: str | os.PathLike[str],
    base: str | os.PathLike[str],
    *,
    n_batch: int = 2048,
    n_threads: int | None = None,
    progress: Progress | None = None,
) -> Divergence:
    """How a model's predictions differ from those of the base model that wrote ``base``.

    Raises:
        InvalidModelError: the file is damaged.
        ParameterError: the model has another vocabulary; the text was too short for statistics.
    """
    with open_regular(base) as raw, BufferedReader(raw) as file:
        theirs = _Base(file, os.fspath(base))
        n_batch = max(n_batch // theirs.n_ctx, 1) * theirs.n_ctx
        with TextChunks(Path(model), theirs.n_ctx, n_batch, n_threads) as evaluated:
            if evaluated.n_vocab != theirs.n_vocab:
                raise ParameterError(
                    f"{model} has {evaluated.n_vocab} tokens in its vocabulary, and the base model "
                    f"{theirs.n_vocab}: they cannot be compared"
                )
            rows = _compared(evaluated, theirs, progress)
    return _divergence(rows)


def _compared(
    evaluated: TextChunks, theirs: _Base, progress: Progress | None
) -> NDArray[np.float64]:
    """For each counted token: nll, nll of the base, divergence, change, and whether tops agree."""
    found: list[tuple[float, ...]] = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for part in evaluated.evaluate(theirs.tokens):
            rows = zip(part.logits, theirs.rows(len(part.following)), part.following, strict=True)
            found += pool.map(lambda each: _compare(*each), rows)
            if progress is not None:
                so_far = math.exp(math.fsum(row[0] for row in found) / len(found))
                progress(part.number + 1, theirs.n_chunks, so_far)
    return np.asarray(found, np.float64)


def _compare(
    logits: NDArray[np.float32], base: NDArray[np.float32], token: np.int32
) -> tuple[float, ...]:
    most = logits.max()
    total = np.float32(math.log(np.exp(logits - most).sum(dtype=np.float64)))
    nll = np.float32(most + total - logits[token])
    nll_base = np.float32(-base[token])
    counted = np.flatnonzero(base > _LEAST)
    logs = base[counted]
    terms = np.exp(logs) * (logs - logits[counted] + (most + total))
    change = np.exp(-nll) - np.exp(-nll_base)
    same = logits.argmax() == base.argmax()
    return (
        float(nll),
        float(nll_base),
        float(terms.sum(dtype=np.float64)),
        float(change),
        float(same),
    )


def _divergence(rows: NDArray[np.float64]) -> Divergence:
    count = len(rows)
    if count < _FEWEST:
        raise ParameterError(f"{count} tokens were counted; at least {_FEWEST} are needed")
    nll, nll_base, divergence, change, same = rows.T
    one, other = _mean(nll), _mean(nll_base)
    shared = float((nll * nll_base).mean() - nll.mean() * nll_base.mean()) / (count - 1)
    ppl = Estimate(math.exp(one.value), math.exp(one.value) * one.error)
    base = Estimate(math.exp(other.value), math.exp(other.value) * other.error)
    log_ratio = Estimate(one.value - other.value, _root(one.error**2 + other.error**2 - 2 * shared))
    ratio = math.exp(log_ratio.value)
    difference = Estimate(
        ppl.value - base.value,
        _root(ppl.error**2 + base.error**2 - 2 * ppl.value * base.value * shared),
    )
    squares = _mean(change**2)
    rms = math.sqrt(squares.value)
    top = float(same.mean())
    errors: Any = one.error * other.error
    return Divergence(
        perplexity=ppl,
        base_perplexity=base,
        log_ratio=log_ratio,
        ratio=Estimate(ratio, ratio * log_ratio.error),
        difference=difference,
        correlation=shared / errors if errors else 1.0,
        mean=_mean(divergence),
        values=np.sort(divergence.astype(np.float32)),
        changes=np.sort(change.astype(np.float32)),
        mean_change=_mean(change),
        rms_change=Estimate(rms, 0.5 / rms * squares.error if rms else 0.0),
        same_top=Estimate(top, math.sqrt(top * (1 - top) / (count - 1))),
    )


def _root(square: float) -> float:
    return math.sqrt(max(square, 0.0))
