"""The grammar sampler: it allows what llama.cpp allows, and what it cannot do is an error."""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from llama_py import demo_model_path
from llama_py._native import llama_h as C
from llama_py.core.grammar.gbnf_reader import MOST_BYTES, MOST_NESTED
from llama_py.core.grammar.sampler import CANDIDATE, GrammarSampler
from llama_py.core.model import Model
from llama_py.core.vocab import Vocab
from llama_py.errors import GrammarError
from llama_py.params import GrammarSpec


@pytest.fixture(scope="module")
def vocab() -> Iterator[Vocab]:
    with Model(demo_model_path()) as model:
        yield model.vocab


# ---- what it allows -----------------------------------------------------------------------------


def random_grammar(rng: random.Random) -> str:
    names = ["root", *"abc"[: rng.randint(0, 3)]]
    known: list[str] = names

    def item(depth: int) -> str:
        kind = rng.random()
        if kind < 0.4:
            return rng.choice(['"a"', '"the "', '"é"', '"{\\n"', '"1"', '" "', '"xy"'])
        if kind < 0.65:
            return rng.choice(["[a-z]", "[^a\\n]", "[0-9 ]", ".", "[é-ü]", "[-a]"])
        if (kind < 0.8 or depth > 1) and known:
            return rng.choice(known)
        return f"({alternatives(depth + 1)})" if depth < 2 else '"z"'

    def repeated(depth: int) -> str:
        return item(depth) + rng.choice(
            ["", "", "", "?", "*", "+", "{2}", "{1,3}", "{0,2}", "{2,}"]
        )

    def alternatives(depth: int) -> str:
        sequences = [
            " ".join(repeated(depth) for _ in range(rng.randint(1, 3)))
            for _ in range(rng.randint(1, 3))
        ]
        return " | ".join([*sequences, *(['""'] if rng.random() < 0.2 else [])])

    out = []
    for i, name in enumerate(names):
        # Now and then a rule refers to itself, or to an earlier one.
        known = names if rng.random() < 0.1 else names[i + 1 :]
        out.append(f"{name} ::= {alternatives(0)}")
    return "\n".join(out)


def native_mask(sampler: C.llama_sampler_p, size: int) -> np.ndarray:
    candidates = np.zeros(size, CANDIDATE)
    candidates["id"] = np.arange(size)
    data = ctypes.cast(candidates.ctypes.data, ctypes.POINTER(C.llama_token_data))
    C.llama_sampler_apply(sampler, C.llama_token_data_array(data, size, -1, False))
    allowed: np.ndarray = np.isfinite(candidates["logit"])
    return allowed


def compare(ours: GrammarSampler, theirs: Any, vocab: Vocab, rng: random.Random) -> int:
    """Walk through a grammar with both samplers; how many masks were compared."""
    for compared in range(5):
        row = np.zeros(vocab.n_tokens, np.float32)
        ours.mask(row)
        allowed = np.isfinite(row)
        assert np.array_equal(allowed, native_mask(theirs, vocab.n_tokens))
        choices = [t for t in np.flatnonzero(allowed).tolist() if not vocab.is_eog(t)]
        if not choices:
            return compared + 1
        token = rng.choice(choices)
        assert ours.allows(token)
        assert ours.accept(token) is None
        C.llama_sampler_accept(theirs, token)
    return 5


def test_the_same_tokens_as_llama_cpp(vocab: Vocab) -> None:
    """Grammars at random: those that pass the check compile, and every mask is llama.cpp's."""
    rng = random.Random(1)
    compared = refused = 0
    for _ in range(400):
        gbnf = random_grammar(rng)
        try:
            ours = GrammarSampler(vocab, GrammarSpec(gbnf))
        except GrammarError:
            refused += 1
            continue
        theirs = C.llama_sampler_init_grammar(vocab.pointer, gbnf.encode(), b"root")
        assert theirs, gbnf
        try:
            compared += compare(ours, theirs, vocab, rng)
        except GrammarError:  # such grammars can be very ambiguous
            refused += 1
        ours.close()
        C.llama_sampler_free(theirs)
    assert compared > 500
    assert refused < 250


def test_tokens_by_number(vocab: Vocab) -> None:
    """A token that was begun by characters is not that token: llama.cpp would take it, and fail."""
    token = vocab.tokenize("the", add_special=False)[0]
    grammar = GrammarSampler(vocab, GrammarSpec(f'root ::= <[{token}]> | "t"? !<[{token}]>'))
    row = np.zeros(vocab.n_tokens, np.float32)
    grammar.mask(row)
    for each in np.flatnonzero(np.isfinite(row)).tolist():
        again = GrammarSampler(vocab, GrammarSpec(f'root ::= <[{token}]> | "t"? !<[{token}]>'))
        assert again.accept(each) is None
        again.close()
    assert grammar.allows(token)
    grammar.close()


def test_a_token_that_does_not_fit_changes_nothing(vocab: Vocab) -> None:
    grammar = GrammarSampler(vocab, GrammarSpec('root ::= "abc"'))
    wrong = vocab.tokenize("x", add_special=False)[0]
    assert "does not go on" in str(grammar.accept(wrong))
    assert "ends before" in str(grammar.accept(vocab.eos))  # llama.cpp would end the process
    for token in vocab.tokenize("abc", add_special=False):
        assert grammar.accept(token) is None
    assert grammar.accept(vocab.eos) is None
    grammar.close()


# ---- what it costs ------------------------------------------------------------------------------

