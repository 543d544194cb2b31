"""One loaded model of each kind of memory for the whole module, empty before every test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.engine.rig import Rig
from tests.models import KINDS

MakeRig = Callable[..., Rig]


@pytest.fixture(scope="module", params=KINDS)
def shared_rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    rig = Rig(request.param)
    yield rig
    rig.close()


@pytest.fixture
def rig(shared_rig: Rig) -> Rig:
    """A rig of each kind, reset."""
    shared_rig.llm.reset()
    return shared_rig


@pytest.fixture
def make_rig() -> Iterator[MakeRig]:
    """Make rigs with other options."""
    made: list[Rig] = []

    def make(kind: str = "full", **options: Any) -> Rig:
        made.append(Rig(kind, **options))
        return made[-1]

    yield make
    for rig in made:
        rig.close()
