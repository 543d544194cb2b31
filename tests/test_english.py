"""Turns of phrase that the project writes less and less (CONTRIBUTING, "Words")."""

from __future__ import annotations

from tools import english

#: How often each still stands in pages, help, errors and comments. These numbers only fall.
MOST = {"whoever": 55, "is no": 9, "so many": 28, "what": 101}


def test_turns_of_phrase_become_fewer() -> None:
    counts = {name: len(places) for name, places in english.found().items()}
    more = {name: count for name, count in counts.items() if count > MOST[name]}
    assert not more, f"python -m tools.english lists them: {more}, and at most {MOST}"
