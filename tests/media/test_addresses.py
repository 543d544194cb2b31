"""Addresses that hold their data, and base64, as clients write them."""

from __future__ import annotations

import base64

import pytest

from llama_py.errors import MediaError
from llama_py.media.limits import MediaLimits
from llama_py.media.sources import decode_base64, read_url


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
    with pytest.raises(MediaError, match="it is not base64"):
        decode_base64(text, "it")
