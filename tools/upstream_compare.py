"""llama-cpp-python and ``llama_py.compat`` side by side: the same calls, greedy, on one model.

    python -m venv real && real/bin/pip install llama-cpp-python==0.3.36
    python -m tools.upstream_compare real/bin/python [MODEL] [--calls 200]

Hypothesis makes the calls. Each library runs all of them in a process of its own; then texts,
reasons, usage, log-probabilities (to 1e-4) and the texts of chunks are compared. The exit status is
1 if they differ; each difference is printed with its call.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
TOLERANCE = 1e-4


def main() -> int:
    """Compare, or with ``--worker`` run the calls of a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("python", nargs="?", help="an interpreter that has llama-cpp-python")
    parser.add_argument("model", nargs="?", help="a GGUF file (default: the bundled model)")
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--worker", nargs=2, metavar=("CALLS", "MODEL"), help=argparse.SUPPRESS)
    parser.add_argument("--compat", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(*given.worker, compat=given.compat)
        return 0
    if given.python is None:
        parser.error("the interpreter that has llama-cpp-python is missing")
    from llama_py.demo import demo_model_path

    calls = generated(given.calls)
    path = given.model or demo_model_path()
    theirs = run([given.python], calls, path)
    ours = run([sys.executable], calls, path, "--compat")
    found = [
        (call, difference)
        for call, one, other in zip(calls, theirs, ours, strict=True)
        for difference in differences(one, other)
    ]
    for call, difference in found:
        print(json.dumps(call), difference, sep="\n  ")
    print(f"{len(calls)} calls, {len(found)} differences")
    return 1 if found else 0


def run(interpreter: list[str], calls: list[Any], model: str, *flags: str) -> list[Any]:
    """What each call gives in a process of its own."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "calls.json"
        file.write_text(json.dumps(calls), encoding="utf-8")
        command = [*interpreter, str(Path(__file__)), "--worker", str(file), model, *flags]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    found: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def work(file: str, model: str, *, compat: bool) -> None:
    """Run the calls of a file, and print what they give as one line of JSON."""
    if compat:
        sys.path.insert(0, str(ROOT))
        import llama_py.compat

        llama_py.compat.install()
    import llama_cpp

    llm = llama_cpp.Llama(model, n_ctx=512, logits_all=True, verbose=False, n_threads=2)
    calls = json.loads(Path(file).read_text(encoding="utf-8"))
    found = [outcome(llm, llama_cpp, call) for call in calls]
    print(json.dumps(found, default=float))  # float32 among the log-probabilities


def outcome(llm: Any, module: Any, call: dict[str, Any]) -> Any:
    """A reply, or the class and text of its error."""
    options = dict(call["options"])
    if "grammar" in options:
        options["grammar"] = module.LlamaGrammar.from_string(options["grammar"], verbose=False)
    if "logit_bias" in options:
        options["logit_bias"] = {int(key): value for key, value in options["logit_bias"].items()}
    try:
        found = getattr(llm, call["method"])(call["prompt"], **options)
        return found if isinstance(found, dict) else list(found)
    except Exception as error:  # of whatever class: it is compared, too
        return {"error": f"{type(error).__name__}: {error}"}


# ---- the calls -------------------------------------------------------------------------------


def generated(count: int) -> list[Any]:
    """Calls with parameters that both libraries accept."""
    from hypothesis import HealthCheck, given, settings

    calls: list[Any] = []

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy())
    def collect(call: Any) -> None:
        calls.append(call)

    collect()
    return calls[:count]


def strategy() -> Any:
    """A completion or a chat."""
    from hypothesis import strategies as st

    prompts = ["The sky is", "2 + 3 =", "Once upon a time", "", "Name a color: ", "1 2 3 1 2 3"]
    common = {
        "max_tokens": st.integers(1, 24),
        "stream": st.booleans(),
        "stop": st.sampled_from([[], ["."], [" the", "5"], ["\n"]]),
        "repeat_penalty": st.sampled_from([1.0, 1.1, 1.5]),
        "frequency_penalty": st.sampled_from([0.0, 0.5, -0.5]),
        "presence_penalty": st.sampled_from([0.0, 0.5]),
        "top_k": st.sampled_from([40, 1, 0]),
        "top_p": st.sampled_from([0.95, 1.0, 0.1]),
        "logit_bias": st.dictionaries(
            st.integers(300, 900).map(str), st.sampled_from([-5.0, 5.0]), max_size=3
        ),
    }
    of_text = {
        "logprobs": st.sampled_from([1, 3]),
        "echo": st.just(False),
        "grammar": st.sampled_from(['root ::= "yes" | "no"', "root ::= [0-9]+"]),
    }
    completions = st.builds(
        _call, st.just("create_completion"), st.sampled_from(prompts), _some(st, common, of_text)
    )
    messages = st.sampled_from([prompt for prompt in prompts if prompt]).map(
        lambda text: [{"role": "user", "content": text}]
    )
    chats = st.builds(_call, st.just("create_chat_completion"), messages, _some(st, common, {}))
    return completions | chats


def _some(st: Any, *groups: dict[str, Any]) -> Any:
    """Some of these options."""
    return st.fixed_dictionaries({}, optional={**groups[0], **groups[1]})


def _call(method: str, prompt: Any, options: dict[str, Any]) -> dict[str, Any]:
    options = {"max_tokens": 8, **options, "temperature": 0.0}
    return {"method": method, "prompt": prompt, "options": options}


# ---- the comparison --------------------------------------------------------------------------


def differences(theirs: Any, ours: Any) -> Iterator[str]:
    """What is different about two outcomes, in words."""
    if isinstance(theirs, list) and isinstance(ours, list):
        one, other = pieces(theirs), pieces(ours)
        if one != other:
            yield f"chunks {other} instead of {one}"
        return
    for name in ("error", "usage"):
        if isinstance(theirs, dict) and theirs.get(name) != ours.get(name):
            yield f"{name}: {ours.get(name)} instead of {theirs.get(name)}"
    if "choices" in theirs and "choices" in ours:
        yield from of_choices(theirs["choices"][0], ours["choices"][0])


def pieces(chunks: list[Any]) -> list[Any]:
    """The texts of chunks without empty ones, and the reason for the end."""
    choices = [chunk["choices"][0] for chunk in chunks]
    texts = [each.get("text", each.get("delta", {}).get("content")) for each in choices]
    return [*filter(None, texts), choices[-1]["finish_reason"]]


def of_choices(theirs: Any, ours: Any) -> Iterator[str]:
    """What is different about two choices."""
    for name in ("text", "message", "finish_reason"):
        if theirs.get(name) != ours.get(name):
            yield f"{name}: {ours.get(name)!r} instead of {theirs.get(name)!r}"
    one, other = theirs.get("logprobs"), ours.get("logprobs")
    if (one is None) != (other is None):
        yield f"logprobs: {other} instead of {one}"
    elif one is not None and "tokens" in one:
        yield from of_logprobs(one, other)


def of_logprobs(theirs: Any, ours: Any) -> Iterator[str]:
    """What is different about log-probabilities."""
    if theirs["tokens"] != ours["tokens"]:
        yield f"tokens {ours['tokens']} instead of {theirs['tokens']}"
        return
    pairs = zip(theirs["token_logprobs"], ours["token_logprobs"], strict=True)
    for token, (one, other) in zip(theirs["tokens"], pairs, strict=True):
        if not math.isclose(one, other, abs_tol=TOLERANCE):
            yield f"log-probability of {token!r}: {other} instead of {one}"


if __name__ == "__main__":
    sys.exit(main())
