"""What a file is, by its first bytes."""

from __future__ import annotations

import base64

import pytest

from llama_py.errors import MediaError
from llama_py.media.files import look_at
from llama_py.media.limits import MediaLimits
from llama_py.media.sources import decode_base64, read_url

#: A sound in FLAC with a tag before it, up to its length.
_TAGGED = b"ID3\4\0\0\0\0\0\5tags." + b"fLaC" + bytes(14) + b"\x0a\xc4\x42\xf0" + bytes(4)


@pytest.mark.parametrize("length", [*range(3, 10), *range(19, len(_TAGGED))])
def test_a_sound_that_ends_in_its_header_is_cut_off(length: int) -> None:
    with pytest.raises(MediaError, match=f"it is cut off: {length} bytes"):
        look_at(_TAGGED[:length], "it")


def test_a_whole_header_is_enough() -> None:
    assert look_at(_TAGGED, "it").format == "flac"


@pytest.mark.parametrize("head", ["data:", "DATA:", "  Data:"])
@pytest.mark.parametrize("form", ["usual", "unpadded", "of addresses", "in lines"])
def test_an_address_that_holds_its_data(head: str, form: str) -> None:
    """Clients write the scheme in any case, and base64 without padding or of the other alphabet."""
    data = b"\xfb\xff\xfe?\x00"  # "+/", and padding
    text = base64.b64encode(data).decode()
    if form == "unpadded":
        text = text.rstrip("=")
    elif form == "of addresses":
        text = base64.urlsafe_b64encode(data).decode()
    elif form == "in lines":
        text = f"{text[:4]}\n{text[4:]}\n"
    assert read_url(f"{head}image/png;BASE64,{text} ", "it", MediaLimits()) == data


@pytest.mark.parametrize("text", ["a", "AAAAA", "A=AA", "AA*A"])
def test_what_is_no_base64(text: str) -> None:
    with pytest.raises(MediaError, match="it is no base64"):
        decode_base64(text, "it")