AMBIGUOUS = {
    "optional parts": ('root ::= ("a"? "a"?){600} "b"', "a"),
    "three times itself": (
        'root ::= x "!"\nx ::= [a-z] x x x | [a-z] x x | [a-z] x | [a-z]',
        "abcdefgh" * 40,
    ),
    "words of words": ('root ::= ([a-z]{0,20} " "?){0,50} "."', "abc"),
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_an_ambiguous_grammar_is_an_error_in_time(name: str, vocab: Vocab) -> None:
    gbnf, text = AMBIGUOUS[name]
    grammar = GrammarSampler(vocab, GrammarSpec(gbnf))
    slowest = 0.0
    with pytest.raises(GrammarError, match="too ambiguous"):  # noqa: PT012
        for token in vocab.tokenize(text, add_special=False):
            start = time.thread_time()
            try:
                grammar.mask(np.zeros(vocab.n_tokens, np.float32))
                grammar.accept(token)
            finally:
                slowest = max(slowest, time.thread_time() - start)
    assert slowest < 0.5  # measured: 20 ms; llama.cpp takes minutes
    grammar.close()


def test_ways_that_become_the_same_are_followed_once(vocab: Vocab) -> None:
    """Each character can be read in three ways; after it, there is one."""
    grammar = GrammarSampler(vocab, GrammarSpec('root ::= ("a" | "a" | "a")* "b"'))
    for token in vocab.tokenize("a" * 200, add_special=False):
        assert grammar.allows(token)
        assert grammar.accept(token) is None
    row = np.zeros(vocab.n_tokens, np.float32)
    grammar.mask(row)
    assert np.isfinite(row[vocab.tokenize("b", add_special=False)[0]])
    grammar.close()


def test_an_enum_of_thousands(vocab: Vocab) -> None:
    gbnf = "root ::= " + " | ".join(f'"value {i}"' for i in range(2000))
    grammar = GrammarSampler(vocab, GrammarSpec(gbnf))
    for token in vocab.tokenize("value 1999", add_special=False):
        row = np.zeros(vocab.n_tokens, np.float32)
        grammar.mask(row)
        assert np.isfinite(row[token])
        assert grammar.accept(token) is None
    grammar.close()


# ---- what is refused ----------------------------------------------------------------------------

REFUSED = {
    "counts the wrong way round": ('root ::= "a"{5,2}', "line 1, rule 'root'.*5,2"),
    "left recursion": ('root ::= x\nx ::= x "a" | "b"', "left-recursive: line 2, rule 'x'"),
    # These two loop for ever in llama.cpp, or end the process.
    "left recursion behind nothing": (
        'root ::= e root "z" | "x"\ne ::= f\nf ::= "y" | ""',
        "left-recursive: line 1, rule 'root'",
    ),
    "no way to go on": ('root ::= "x" a\na ::= e a\ne ::= f\nf ::= ""', "can never end"),
    "repeated repetition": ('root ::= "a"**', "left-recursive"),
    "no end": ('root ::= "a" root', "can never end: line 1, rule 'root'"),
    "an undefined rule": (
        'root ::= (\n  "a" | x)',
        "line 2: the rule 'x' is used, but not defined",
    ),
    "no root": ('start ::= "a"', "does not define 'root'"),
    "text without an end": ('root ::= "abc', "line 1, rule 'root': the text in quotes"),
    "class without an end": ("root ::= [abc", "the character class does not end"),
    "an empty class": ("root ::= [] ", "without characters"),
    "a range that goes backwards": ("root ::= [z-a]", "goes backwards"),
    "an unknown escape": ('root ::= "\\q"', "unknown escape"),
    "a parenthesis too many": ('root ::= "a")', r"unexpected '\)'"),
    "nothing to repeat": ("root ::= *", "nothing before it"),
    "a rule on two lines": ('root ::= "a"\n "b"', "line 2"),
    "half a character": ('root ::= "\ud800"', "line 1.*surrogate"),
    "nesting": ("root ::= " + "(" * 101 + '"a"' + ")" * 101, f"more than {MOST_NESTED} deep"),
    "a large repetition": ('root ::= "a"{3000}', "larger than 2000"),
    "repetitions that multiply": ('root ::= (("a"{0,50}){50}){50}', "repetition of a repetition"),
    "a long text repeated": (f'root ::= "{"a" * 1000}"{{2000}}', "larger than"),
    "size": (f'root ::= "{"a" * MOST_BYTES}"', "bytes"),
    "ways to begin": (
        "root ::= r0\n"
        + "".join(f'r{i} ::= r{i + 1} "a" | r{i + 1} "b"\n' for i in range(40))
        + 'r40 ::= "x"',
        "too ambiguous",
    ),
    "a chain of rules": (
        "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(9000)) + 'r9000 ::= "x"',
        "too deep",
    ),
    "a token that is not there": ("root ::= <[99999]>", "outside of the vocabulary"),
    "no token": ("root ::= <two words>", "is not a token"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, vocab: Vocab, capfd: pytest.CaptureFixture[str]) -> None:
    """With line and rule, quickly, and without a word from llama.cpp."""
    gbnf, reason = REFUSED[name]
    start = time.thread_time()
    with pytest.raises(GrammarError, match=f"(?s){reason}"):
        GrammarSampler(vocab, GrammarSpec(gbnf))
    assert time.thread_time() - start < 2
    assert capfd.readouterr() == ("", "")


def test_a_trigger_pattern_that_is_none(vocab: Vocab) -> None:
    """Python takes it, and llama.cpp would end the process."""
    spec = GrammarSpec('root ::= "a"', lazy=True, trigger_patterns=("(?<=x)y",))
    with pytest.raises(GrammarError, match="trigger pattern"):
        GrammarSampler(vocab, spec)
