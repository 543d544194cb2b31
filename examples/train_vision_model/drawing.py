"""What the pictures show: shapes in four colours, and handwritten digits. NumPy only.

Owns: the size of a picture, how each is drawn, and the right names of what it shows. All pictures
are uint8 ``(32, 32, 3)``, which is what the encoder sees: nothing is resized on the way.
"""

from __future__ import annotations

import colorsys
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Picture = NDArray[np.uint8]
Mask = NDArray[np.bool_]

SIZE = 32
#: A square is called a tile: the language model cannot spell "square".
SHAPES = ("circle", "tile", "triangle", "cross")
#: Hue in degrees, and how far a picture's may be from it.
COLOURS = {"red": (0, 10), "yellow": (54, 7), "green": (122, 18), "blue": (226, 16)}
#: All that a picture may show.
NAMES = (*(f"{colour} {shape}" for colour in COLOURS for shape in SHAPES), *map(str, range(10)))
#: Pixels of a digit's picture, and their greatest value (scikit-learn's ``load_digits``).
DIGIT_SIZE, DIGIT_WHITE = 8, 16


@dataclass(frozen=True)
class Shown:
    """A picture, and what is right to say about it.

    Attributes:
        name: what it is, such as "red circle" or "7".
        colour, shape: of a shape; empty for digits.
    """

    picture: Picture
    name: str
    colour: str = ""
    shape: str = ""


def draw_shape(rng: np.random.Generator, colour: str = "", shape: str = "") -> Shown:
    """Draw a shape somewhere, on a noisy grey ground; colour and shape at random if not given."""
    colour = colour or str(rng.choice(list(COLOURS)))
    shape = shape or str(rng.choice(SHAPES))
    hue, around = COLOURS[colour]
    turned = (hue + rng.uniform(-around, around)) % 360 / 360
    ink = colorsys.hsv_to_rgb(turned, rng.uniform(0.75, 1), rng.uniform(0.7, 1))
    ground = rng.uniform(0, 1) + rng.uniform(-0.05, 0.05, 3)
    mask = _mask(rng, shape)[..., None]
    light = np.where(mask, ink, ground) + rng.normal(0, 0.05, (SIZE, SIZE, 3))
    return Shown(_pixels(light), f"{colour} {shape}", colour, shape)


def _mask(rng: np.random.Generator, shape: str) -> Mask:
    radius = rng.uniform(6, 13)
    centre_x, centre_y = rng.uniform(radius, SIZE - radius, 2)
    tilt = np.deg2rad(rng.uniform(-12, 12))
    rows, columns = np.mgrid[:SIZE, :SIZE] + 0.5
    right, down = columns - centre_x, rows - centre_y
    x = (right * np.cos(tilt) + down * np.sin(tilt)) / radius
    y = (down * np.cos(tilt) - right * np.sin(tilt)) / radius
    inside: Mask
    if shape == "circle":
        inside = x**2 + y**2 < 0.9
    elif shape == "tile":
        inside = np.maximum(abs(x), abs(y)) < 0.8
    elif shape == "triangle":
        inside = (y < 0.75) & (abs(x) < (y + 0.95) * 0.55)
    else:
        inside = (np.minimum(abs(x), abs(y)) < 0.28) & (np.maximum(abs(x), abs(y)) < 0.95)
    return inside


def draw_digit(grey: NDArray[np.uint8], value: int) -> Shown:
    """Draw a digit of 8 x 8 pixels (0 to 16) four times as large, white on black."""
    every = SIZE // DIGIT_SIZE
    large = np.kron(grey, np.ones((every, every))) / DIGIT_WHITE
    return Shown(_pixels(np.repeat(large[..., None], 3, 2)), str(value))


def vary_digit(rng: np.random.Generator, grey: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The same digit, sometimes moved by a pixel, and a little lighter or darker: for training."""
    moved = grey
    if rng.random() < 0.5:
        down, right = rng.integers(-1, 2, 2)
        padded = np.pad(grey, 1)
        moved = padded[1 - down : 9 - down, 1 - right : 9 - right]
    light = moved * rng.uniform(0.8, 1.1) + rng.normal(0, 0.6, moved.shape)
    return np.clip(np.round(light), 0, DIGIT_WHITE).astype(np.uint8)


def _pixels(light: NDArray[np.float64]) -> Picture:
    return np.round(np.clip(light, 0, 1) * 255).astype(np.uint8)
