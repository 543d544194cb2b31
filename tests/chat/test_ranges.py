"""Regular expressions of numbers within bounds: what they match is what is within."""

from __future__ import annotations

import random
import re
from decimal import Decimal
from typing import Any

import pytest

from llama_py.chat.schemas.ranges import NumberRange, number_ranges


def matches(ranges: list[NumberRange], text: str) -> bool:
    sign, digits = text.startswith("-"), text.removeprefix("-")
    return any(
        part.negative == sign
        and (
            all(re.fullmatch(regex, digits) for regex in part.all_of)
            or any(re.fullmatch(regex, digits) for regex in part.or_else)
        )
        for part in ranges
    )


def within(schema: dict[str, Any], value: Decimal) -> bool:
    bounds = {key: Decimal(str(bound)) for key, bound in schema.items() if key != "type"}
    return (
        value >= bounds.get("minimum", value)
        and value <= bounds.get("maximum", value)
        and ("exclusiveMinimum" not in bounds or value > bounds["exclusiveMinimum"])
        and ("exclusiveMaximum" not in bounds or value < bounds["exclusiveMaximum"])
    )


def number(random_: random.Random) -> float:
    kind = random_.random()
    if kind < 0.3:
        return random_.choice([0, 1, -1, 10, 99, 100, -10, 9, -100, 0.5])
    if kind < 0.6:
        return random_.randint(-1200, 1200)
    return round(random_.uniform(-150, 150), random_.choice([0, 1, 2, 3]))


@pytest.mark.parametrize("kind", ["integer", "number"])
def test_what_matches_is_within_the_bounds(kind: str) -> None:
    random_ = random.Random(3)
    for _ in range(300):
        low, high = sorted([number(random_), number(random_)])
        schema: dict[str, Any] = {"type": kind}
        if random_.random() < 0.8:
            schema[random_.choice(["minimum", "exclusiveMinimum"])] = low
        if random_.random() < 0.8:
            schema[random_.choice(["maximum", "exclusiveMaximum"])] = high
        try:
            ranges = number_ranges(schema, kind == "number")
        except ValueError:
            ranges = []
        for _ in range(40):
            value = random_.choice([low, high, number(random_), random_.uniform(low - 2, high + 2)])
            text = str(round(value, random_.choice([1, 2, 3])) if kind == "number" else int(value))
            text += random_.choice(["", "0"]) if "." in text else ""
            assert matches(ranges, text) == within(schema, Decimal(text)), (schema, text)


@pytest.mark.parametrize("text", ["1e-05", "1E-5", "2.5e-7", "9e-1", "-1e-05"])
def test_small_numbers_may_have_an_exponent(text: str) -> None:
    assert matches(number_ranges({"minimum": -1, "maximum": 1}, True), text)
    assert not matches(number_ranges({"minimum": 0.5, "maximum": 1}, True), text)


def test_large_numbers_may_have_an_exponent_where_nothing_is_too_large() -> None:
    assert matches(number_ranges({"minimum": 0}, True), "1e+22")
    assert not matches(number_ranges({"minimum": 0, "maximum": 10}, True), "1e+22")
    assert not matches(number_ranges({"minimum": 2}, True), "1e0")


def test_digits_have_an_end() -> None:
    ranges = number_ranges({"minimum": 0, "maximum": 1}, True)
    assert matches(ranges, "0." + 17 * "9")
    assert not matches(ranges, "0." + 18 * "9")
    assert matches(number_ranges({"minimum": 0}, False), 19 * "9")
    assert not matches(number_ranges({"minimum": 0}, False), 20 * "9")


def test_bounds_may_ask_for_more_digits() -> None:
    high = number_ranges({"minimum": 0, "maximum": 10**21}, False)
    assert matches(high, 21 * "9")
    assert not matches(high, "1" + 20 * "0" + "1")
    assert matches(number_ranges({"exclusiveMinimum": int(19 * "9")}, False), "1" + 19 * "0")
    exact = number_ranges({"maximum": 0.12345678901234567891}, True)
    assert matches(exact, "0.12345678901234567")


def test_whole_numbers_have_no_zero_in_front() -> None:
    for schema in ({"maximum": -5}, {"minimum": 7, "maximum": 123}, {"minimum": 95}):
        ranges = number_ranges(schema, False)
        assert not any(matches(ranges, text) for text in ("-012", "012", "-05", "099"))


@pytest.mark.parametrize(
    "schema",
    [
        {"minimum": 3, "maximum": 2},
        {"minimum": 1, "exclusiveMaximum": 1},
        {"minimum": 1, "exclusiveMinimum": 2},
        {"minimum": 1, "exclusiveMinimum": True},
        {"minimum": 10**40},
    ],
)
def test_bounds_without_an_expression(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"bound|digits"):
        number_ranges(schema, True)
