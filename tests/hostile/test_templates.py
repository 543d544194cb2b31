"""No chat template ends the process, or goes on without an end: each case runs in a child."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llama_py.chat.templates.formatter import Jinja2ChatFormatter
from llama_py.chat.templates.markup import Markup
from llama_py.chat.templates.python_jinja import JinjaTemplate
from llama_py.errors import InvalidModelError, TemplateError
from llama_py.gguf.check import check_model_file
from llama_py.gguf.templates import MAX_LENGTH, MAX_NESTING, template_problem
from tests.core.gguf_mutations import STRING, parse
from tests.core.test_gguf_check import put, text
from tests.models import CHATML, tiny_model

ROOT = Path(__file__).resolve().parents[2]
DEEP = 50_000


def chained(links: int) -> str:
    """Macros that each call the one before twice."""
    calls = ["x", *(f"{{{{ m{n}() }}}}{{{{ m{n}() }}}}" for n in range(links - 1))]
    macros = [f"{{% macro m{n}() %}}{body}{{% endmacro %}}" for n, body in enumerate(calls)]
    return "".join(macros) + f"{{{{ m{links - 1}() }}}}"


DEEP_ONES = {
    "lists": "{{" + "[" * DEEP + "]" * DEEP + "}}",
    "parentheses": "{{" + "(" * DEEP + "1" + ")" * DEEP + "}}",
    "objects": "{{" + "{1:" * DEEP + "1" + "}" * DEEP + " }}",
    "subscripts": "{{" + "a[" * DEEP + "1" + "]" * DEEP + "}}",
    "minus": "{{" + "- " * DEEP + "1}}",
    "not": "{{" + "not " * DEEP + "1}}",
    "sum": "{{ 1" + "+1" * DEEP + "}}",
    "concatenation": "{{ 'a'" + "~'a'" * DEEP + "}}",
    "filters": "{{ 'a'" + "|upper" * DEEP + "}}",
    "members": "{{ a" + ".a" * DEEP + "}}",
    "calls": "{{ a" + "()" * DEEP + "}}",
    "choices": "{{ 1" + " if a else 1" * DEEP + "}}",
    "if": "{% if a %}" * DEEP + "{% endif %}" * DEEP,
    "for": "{% for a in b %}" * DEEP + "{% endfor %}" * DEEP,
    "elif": "{% if a %}" + "{% elif a %}" * DEEP + "{% endif %}",
    "set": "{% set a %}" * DEEP + "{% endset %}" * DEEP,
    "without an end": "{{" + "(" * DEEP,
    "long": "x" * (MAX_LENGTH + 1),
}
ENDLESS_ONES = {
    "range": "{% for i in range(1000000000) %}x{% endfor %}",
    "nested": "{% for i in range(90000) %}{% for j in range(90000) %}x{% endfor %}{% endfor %}",
    "repetition": "{{ 'A' * 10000000000 }}",
    "doubling": "{% set s = 'A' %}" + "{% set s = s ~ s %}" * 60,
    "doubling with plus": "{% set s = 'A' %}" + "{% set s = s + s %}" * 60,
    "doubling of a block": "{% set s %}A{% endset %}"
    + "{% set s %}{{ s }}{{ s }}{% endset %}" * 60,
    "doubling of a list": "{% set n = namespace(l=[1]) %}{% for i in range(60) %}"
    "{% set n.l = n.l + n.l %}{% endfor %}",
    "macros": chained(50),
    "join": "{% set s = 'A' * 100000 %}{{ range(99999)|join(s) }}",
    "replace": "{% set s = 'A' * 100000 %}{{ s|replace('A', s) }}",
    "replace, a method": "{% set s = 'A' * 100000 %}{{ s.replace('A', s) }}",
    "indent": "{{ 'a\nb'|indent(1000000000) }}",
    "tojson": "{{ {'a': 1}|tojson(indent=1000000000) }}",
    "text": "{% for i in range(99999) %}" + "x" * 100_000 + "{% endfor %}",
    "a macro in itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "a caller in itself": "{% macro a() %}{{ caller() }}{% endmacro %}"
    "{% macro b() %}{% call a() %}{{ b() }}{% endcall %}{% endmacro %}{{ b() }}",
    "a namespace in itself": "{% set n = namespace() %}{% set n.a = n %}{{ n }}",
    "a namespace in itself, as JSON": "{% set n = namespace() %}{% set n.a = n %}{{ n|tojson }}",
    "a list in itself": "{% set l = [] %}{% set _ = l.append(l) %}{{ l }}",
    "a list in a list in itself": "{% set l = [] %}{% set m = [l]|list %}{% set _ = l.append(m) %}"
    "{{ l|tojson }}",
    "lists in lists": "{% set n = namespace(a=[]) %}{% for i in range(50000) %}"
    "{% set n.a = [n.a] %}{% endfor %}{{ n.a }}",
    "what a message makes it": "{% if messages and messages[0].content == 'evil' %}"
    "{% for i in range(90000) %}{% for j in range(90000) %}x{% endfor %}{% endfor %}{% endif %}y",
}
CHILD = """
import json, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
from llama_py.chat.conversation import Message, Text
from llama_py.chat.messages import ChatRequest
from llama_py.chat.templates.template import ChatTemplate
from llama_py.errors import TemplateError
for name, text in json.load(sys.stdin).items():
    print(name, end=": ", flush=True)
    try:
        template = ChatTemplate.from_text(text)
        template._engine.apply({"messages": [{"role": "user", "content": "evil"}], "now": 0})
    except TemplateError as error:
        print(str(error)[:300].replace("\\n", " "), flush=True)
    else:
        print("PASSED", flush=True)
