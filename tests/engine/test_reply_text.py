"""The text that is shown of a reply is the reply up to its earliest stop string."""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from llama_py.engine.generation import ReplyText


def play(pieces: Iterable[bytes], stops: Sequence[str] = ()) -> tuple[list[str], str | None]:
    """What each piece showed, then what the end showed; and the stop string that was found."""
    reply, shown = ReplyText(stops), []
    for piece in pieces:
        shown.append(reply.feed(piece))
        if reply.stopped_by is not None:
            break
    shown.append(reply.finish())
    return shown, reply.stopped_by


def cut(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """The reference: the earliest match in the whole text, the longest of those at one place."""
    hits = [(text.index(stop), -len(stop), stop) for stop in stops if stop in text]
    if not hits:
        return text, None
    place, _, stop = min(hits)
    return text[:place], stop


def split(data: bytes, places: Iterable[int]) -> list[bytes]:
    borders = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(borders)]


@pytest.mark.parametrize("stops", [["def", "bcd"], ["bcd", "def"]])
def test_the_earliest_stop_wins_not_the_first_listed(stops: list[str]) -> None:
    assert play([b"abcdef"], stops) == (["a", ""], "bcd")


def test_a_stop_across_token_borders() -> None:
    assert play([b"hello", b" EN", b"D", b" more"], ["END"]) == (["hello", " ", "", ""], "END")


def test_text_that_may_become_a_stop_is_held_back_and_given_out_later() -> None:
    reply = ReplyText(["###"])
    assert [reply.feed(b"a#"), reply.feed(b"#"), reply.feed(b"b")] == ["a", "", "##b"]
    held = reply.holds_back
    assert not held
    assert reply.feed(b"#") == ""
    held = reply.holds_back
    assert held
    assert reply.finish() == "#"
    assert reply.stopped_by is None


def test_nothing_is_held_back_without_reason() -> None:
    reply = ReplyText(["STOP"])
    assert [reply.feed(piece) for piece in (b"one", b" two", b" S", b"o")] == [
        "one",
        " two",
        " ",
        "So",
    ]


@pytest.mark.parametrize("text", ["\u00e9", "\u4e16\u754c", "\U0001f600!"])
def test_a_character_is_shown_when_it_is_complete(text: str) -> None:
    pieces = [bytes([byte]) for byte in text.encode()]
    shown, _ = play(pieces)
    assert "".join(shown) == text
    assert "\ufffd" not in "".join(shown)
    reply = ReplyText()
    assert reply.feed(pieces[0]) == ""
    assert reply.holds_back


def test_half_a_character_at_the_end_is_left_out() -> None:
    assert play([b"a\xf0\x9f"]) == (["a", ""], None)


def test_half_a_character_behind_held_back_text() -> None:
    assert "".join(play([b"a#\xf0\x9f"], ["##"])[0]) == "a#"


def test_bytes_that_are_no_text_are_shown_as_such() -> None:
    assert "".join(play([b"a\xff", b"b\xf0"])[0]) == "a\ufffdb"


def test_a_stop_string_of_several_bytes() -> None:
    pieces = [bytes([byte]) for byte in "ja\u754c\u4e16nein".encode()]
    shown, stopped = play(pieces, ["\u4e16"])
    assert ("".join(shown), stopped) == ("ja\u754c", "\u4e16")


def test_after_a_stop_nothing_more_is_shown() -> None:
    reply = ReplyText(["b"])
    assert reply.feed(b"abc") == "a"
    assert reply.finish() == ""


LETTERS = st.text(alphabet="ab#\u00e9\U0001f600", max_size=30)
STOPS = st.lists(st.text(alphabet="ab#\u00e9\U0001f600", min_size=1, max_size=5), max_size=4)


@given(LETTERS, STOPS, st.lists(st.integers(0, 200), max_size=12))
@example("aab", ["aab", "ab"], [1, 2])
@example("abab", ["abb", "ba"], [1, 2, 3])
def test_any_split_shows_the_reference_cut(text: str, stops: list[str], places: list[int]) -> None:
    pieces = split(text.encode(), places)
    shown, stopped = play(pieces, stops)
    expected, by = cut(text, stops)
    assert "".join(shown) == expected
    # One piece at a time cannot know of a longer stop that begins at the same place.
    assert (stopped is None) == (by is None)
    assert stopped is None or text.startswith(stopped, len(expected))


@given(st.binary(max_size=40), STOPS, st.lists(st.integers(0, 200), max_size=12))
def test_any_bytes_give_some_text(data: bytes, stops: list[str], places: list[int]) -> None:
    whole = codecs.getincrementaldecoder("utf-8")("replace").decode(data)
    assert "".join(play(split(data, places), stops)[0]) == cut(whole, stops)[0]


@given(LETTERS, STOPS, st.lists(st.integers(0, 200), max_size=12))
def test_no_more_is_held_back_than_could_become_a_stop(
    text: str, stops: list[str], places: list[int]
) -> None:
    reply, fed, shown = ReplyText(stops), b"", ""
    for piece in split(text.encode(), places):
        fed += piece
        shown += reply.feed(piece)
        if reply.stopped_by is not None:
            return
        sure = fed.decode("utf-8", "ignore")
        pending = sure[len(shown) :]
        assert sure == shown + pending
        assert not pending or any(stop.startswith(pending) for stop in stops)


def test_a_stop_that_begins_another_one_ends_the_reply_at_once() -> None:
    """Waiting for the longer one would cost a token, and show the same text."""
    reply = ReplyText(["\n\n", "\n"])
    assert reply.feed(b"a\n") == "a"
    assert reply.stopped_by == "\n"


@given(LETTERS, STOPS, st.lists(st.integers(0, 200), max_size=12))
@example("ab", ["a", "ab"], [1])
def test_a_stop_is_noticed_as_soon_as_it_is_certain(
    text: str, stops: list[str], places: list[int]
) -> None:
    """That is: when no other one that begins before it can come any more."""
    reply, fed = ReplyText(stops), b""
    for piece in split(text.encode(), places):
        fed += piece
        reply.feed(piece)
        sure = fed.decode("utf-8", "ignore")
        _, found = cut(sure, stops)
        if found is None:
            assert reply.stopped_by is None
            continue
        earlier = range(len(cut(sure, stops)[0]))
        open_before = any(stop.startswith(sure[i:]) for i in earlier for stop in stops)
        assert (reply.stopped_by is not None) == (not open_before)
        if reply.stopped_by is not None:
            return
