"""The text of a custom tool's input, read while its JSON is written."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_py.dialects.responses.custom import InputText


def read(pieces: list[str]) -> tuple[list[str], str]:
    """What was told piece by piece, and all of it."""
    reader = InputText()
    told = [reader.feed(piece) for piece in pieces]
    told.append(reader.finish())
    assert "".join(told) == reader.text
    return told, reader.text


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in pairwise(places)]


@given(st.text(), st.booleans(), st.lists(st.integers(0, 1000)))
def test_any_text_comes_out_as_it_was(text: str, ascii_only: bool, cuts: list[int]) -> None:
    arguments = json.dumps({"input": text}, ensure_ascii=ascii_only)
    assert read(pieces_of(arguments, cuts))[1] == text


def test_it_is_told_as_soon_as_it_is_certain() -> None:
    told, _ = read(['{"inp', 'ut": "*** Be', "gin\\", "n+ caf\\u00e", "9 \\ud83d", '\\ude00"', "}"])
    assert told == ["", "*** Be", "gin", "\n+ caf", "é ", "😀", "", ""]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input": "cut off in the mid', "cut off in the mid"),
        ('{"input": "cut off in an escape\\', "cut off in an escape"),
        ("*** Begin Patch", "*** Begin Patch"),
        ('{"patch": "x"}', '{"patch": "x"}'),
        ('{"input": 3}', '{"input": 3}'),
        ('{"a": 1, "input": "late"}', "late"),
        ('{"input": "half \\ud83d of a pair"}', "half \ufffd of a pair"),
        ('{"input": "no \\x escape"}', "no \\x escape"),
        ('{"input": "raw\nline"}', "raw\nline"),
        ("", ""),
    ],
)
def test_what_models_write_otherwise(arguments: str, text: str) -> None:
    assert read([arguments])[1] == text
    assert read([*arguments])[1].startswith(text[:4])
