"""Nothing is printed: what native code has to say goes to the logger, and reasons into errors.

The descriptors are watched, not ``sys.stderr``, in a fresh process: the very first thing that is
loaded might print.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from llama_py import demo_model_path
from tests.models import tiny_model
from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]

BEGIN = """
import logging, os, shutil, sys
from llama_py import ChatSession, Llama, LlamaGrammar, demo_model_path
from llama_py.core.chat import schema_to_gbnf
from llama_py.errors import LlamaError

DEMO, TINY, FOLDER = sys.argv[1:]
OPTIONS = {"n_ctx": 256, "n_threads": 1}
reasons, log = [], []

class Keep(logging.Handler):
    def emit(self, record):
        log.append(record.getMessage())

logging.getLogger("llama_py").addHandler(Keep())
logging.getLogger("llama_py").setLevel("DEBUG")
logging.lastResort = None

def fails(call):
    try:
        call()
    except LlamaError as error:
        reasons.append(str(error))
        return reasons[-1]
    raise SystemExit("nothing was raised")

def changed(name, change):
    data = bytearray(open(TINY, "rb").read())
    change(data)
    path = os.path.join(FOLDER, name)
    open(path, "wb").write(data)
    return path

def end(expected, text):
    if expected not in text:
        raise SystemExit(f"{expected!r} is not in {text!r}")
"""

CASES = {
    "the bundled model": """
        with Llama(DEMO, **OPTIONS) as llm:
            llm.create_chat_completion([{"role": "user", "content": "Hello!"}], max_tokens=8)
            ChatSession(llm, max_tokens=4).send("Hello!")
        end("general.architecture", " ".join(log))
    """,
    "numa": """
        for _ in range(2):
            Llama(DEMO, **OPTIONS, numa=True).close()
        end("NUMA already initialized", " ".join(log))
    """,
    "a file that is not a model": """
        open(os.path.join(FOLDER, "text.gguf"), "w").write("my secret")
        said = fails(lambda: Llama(os.path.join(FOLDER, "text.gguf")))
        end("not a GGUF", said)
    """,
    "files that are damaged": """
        def cut(data):
            del data[-1000:]

        def spoil(data):
            at = data.index(b"llama.block_count") + 17 + 4
            data[at] = 200

        for number, change in enumerate((cut, spoil)):
            fails(lambda: Llama(changed(f"{number}.gguf", change), **OPTIONS))
        end("cut off", reasons[0])
    """,
    "weights that are not numbers": """
        def spoil(data):
            data[-4:] = b"\\xff\\xff\\xff\\x7f"

        path = changed("nan.gguf", spoil)
        from llama_py.core.model import Model
        from llama_py.params import ModelParams
        said = fails(lambda: Model(path, ModelParams(check_tensors=True)))
        end("nan value", " ".join(log))
    """,
    "a grammar that is wrong": """
        with Llama(DEMO, **OPTIONS) as llm:
            for grammar in ("root ::= x", 'root ::= "a', "root ::= [", "root ::= ("):
                fails(lambda: llm.create_completion("Hello", grammar=grammar, max_tokens=4))
        end("line 1: the rule 'x' is used, but not defined", reasons[0])
        end("line 1, rule 'root': the text in quotes does not end", reasons[1])
        if "root ::=" in reasons[0]:
            raise SystemExit("a grammar may be long: it is not quoted " + reasons[0])
    """,
    "a schema that is converted in part": """
        schema_to_gbnf({"type": "string", "pattern": "^(?=a)b$"})
        end("is not supported", " ".join(log))
    """,
    "a chat template that is wrong": """
        fails(lambda: Llama(DEMO, **OPTIONS, chat_template="{{ nothing( }}"))
    """,
    "a context that is too large": """
        fails(lambda: Llama(DEMO, n_ctx=2**31 - 1))
        fails(lambda: Llama(DEMO, **OPTIONS, type_v=8, flash_attn=False))
        end("flash_attn", reasons[1])
    """,
    "memory that is not there": """
        import resource
        Llama(DEMO, **OPTIONS).close()
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (48 << 20), -1))
        fails(lambda: Llama(DEMO, n_ctx=200_000, n_threads=1))
    """,
    "an adapter that is none": """
        shutil.copy(DEMO, os.path.join(FOLDER, "adapter.gguf"))
        adapter = os.path.join(FOLDER, "adapter.gguf")
        fails(lambda: Llama(DEMO, **OPTIONS, lora_path=adapter))
    """,
}


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory, and reads /proc")
@pytest.mark.parametrize("case", CASES)
def test_nothing_reaches_the_terminal(case: str, tmp_path: Path) -> None:
    code = BEGIN + textwrap.dedent(CASES[case])
    paths = [demo_model_path(), str(tiny_model("full")), str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", code, *paths],
        cwd=ROOT,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
