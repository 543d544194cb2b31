"""llama.cpp's own tests of its server pass here, or fail for a reason that the docs state."""

from __future__ import annotations

import ast

import pytest

from tests.conformance import suite
from tests.conformance.softening import soften

#: Of 378, what must pass, or fail in nothing but the text that another model writes.
_ENOUGH = 250


def test_a_quick_part_passes() -> None:
    outcomes = suite.run(suite.quick())
    wrong = [each for each in outcomes if each.kind not in ("passed", "text")]
    assert not wrong
    assert len(outcomes) > len(suite.quick())


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_every_test_passes_or_the_docs_say_why() -> None:
    outcomes = suite.run()
    print("\n".join(suite.table(outcomes)))
    assert [each for each in outcomes if each.kind == "unexplained"] == []
    assert sum(each.kind in ("passed", "text", "skipped") for each in outcomes) >= _ENOUGH


@pytest.mark.parametrize("row", suite.documented_rows(), ids=lambda row: row.row)
def test_what_is_different_is_stated_in_the_docs(row: suite.Row) -> None:
    assert suite.stated(row)


def test_an_assertion_about_text_does_not_end_a_test() -> None:
    source = "def test_a():\n    assert reply == 'yes', 'no'\n    assert status == 200\n"
    softened = soften(source, "test_x.py", ["reply =="], {})
    said: list[str] = []
    names = {"about_text": said.append, "reply": "maybe", "status": 200}
    exec(softened, names)
    names["test_a"]()  # type: ignore[operator]
    assert said == ["reply == 'yes'"]
    names["status"] = 500
    with pytest.raises(AssertionError):
        names["test_a"]()  # type: ignore[operator]


def test_only_named_tests_are_softened() -> None:
    source = "def test_a():\n    assert n == 21\ndef test_b():\n    assert n == 21\n"
    softened = ast.parse(soften(source, "test_x.py", [], {"test_x.py::test_b": ["== 21"]}))
    kinds = [type(each.body[0]) for each in softened.body if isinstance(each, ast.FunctionDef)]
    assert kinds == [ast.Assert, ast.Try]
