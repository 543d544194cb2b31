"""Vocabularies that open in less time (``rule.cmake``, ``marks.h``), and come out the same."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path

import gguf
import pytest

from llama_py._native.loader import build_info
from tests.native.builds import configured
from tests.vocabularies import vocabulary

#: Opens each file, and says what llama.cpp made of its vocabulary; the log is on standard error.
_OPEN = """
import ctypes, sys
import numpy as np
from llama_py._native import chat_h, llama_h as C
from llama_py._native.loader import library
from llama_py.core.model import Model
from llama_py.params import ModelParams

compares = ctypes.c_ubyte.in_dll(library("llama"), "llama_py_compare_all_tokens")
compares.value = int(sys.argv[1])
SPECIAL = "bos eos eot sep nl pad mask fim_pre fim_suf fim_mid fim_pad fim_rep fim_sep".split()
for path in sys.argv[2:]:
    model = Model(path, ModelParams(vocab_only=True), verbose=True)
    vocab = model.vocab
    attributes = np.empty(vocab.n_tokens, np.int32)
    chat_h.llama_py_vocab_attributes(vocab.pointer, vocab.n_tokens, attributes.ctypes.data)
    print(path, attributes.tolist())
    print({name: getattr(C, "llama_vocab_" + name)(vocab.pointer) for name in SPECIAL})
    print(vocab.eog_tokens())
    for text in ("Hello, world! 12 <|im_end|>", "for i in range(3):\\n\\tprint(i)", "naïve 東京"):
        print(vocab.tokenize(text, parse_special=True))
    model.close()
"""


def opened(compare_all: bool, files: list[Path]) -> tuple[str, str]:
    command = [sys.executable, "-c", _OPEN, str(int(compare_all)), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, done.stderr


def marks(llama_cpp: Path) -> list[str]:
    """The texts that llama.cpp takes for marks."""
    source = (llama_cpp / "src" / "llama-vocab.cpp").read_text(encoding="utf-8")
    found = sorted({*re.findall(r't\.first == "([^"]*)"', source)})
    assert len(found) > 50
    return found


def with_marks(texts: list[str], path: Path, seed: int) -> Path:
    """The vocabulary of GPT-2, some of whose tokens are marks now, of any type, or nearly marks."""
    rng = random.Random(seed)
    reader = gguf.GGUFReader(vocabulary("gpt-2"))
    out = gguf.GGUFWriter(path, "llama")
    chosen = rng.sample(texts, rng.randrange(1, len(texts)))
    chosen += [f"_{text}" for text in rng.sample(texts, 5)]
    chosen += [text[1:] for text in rng.sample(texts, 5)] + ["<unused7>", "unused8", "_"]
    chosen = [*dict.fromkeys(text for text in chosen if text)]
    fields = {field.name: field for field in reader.fields.values()}
    tokens = fields["tokenizer.ggml.tokens"].contents()
    kinds = fields["tokenizer.ggml.token_type"].contents()
    if seed % 2:  # which would win in most cases
        tokens[tokens.index("<|endoftext|>")] = "the end"
    for place, text in zip(rng.sample(range(300, len(tokens)), len(chosen)), chosen, strict=True):
        if text not in tokens:
            tokens[place], kinds[place] = text, rng.choice([1, 3, 4])
    new = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds}
    for name, field in fields.items():
        if name.startswith("tokenizer."):
            inner = field.types[-1] if field.types[0] is gguf.GGUFValueType.ARRAY else None
            out.add_key_value(name, new.get(name, field.contents()), field.types[0], inner)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path


@pytest.fixture
def applied() -> None:
    if build_info()["rules"].get("LLAMA_PY_QUICK_VOCABULARY") != "applied":
        pytest.skip("this build leaves llama.cpp's lines as they are")


@pytest.mark.usefixtures("applied")
def test_real_vocabularies_come_out_the_same() -> None:
    files = [vocabulary(name) for name in ("llama-spm", "phi-3", "gpt-2", "qwen2", "falcon")]
    quick, slow = opened(False, files), opened(True, files)
    assert quick[0] == slow[0]
    assert quick[1] == slow[1]
    assert "tokenizer.ggml.merges arr[str,151387]" in re.sub(r"\s+", " ", quick[1])


@pytest.mark.usefixtures("applied")
def test_marks_of_every_kind_are_found(llama_cpp: Path, tmp_path: Path) -> None:
    """Also the one that wins where several could be the end of a turn."""
    texts = marks(llama_cpp)
    files = [with_marks(texts, tmp_path / f"{seed}.gguf", seed) for seed in range(12)]
    quick, slow = opened(False, files), opened(True, files)
    assert quick[0] == slow[0]
    assert quick[1] == slow[1]
    assert "control-looking token" in quick[1]
    assert len({*re.findall(r"'eot': (-?\d+)", quick[0])}) > 3


@pytest.mark.slow
def test_the_rule_can_be_turned_off(gcc: str, tmp_path: Path) -> None:
    sources = ("/llama-vocab.cpp", "/llama-impl.cpp")
    commands, rules = configured(tmp_path / "on", gcc, sources)
    assert rules["LLAMA_PY_QUICK_VOCABULARY"] == "applied"
    assert all("/corrected/" in command for command in commands)
    commands, rules = configured(tmp_path / "off", gcc, sources, "-DLLAMA_PY_QUICK_VOCABULARY=OFF")
    assert rules["LLAMA_PY_QUICK_VOCABULARY"] == "off"
    assert not any("/corrected/" in command for command in commands)


def test_without_the_rule_each_token_is_compared_with_each_mark(llama_cpp: Path) -> None:
    """When this fails, vocabularies are opened otherwise, and the rule may have done its work."""
    source = llama_cpp / "src"
    vocab = (source / "llama-vocab.cpp").read_text(encoding="utf-8")
    assert vocab.count("for (const auto & t : token_to_id) {") == 4
    text = (source / "llama-impl.cpp").read_text(encoding="utf-8")
    assert "for (int j = 0; j < arr_n; j++) {" in text
