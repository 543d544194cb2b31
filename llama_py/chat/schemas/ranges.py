"""Regular expressions for decimal numbers within bounds, with a limited number of digits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

from llama_py.chat.schemas.json_forms import DECIMAL, SIGNIFICANT, WHOLE

__all__ = ["BOUNDS", "NumberRange", "number_ranges"]

#: Keywords that bound a number.
BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
#: A number, and whether it is left out itself.
_Bound = tuple[Decimal, bool]
#: The most digits of a bound.
_DIGITS = 25
#: Numbers with an exponent: more than 0 and less than 1, and from 1 on.
_SMALL = rf"[1-9](\.[0-9]{{1,{SIGNIFICANT - 1}}})?[eE]-0?[1-9][0-9]?"
_LARGE = rf"[1-9](\.[0-9]{{1,{SIGNIFICANT - 1}}})?[eE]\+?[0-9]{{1,3}}"


@dataclass(frozen=True, slots=True)
class NumberRange:
    """Numbers of one sign, as regular expressions for the text after the sign.

    Attributes:
        negative: the numbers begin with a minus.
        all_of: a text fits if it matches all of these,
        or_else: or any one of these.
    """

    negative: bool
    all_of: tuple[str, ...]
    or_else: tuple[str, ...]


def number_ranges(node: Mapping[str, Any], fraction: bool) -> list[NumberRange]:
    """The numbers within the bounds of a schema.

    Args:
        fraction: a fraction is allowed.

    Raises:
        ValueError: there are none, or the bounds are no numbers that fit the digits.
    """
    low, high = _bound(node, "inimum"), _bound(node, "aximum")
    if not fraction:
        low, high = _whole(low, ROUND_CEILING, 1), _whole(high, ROUND_FLOOR, -1)
    ranges = [_range(low, high, fraction, False), _range(_minus(high), _minus(low), fraction, True)]
    found = [part for part in ranges if part is not None]
    if not found:
        raise ValueError("no number is within the bounds")
    return found


def _bound(node: Mapping[str, Any], word: str) -> _Bound | None:
    given = [key for key in ("m" + word, "exclusiveM" + word) if key in node]
    if not given:
        return None
    if len(given) > 1 or isinstance(node[given[0]], bool):
        raise ValueError("two bounds, or one of an old form")
    return Decimal(str(node[given[0]])), given[0].startswith("ex")


def _whole(bound: _Bound | None, rounding: str, step: int) -> _Bound | None:
    """The bound of whole numbers, itself included."""
    if bound is None:
        return None
    value = bound[0].to_integral_value(rounding)
    return (value + step if bound[1] and value == bound[0] else value), False


def _minus(bound: _Bound | None) -> _Bound | None:
    return None if bound is None else (-bound[0], bound[1])


def _range(
    low: _Bound | None, high: _Bound | None, fraction: bool, negative: bool
) -> NumberRange | None:
    """The numbers from 0 on within bounds."""
    if high is not None and high[0] < 0:
        return None
    if low is None or low[0] < 0:
        low = Decimal(0), False
    if high is not None and (high[0] < low[0] or (high[0] == low[0] and (high[1] or low[1]))):
        return None
    if not fraction:
        return NumberRange(negative, (_naturals(low[0], None if high is None else high[0]),), ())
    most = None if high is None else _at_most(abs(high[0]), high[1])
    if high is not None and most is None:
        return None
    least = _at_least(abs(low[0]), low[1])
    small = low[0] == 0 and (high is None or high[0] >= 1)
    large = high is None and (low[0] < 1 or (low[0] == 1 and not low[1]))
    extra = (*[_SMALL] * small, *[_LARGE] * large)
    digits = _digits(low[0], high and high[0])
    return NumberRange(negative, (least, digits) if most is None else (least, most, digits), extra)


def _digits(*bounds: Decimal | None) -> str:
    """Numbers with no more digits than tell doubles, or one of the bounds, apart."""
    found = [_parts(abs(bound)) for bound in bounds if bound is not None]
    exact = [len(whole) + len(rest) for whole, rest in found]
    if max(exact) <= SIGNIFICANT:
        return DECIMAL
    longest = [max(map(len, part)) for part in zip(*found, strict=True)]
    return rf"{DECIMAL}|[0-9]{{1,{longest[0]}}}(\.[0-9]{{1,{longest[1] + 1}}})?"


# ---- whole numbers -------------------------------------------------------------------------------


def _naturals(low: Decimal, high: Decimal | None) -> str:
    """Integers within bounds of 0 or more; without an upper one, as far as 64 bits count, and to
    those with a digit more than the lower one."""
    first = _parts(abs(low))[0]
    last = "9" * max(WHOLE, len(first) + 1) if high is None else _parts(abs(high))[0]
    if len(first) == len(last):
        return f"({_between(first, last)})"
    ways = [_between(first, "9" * len(first))]
    if len(last) > len(first) + 1:
        ways.append(f"[1-9][0-9]{{{len(first)},{len(last) - 2}}}")
    ways.append(_between(f"1{'0' * (len(last) - 1)}", last))
    return _either(ways)


def _between(low: str, high: str) -> str:
    """The texts of digits from one to another of the same length."""
    first, last, rest = int(low[0]), int(high[0]), len(low) - 1
    zeros, nines = "0" * rest, "9" * rest
    if first == last and (low[1:], high[1:]) != (zeros, nines):
        return low[0] + _between(low[1:], high[1:])
    ways = []
    if low[1:] != zeros:
        ways.append(low[0] + _between(low[1:], nines))
        first += 1
    if high[1:] != nines:
        ways.append(high[0] + _between(zeros, high[1:]))
        last -= 1
    if first <= last:
        ways.append(f"[{first}-{last}]" + (f"[0-9]{{{rest}}}" if rest else ""))
    return ways[0] if len(ways) == 1 else _either(ways)


# ---- numbers with a fraction ---------------------------------------------------------------------

_MORE = rf"(\.[0-9]{{1,{_DIGITS}}})?"
_ANY = f"[0-9]{{0,{_DIGITS - 1}}}"


def _at_least(bound: Decimal, strictly: bool) -> str:
    """Decimal numbers that are not less than a bound of 0 or more, as a regular expression.

    Args:
        strictly: the bound itself is not one of them.

    Raises:
        ValueError: the bound has more digits than any number may have.
    """
    whole, rest = _parts(bound)
    ways = [f"[1-9][0-9]{{{0 if whole == '0' else len(whole)},{_DIGITS - 1}}}{_MORE}"]
    ways += [f"{way}{_MORE}" for way in _differing(whole, range(1, 10))]
    ways += [rf"{whole}\.{way}{_ANY}" for way in _differing(rest, range(1, 10), first=0)]
    if strictly:
        ways.append(rf"{whole}\.{rest}{_ANY}[1-9]{_ANY}")
    else:
        ways.append(rf"{whole}\.{rest}{_ANY}" if rest else f"{whole}{_MORE}")
    return _either(ways)


def _at_most(bound: Decimal, strictly: bool) -> str | None:
    """A regular expression for numbers from 0 up to a bound of 0 or more; None if there are no
    such numbers. The arguments are those of ``_at_least``."""
    whole, rest = _parts(bound)
    ways = [f"(0|[1-9][0-9]{{0,{len(whole) - 2}}}){_MORE}"] if len(whole) > 1 else []
    ways += [f"{way}{_MORE}" for way in _differing(whole, range(-9, 0))]
    ways += [rf"{whole}\.{way}{_ANY}" for way in _differing(rest, range(-9, 0), first=0)]
    if rest:
        ways += [whole, *(rf"{whole}\.{rest[:end]}" for end in range(1, len(rest)))]
        ways += [] if strictly else [rf"{whole}\.{rest}0{{0,{_DIGITS - 1}}}"]
    elif not strictly:
        ways.append(rf"{whole}(\.0{{1,{_DIGITS}}})?")
    return _either(ways) if ways else None


def _parts(bound: Decimal) -> tuple[str, str]:
    """The digits before and after the decimal point."""
    whole, _, rest = format(bound, "f").partition(".")
    rest = rest.rstrip("0")
    if len(whole) > _DIGITS or len(rest) > _DIGITS:
        raise ValueError(f"{bound} has more than {_DIGITS} digits")
    return whole, rest


def _differing(digits: str, steps: range, first: int | None = None) -> Iterable[str]:
    """Numbers with the same count of digits that first differ from these at one place, upwards or
    downwards.

    Args:
        first: the smallest first digit; None for the smallest one of a whole number.
    """
    for place, digit in enumerate(digits):
        least = 0 if place or first == 0 or len(digits) == 1 else 1
        others = [d for d in range(least, 10) if d - int(digit) in steps]
        if others:
            rest = len(digits) - place - 1
            tail = f"[0-9]{{{rest}}}" if rest and first is None else ""
            yield f"{digits[:place]}[{others[0]}-{others[-1]}]{tail}"


def _either(ways: list[str]) -> str:
    return f"({'|'.join(ways)})"