"""


def run(cases: dict[str, str]) -> dict[str, str]:
    """What a process said to each template."""
    child = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=json.dumps(cases),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert child.returncode == 0, (child.returncode, child.stdout[-300:], child.stderr[-2000:])
    return dict(line.split(": ", 1) for line in child.stdout.splitlines())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits memory")
@pytest.mark.parametrize("cases", [DEEP_ONES, ENDLESS_ONES], ids=["deep", "endless"])
def test_the_process_survives(cases: dict[str, str]) -> None:
    said = run(cases)
    assert said.keys() == cases.keys()
    assert not [name for name, what in said.items() if what == "PASSED"]


@pytest.mark.parametrize("key", ["tokenizer.chat_template", "tokenizer.chat_template.tool_use"])
def test_a_file_with_a_deep_template_is_refused(tmp_path: Path, key: str) -> None:
    model = parse(tiny_model("full").read_bytes())
    put(model, key, STRING, text(DEEP_ONES["lists"]))
    path = tmp_path / "model.gguf"
    path.write_bytes(model.encode())
    with pytest.raises(InvalidModelError, match=f"{key}.* nested more than {MAX_NESTING}"):
        check_model_file(path)


@pytest.mark.parametrize("count", [1000, 3000])
def test_python_says_so_as_well(count: int) -> None:
    deep = "{{" + "(" * count + "1" + ")" * count + "}}"
    with pytest.raises(TemplateError):
        Jinja2ChatFormatter(deep, "", "")
    assert not Markup((), (), [deep]).tokens


def test_what_templates_need_is_allowed() -> None:
    long = [{"role": "user", "content": "x" * 1000}, {"role": "assistant", "content": "y"}] * 2000
    JinjaTemplate(CHATML).render({"messages": long, "add_generation_prompt": True})
    # A schema that contains itself fifty times is written by a macro that calls itself.
    schema: dict[str, Any] = {}
    for _ in range(50):
        schema = {"inner": schema}
    macro = "{% macro f(s) %}[{% if s.inner %}{{ f(s.inner) }}{% endif %}]{% endmacro %}{{ f(s) }}"
    JinjaTemplate(macro).render({"s": schema})
    many = "{% if a == 1" + " or a == 1" * 60 + " %}{% endif %}"
    assert template_problem(many) == ""


def test_a_template_does_not_leave_the_sandbox() -> None:
    """In Jinja2 before 3.1.6 it reached the server's environment, its API key included."""
    payload = "{{ ('{0.__globals__[jinja2].utils.os.environ}'|attr('format'))(raise_exception) }}"
    for template in (payload, payload.replace("'format'", "'format'|string")):
        with pytest.raises(TemplateError):
            Jinja2ChatFormatter(template, "", "")(messages=[])
