"""scikit-learn's handwritten digits, and which of them training shows."""

from __future__ import annotations

import numpy as np
from drawing import Shown, draw_digit, vary_digit
from numpy.typing import NDArray
from sklearn.datasets import load_digits

#: One of so many is held back.
HELD_BACK = 5


class Digits:
    """See the module.

    Attributes:
        grey: uint8 ``(n, 8, 8)``, 0 to 16.
        value: ``(n,)``.
        learned, held_back: places of those that training shows, and of the others.
    """

    def __init__(self) -> None:
        found = load_digits()
        self.grey: NDArray[np.uint8] = found.images.astype(np.uint8)
        self.value: NDArray[np.int64] = found.target
        held_back = np.arange(len(self.grey)) % HELD_BACK == 0
        self.held_back, self.learned = np.flatnonzero(held_back), np.flatnonzero(~held_back)

    def draw(self, rng: np.random.Generator) -> Shown:
        """One for training."""
        at = rng.choice(self.learned)
        return draw_digit(vary_digit(rng, self.grey[at]), int(self.value[at]))

    def draw_held_back(self, rng: np.random.Generator) -> Shown:
        """One that training never shows."""
        at = rng.choice(self.held_back)
        return draw_digit(self.grey[at], int(self.value[at]))
