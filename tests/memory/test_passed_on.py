"""Whose conversations a sequence goes on with: what each of them has of its tokens."""

from __future__ import annotations

from llama_py.memory.sequences import LiveSequence


def test_each_session_keeps_as_much_as_it_had() -> None:
    sequence = LiveSequence(0, ())
    for name, length in (("anna", 3), ("branch", 5), ("anna", 8)):
        sequence.session, sequence.tokens = name, [*range(length)]
        sequence.pass_on()
    assert sequence.passed_on == (("branch", 5), ("anna", 8))


def test_who_names_each_request_differently_makes_no_long_list() -> None:
    sequence = LiveSequence(0, ())
    for number in range(100):
        sequence.session, sequence.tokens = f"request {number}", [*range(number)]
        sequence.pass_on()
    assert [name for name, _ in sequence.passed_on] == [f"request {n}" for n in range(92, 100)]
