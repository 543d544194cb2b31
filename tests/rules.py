"""A rule that must hold for many things, such as modules, is one test that names all offenders."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import pytest

Case = TypeVar("Case")


def holds_for_all(
    rule: Callable[[Case], None], cases: Iterable[Case], name: Callable[[Case], str] = str
) -> None:
    """Fails with a line for each case that the rule refuses, and if there are no cases at all."""
    offenders = []
    every = list(cases)
    for case in every:
        try:
            rule(case)
        except (AssertionError, pytest.fail.Exception) as error:
            offenders.append(f"{name(case)}: {error}")
    assert every, "there is nothing that the rule applies to"
    assert not offenders, "\n".join(offenders)
