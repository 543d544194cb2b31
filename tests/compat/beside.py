"""Prompts, schemas and arguments beside llama-cpp-python, case by case.

    python -m venv real && real/bin/pip install llama-cpp-python==0.3.36
    python -m tests.compat.beside real/bin/python

Each library runs all cases in a process of its own, on the bundled model. Of schemas, the texts
that a reply may be are compared, and not the rules. Each difference is printed; docs/migrating.md
has the reasons. ``tools.upstream_compare`` compares generated calls.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
WHOLE = {
    "plain": [{"role": "user", "content": "Hi"}],
    "system": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    "turns": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "2 + 3?"},
    ],
}
FORMATS = (
    *("llama2", "llama3", "alpaca", "qwen", "oasst_llama", "baichuan2", "baichuan", "openbuddy"),
    *("redpajama_incite", "snoozy", "phind", "intel", "open_orca", "mistrallite", "zephyr"),
    *("pygmalion", "chatml", "mistral_instruct", "chatglm3", "openchat", "saiga", "gemma"),
)


def _object(**members: Any) -> dict[str, Any]:
    return {"type": "object", "properties": members, "required": list(members)}


def _x(**keywords: Any) -> dict[str, Any]:
    return _object(x=keywords)


_INTEGER: dict[str, Any] = {"type": "integer"}
#: A schema, and texts of which some fit it.
SCHEMAS: dict[str, tuple[Any, list[Any]]] = {
    "object": (_object(a={"type": "string"}, b=_INTEGER), [{"a": "q", "b": 1}, {"b": 1, "a": "q"}]),
    "closed": (_object(a=_INTEGER), [{"a": 1}, {"a": 1, "b": 2}]),
    "open": ({**_object(a=_INTEGER), "additionalProperties": True}, [{"a": 1}, {"a": 1, "b": 2}]),
    "optional": ({"type": "object", "properties": {"a": _INTEGER, "b": _INTEGER}}, [{}, {"b": 1}]),
    "any object": ({"type": "object"}, [{}, {"a": 1}, [1]]),
    "no properties": ({"type": "object", "properties": {}}, [{}, {"a": 1}]),
    "map": ({"type": "object", "additionalProperties": _INTEGER}, [{}, {"a": 1}, {"a": "q"}]),
    "required, not listed": ({**_object(a=_INTEGER), "required": ["a", "z"]}, [{"a": 1}]),
    "minProperties": ({"type": "object", "minProperties": 1}, [{}, {"a": 1}]),
    "patternProperties": ({"type": "object", "patternProperties": {"^x": _INTEGER}}, [{"xa": 1}]),
    "array": ({"type": "array"}, [[], [1, "a"]]),
    "items": (
        {"type": "array", "items": _INTEGER, "minItems": 1, "maxItems": 2},
        [[], [1], [1, 2]],
    ),
    "prefixItems": ({"type": "array", "prefixItems": [_INTEGER, {"type": "string"}]}, [[1, "a"]]),
    "uniqueItems": ({"type": "array", "items": _INTEGER, "uniqueItems": True}, [[1, 2], [1, 1]]),
    "const": (_x(const=3), [{"x": 3}, {"x": 4}]),
    "enum": (_x(enum=["a", None]), [{"x": "a"}, {"x": None}, {"x": "b"}]),
    "length": (
        _x(type="string", minLength=2, maxLength=3),
        [{"x": "a"}, {"x": "ab"}, {"x": "abcd"}],
    ),
    "pattern": (_x(type="string", pattern="^[a-z]{2,3}$"), [{"x": "ab"}, {"x": "a1"}]),
    "pattern, no anchors": (_x(type="string", pattern="[a-z]+"), [{"x": "ab"}]),
    "email": (_x(type="string", format="email"), [{"x": "a@b.cd"}, {"x": "ab"}]),
    "date": (_x(type="string", format="date"), [{"x": "2026-01-02"}, {"x": "ab"}]),
    "uuid": (
        _x(type="string", format="uuid"),
        [{"x": "123e4567-e89b-12d3-a456-426614174000"}, {"x": "ab"}],
    ),
    "integer bounds": (_x(type="integer", minimum=0, maximum=10), [{"x": 7}, {"x": 11}, {"x": -1}]),
    "number bounds": (_x(type="number", minimum=0, maximum=1), [{"x": 0.5}, {"x": 2}]),
    "multipleOf": (_x(type="integer", multipleOf=5), [{"x": 5}, {"x": 4}]),
    "long integer": (_INTEGER, [123456789012345, 123456789012345678901234567890]),
    "not": (_x(**{"not": {"type": "string"}}), [{"x": 1}, {"x": "a"}]),
    "types": (_x(type=["string", "null"]), [{"x": "a"}, {"x": None}, {"x": 1}]),
    "anyOf": ({"anyOf": [_INTEGER, {"type": "null"}]}, [1, None, "a"]),
    "allOf": (
        {"allOf": [_object(a=_INTEGER), _object(b=_INTEGER)]},
        [{"a": 1, "b": 2}, {"a": 1}, {"a": 1, "b": 2, "c": 3}],
    ),
    "$ref": ({"$ref": "#/$defs/A", "$defs": {"A": _object(a=_INTEGER)}}, [{"a": 1}, {}]),
    "recursive": (
        {"$ref": "#/$defs/N", "$defs": {"N": _x(anyOf=[_INTEGER, {"$ref": "#/$defs/N"}])}},
        [{"x": 1}, {"x": {"x": 1}}, {"x": "a"}],
    ),
    "any": (_x(description="any"), [{"x": 1}, {"x": {"y": []}}]),
}
_TOOL = {"type": "function", "function": {"name": "add", "parameters": _object(a=_INTEGER)}}
_FORCED = {"type": "function", "function": {"name": "add"}}
_SCHEMA = {"type": "json_object", "schema": _object(a=_INTEGER)}
_CHAT = WHOLE["plain"]
#: The arguments of calls, by method.
ARGUMENTS: dict[str, list[dict[str, Any]]] = {
    "Llama": [
        {"no_such_argument": 1},
        {"n_ctx": 0},
        {"n_batch": 1},
        {"n_threads": 0},
        {"seed": -1},
        {"chat_format": "no-such-format"},
        {"type_k": 8, "type_v": 8},
        {"model_path": "/no/such.gguf"},
        {"lora_path": "/no/such.gguf"},
        {"kv_overrides": {"general.name": "x"}},
        {"vocab_only": True},
        {"last_n_tokens_size": 0},
    ],
    "create_completion": [
        {"max_tokens": None},
        {"max_tokens": 0},
        {"max_tokens": -1},
        {"max_tokens": 100_000},
        {"temperature": -1.0},
        {"temperature": 2.0, "top_k": 1},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"top_k": -1},
        {"min_p": 1.0},
        {"typical_p": 0.5},
        {"mirostat_mode": 2, "seed": 1},
        {"repeat_penalty": 0.0},
        {"frequency_penalty": 3.0},
        {"logit_bias": {"300": -100}},
        {"logit_bias": {300: 1000.0}},
        {"logprobs": 2},
        {"echo": True},
        {"stop": None},
        {"stop": ""},
        {"stop": "5"},
        {"stop": [""]},
        {"prompt": [1, 2, 3]},
        {"prompt": ""},
        {"prompt": "a " * 1000},
        {"suffix": " = 5"},
        {"model": "another"},
        {"grammar": 'root ::= "5"'},
        {"n": 2},
        {"seed": 2**40},
    ],
    "create_chat_completion": [
        {"messages": []},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "user", "content": None}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
        {"messages": [{"role": "somebody", "content": "Hi"}]},
        {"messages": [*_CHAT, {"role": "assistant", "content": "I"}]},
        {"max_tokens": 0},
        {"tools": [_TOOL]},
        {"tools": [_TOOL], "tool_choice": _FORCED},
        {"tools": [_TOOL], "tool_choice": {"type": "function", "function": {"name": "sub"}}},
        {"tool_choice": _FORCED},
        {"functions": [_TOOL["function"]], "function_call": {"name": "add"}},
        {"response_format": {"type": "text"}},
        {"response_format": _SCHEMA},
        {"response_format": {"type": "xml"}},
        {"logprobs": True, "top_logprobs": 2},
        {"top_logprobs": 2},
        {"n": 2},
    ],
}
#: What the calls of a method have besides.
ALSO: dict[str, dict[str, Any]] = {
    "create_completion": {"prompt": "2 + 3 =", **(short := {"max_tokens": 32, "temperature": 0.0})},
    "create_chat_completion": {"messages": _CHAT, **short},
}


def main() -> int:
    """Compare, or with ``--worker`` run the cases of a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("python", nargs="?", help="an interpreter that has llama-cpp-python")
    parser.add_argument("--worker", metavar="CASES", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        print(json.dumps(work(json.loads(Path(given.worker).read_text())), default=str))
        return 0
    if given.python is None:
        parser.error("the interpreter that has llama-cpp-python is missing")
    from llama_py import demo_model_path
    from tests.chat.families import template_folder

    templates = {path.stem: path.read_text() for path in sorted(template_folder().glob("*.jinja"))}
    cases = {"model": demo_model_path(), "templates": templates}
    theirs, ours = (run(python, cases) for python in (given.python, sys.executable))
    theirs["schemas"], ours["schemas"] = (fitting(each["schemas"]) for each in (theirs, ours))
    for kind, expected in theirs.items():
        differing = [name for name in expected if not alike(expected[name], ours[kind][name])]
        print(f"\n{kind}: {len(expected)} cases, {len(differing)} differ")
        for name in differing:
            print(f"  {name}\n    there {expected[name]!r}\n    here  {ours[kind][name]!r}")
    return 0


def alike(there: Any, here: Any) -> bool:
    """Whether two outcomes are the same; of errors, whether what catches one catches the other."""
    if isinstance(there, dict) and isinstance(here, dict):
        return there["error"][0] in here["error"]
    return bool(there == here)


def run(python: str, cases: Any) -> Any:
    """What the cases give in a process of this interpreter, by kind and name."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cases.json"
        file.write_text(json.dumps(cases), encoding="utf-8")
        command = [python, "-W", "ignore", str(Path(__file__)), "--worker", str(file)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    return json.loads(done.stdout.splitlines()[-1])


def work(cases: Any) -> dict[str, dict[str, Any]]:
    """Outcomes by kind and name."""
    try:
        import llama_cpp
    except ImportError:  # this process is ours
        sys.path.insert(0, str(ROOT))
        import llama_py.compat

        llama_py.compat.install()
        import llama_cpp
    return {
        "named formats": dict(_named(llama_cpp.llama_chat_format)),
        "templates": dict(_templates(llama_cpp.llama_chat_format, cases["templates"])),
        "schemas": {
            name: _tried(llama_cpp.llama_grammar.json_schema_to_gbnf, json.dumps(schema))
            for name, (schema, _) in SCHEMAS.items()
        },
        "arguments": dict(_called(llama_cpp, cases["model"])),
    }


def _tried(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """What a call gives, or the builtin classes of its error."""
    try:
        return function(*args, **options)
    except Exception as error:  # of whatever class: what a program catches is compared, too
        known = [each for each in type(error).__mro__ if each.__module__ == "builtins"]
        return {"error": [each.__name__ for each in known]}


def _named(module: Any) -> Iterator[tuple[str, Any]]:
    for name in FORMATS:
        for kind, messages in WHOLE.items():
            yield f"{name}, {kind}", _tried(_prompt, getattr(module, f"format_{name}"), messages)


def _templates(module: Any, templates: dict[str, str]) -> Iterator[tuple[str, Any]]:
    for name, text in templates.items():
        formatter = _tried(module.Jinja2ChatFormatter, text, "</s>", "<s>")
        for kind, messages in WHOLE.items():
            failed = isinstance(formatter, dict)
            yield f"{name}, {kind}", formatter if failed else _tried(_prompt, formatter, messages)


def _prompt(formatter: Callable[..., Any], messages: Any) -> str:
    prompt: str = formatter(messages=messages).prompt
    return prompt


def _called(module: Any, model: str) -> Iterator[tuple[str, Any]]:
    llm = module.Llama(model, n_ctx=512, logits_all=True, verbose=False)
    for method, cases in ARGUMENTS.items():
        for options in cases:
            name = f"{method} {json.dumps(options)[-300:]}"
            if method == "Llama":
                found = _tried(module.Llama, **{"model_path": model, "verbose": False, **options})
                yield name, found if isinstance(found, dict) else "loaded"
                continue
            call = {**ALSO[method], **options}
            if "grammar" in call:
                call["grammar"] = module.LlamaGrammar.from_string(call["grammar"])
            yield name, _answer(_tried(getattr(llm, method), **call))


def _answer(found: dict[str, Any]) -> Any:
    """The parts of a reply that a program reads."""
    if "error" in found:
        return found
    choice = found["choices"][0]
    said = choice.get("text", choice.get("message"))
    if isinstance(said, dict):
        calls = said.get("tool_calls") or ()
        said = [said.get("content"), *(each["function"] for each in calls)]
    return [said, choice["finish_reason"], found["usage"]["completion_tokens"]]


def fitting(grammars: dict[str, Any]) -> dict[str, Any]:
    """The texts that each grammar takes, in place of its rules."""
    from llama_py.core.model import Model
    from llama_py.params import GrammarSpec
    from tests.chat.fitting import fits
    from tests.models import tiny_model

    def taken(name: str, grammar: str) -> list[str]:
        texts = [json.dumps(each) for each in SCHEMAS[name][1]]
        return [text for text in texts if fits(GrammarSpec(grammar), text, model.vocab)]

    with Model(tiny_model("full")) as model:
        return {
            name: grammar if isinstance(grammar, dict) else _tried(taken, name, grammar)
            for name, grammar in grammars.items()
        }


if __name__ == "__main__":
    sys.exit(main())
