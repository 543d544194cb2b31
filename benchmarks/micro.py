"""Single operations of the hot path, each compared with a naive way (part of ``hotpath``)."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama_py.bench.report import Report, Table, median

__all__ = ["run_micro"]

Row = NDArray[np.float32]
_GBNF = r"""
root ::= "{" ws pair ("," ws pair)* "}"
pair ::= string ":" ws (string | number)
string ::= "\"" [a-zA-Z0-9 ]* "\"" ws
number ::= [0-9]+ ws
ws ::= [ \n]*
"""


def run_micro(report: Report, llm: Any, options: argparse.Namespace) -> None:
    """Add a table of microseconds; a result that differs from the naive way's is a failure."""
    columns = ("step", "naive", "here", "times", "equal")
    table = report.table("microseconds of a step, median", *columns)
    random = np.random.default_rng(1)
    row = random.normal(0, 4, llm.n_vocab()).astype(np.float32)
    pair = _Pair(report, table, options.runs)
    _set_batch(pair)
    _top_logprobs(pair, row)
    _logit_bias(pair, row, llm)
    _detokenize(pair, llm, random)
    _grammar(pair, row, llm)


class _Pair:
    """Times two ways alternately, and compares their results."""

    def __init__(self, report: Report, table: Table, runs: int) -> None:
        self._report, self._table, self._runs = report, table, runs

    def measure(
        self,
        name: str,
        naive: Callable[[], Any],
        here: Callable[[], Any],
        equal: bool,
        *,
        naive_runs: int = 5,
    ) -> None:
        slow, fast = _microseconds(naive, naive_runs), _microseconds(here, self._runs)
        self._table.add(name, slow, fast, slow / fast, equal)
        if not equal:
            self._report.fail(f"{name}: not what the naive way gives")


def _microseconds(action: Callable[[], Any], runs: int) -> float:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        action()
        times.append(1e6 * (time.perf_counter() - start))
    return median(times)


def _set_batch(pair: _Pair) -> None:
    from llama_py._native import llama_h
    from llama_py.core.batch import Batch

    count = 512
    tokens = list(range(count))
    batch = Batch(count)
    plain = llama_h.llama_batch_init(count, 0, 1)

    def naive() -> None:
        plain.n_tokens = count
        for i in range(count):
            plain.token[i] = tokens[i]
            plain.pos[i] = 7 + i
            plain.n_seq_id[i] = 1
            plain.seq_id[i][0] = 3
            plain.logits[i] = False
        plain.logits[count - 1] = True

    def here() -> None:
        batch.set(tokens, 7, 3, False)
        batch.outputs[count - 1] = True

    naive()
    here()
    struct = batch.struct
    equal = all(
        plain.token[i] == struct.token[i]
        and plain.pos[i] == struct.pos[i]
        and plain.seq_id[i][0] == struct.seq_id[i][0]
        and bool(plain.logits[i]) == bool(struct.logits[i])
        for i in range(count)
    )
    pair.measure("set_batch, 512 tokens", naive, here, equal)
    llama_h.llama_batch_free(plain)


def _top_logprobs(pair: _Pair, row: Row) -> None:
    from llama_py.engine.logprobs import top_logprobs

    def naive() -> Any:
        highest = row.max()
        logprobs = row - highest - np.log(np.exp(row - highest).sum())
        ranked = sorted(zip(logprobs, range(len(logprobs)), strict=True), reverse=True)
        return [(token, float(value)) for value, token in ranked[:5]]

    found, reference = top_logprobs(row, 0, 5), naive()
    equal = [token for token, _ in reference] == found.ids.tolist() and bool(
        np.allclose([value for _, value in reference], found.logprobs, atol=1e-4)
    )
    pair.measure("5 log-probabilities", naive, lambda: top_logprobs(row, 0, 5), equal)


def _logit_bias(pair: _Pair, row: Row, llm: Any) -> None:
    from llama_py.core.sampling.sampler import Sampler
    from llama_py.params import SamplingParams

    bias = {token: 0.25 * token - 3 for token in range(0, 320, 10)}
    before = row.copy()
    sampler = Sampler(llm.vocab, SamplingParams(temperature=0, logit_bias=bias))

    def naive() -> int:
        scores = row.copy()
        for token, value in bias.items():
            scores[token] = row[token] + value
        return int(scores.argmax())

    equal = naive() == sampler.sample(row) and np.array_equal(row, before)
    pair.measure("32 logit biases and greedy", naive, lambda: sampler.sample(row), equal)


def _detokenize(pair: _Pair, llm: Any, random: np.random.Generator) -> None:
    from llama_py._native import llama_h
    from llama_py.engine.generation import ReplyText

    tokens = random.integers(0, llm.n_vocab() - 8, 256).tolist()
    vocab = llm.vocab

    buffer = np.empty(256, np.uint8)
    place, size = buffer.ctypes.data, len(buffer)

    def piece(token: int) -> bytes:
        with vocab.in_use() as pointer:
            count = llama_h.llama_token_to_piece(pointer, token, place, size, 0, False)
        return buffer[:count].tobytes()

    def naive() -> str:
        """Detokenize the whole reply after every token, as a naive stream would."""
        text = ""
        for end in range(1, len(tokens) + 1):
            text = b"".join(map(piece, tokens[:end])).decode("utf-8", "replace")
        return text

    def here() -> str:
        reply = ReplyText()
        parts = [reply.feed(vocab.plain_piece(token)) for token in tokens]
        return "".join(parts) + reply.finish()

    pair.measure("a stream of 256 tokens to text", naive, here, naive() == here(), naive_runs=1)


def _grammar(pair: _Pair, row: Row, llm: Any) -> None:
    from llama_py.core.grammar.sampler import GrammarSampler
    from llama_py.params import GrammarSpec

    grammar = GrammarSampler(llm.vocab, GrammarSpec(_GBNF))
    token = llm.tokenize("{", add_bos=False)[0]

    def naive() -> Row:
        masked: Row = row.copy()
        grammar.mask(masked)
        return masked

    masked = naive()
    sample = np.random.default_rng(2).integers(0, len(row), 200).tolist()
    equal = all(grammar.allows(t) == (masked[t] > -np.inf) for t in [token, *sample])
    pair.measure("grammar: a token that is allowed", naive, lambda: grammar.allows(token), equal)
    grammar.close()
