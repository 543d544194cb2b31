"""What a file is, by its first bytes."""

from __future__ import annotations

import pytest

from llama_py.errors import MediaError
from llama_py.media.files import look_at

#: A sound in FLAC with a tag before it, up to its length.
_TAGGED = b"ID3\4\0\0\0\0\0\5tags." + b"fLaC" + bytes(14) + b"\x0a\xc4\x42\xf0" + bytes(4)


@pytest.mark.parametrize("length", [*range(3, 10), *range(19, len(_TAGGED))])
def test_a_sound_that_ends_in_its_header_is_cut_off(length: int) -> None:
    with pytest.raises(MediaError, match=f"it is cut off: {length} bytes"):
        look_at(_TAGGED[:length], "it")


def test_a_whole_header_is_enough() -> None:
    assert look_at(_TAGGED, "it").format == "flac"
