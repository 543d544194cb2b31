"""``Jinja2ChatFormatter``: whatever goes wrong in a template is a ``TemplateError``."""

from __future__ import annotations

from typing import Any

import pytest

from llama_py import Jinja2ChatFormatter
from llama_py.errors import LlamaError, TemplateError

MESSAGES = [{"role": "user", "content": "x"}]

#: Templates that fail when they render, and what is said of it.
FAILING = {
    "{{ messages[5].content + 'a' }}": "has no element 5",
    "{{ 1 // 0 }}": "ZeroDivisionError",
    "{{ 1 % 0 }}": "ZeroDivisionError",
    "{{ (10.0 ** 10000) }}": "OverflowError",
    "{{ ''.join([1]) }}": "TypeError",
    "{{ [].pop() }}": "",
    "{{ '%d' % 'x' }}": "TypeError",
    "{{ 1 + {}['a']['b'] }}": "",
    "{{ 'x'.encode('no-such-codec') }}": "unsafe",
    "{{ [1, 2].index(3) }}": "ValueError",
    "{{ raise_exception('no system message') }}": "no system message",
    "{{ messages[0].content[7] | upper }}{{ [][0] + 1 }}": "",
    "{{ namespace(3) }}": "",
    "{{ strftime_now(3) }}": "TypeError",
    "{{ messages | tojson(indent='x' * 3, separators=3) }}": "TypeError",
}


@pytest.mark.parametrize("template", FAILING)
def test_a_template_that_fails(template: str) -> None:
    formatter = Jinja2ChatFormatter(template, "</s>", "<s>")
    with pytest.raises(TemplateError, match="refuses these messages") as caught:
        formatter(messages=MESSAGES)
    assert FAILING[template] in str(caught.value)
    assert isinstance(caught.value, LlamaError)


@pytest.mark.parametrize(
    "template",
    [
        "{{",
        "{% if %}",
        "{% for x in y %}",
        "{{ x | no_such_filter }}",
        "{{ x | urlize }}",
        "{% break %}",
        "{% set x.y.z = 3 %}",
        "{% macro f(a, a) %}{% endmacro %}",
        "{% include 'x' %}{% block a %}{% endblock %}{% block a %}{% endblock %}",
    ],
    ids=range(9),
)
def test_a_template_that_does_not_parse(template: str) -> None:
    with pytest.raises(TemplateError, match="does not parse"):
        Jinja2ChatFormatter(template, "</s>", "<s>")


def test_variables_that_are_no_names() -> None:
    formatter = Jinja2ChatFormatter("{{ messages }}", "</s>", "<s>")
    values: dict[Any, Any] = {"messages": MESSAGES, "tools": [1], "x y": 2}
    assert formatter(**values).prompt.startswith("[{'role'")
