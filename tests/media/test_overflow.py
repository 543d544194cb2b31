"""What is left out of a conversation whose pictures are most of it."""

from __future__ import annotations

import numpy as np
import pytest

from llama_py import MediaError, TrimMessages
from tests.media import pictures
from tests.media.talking import talk


def picture(shade: int) -> pictures.Picture:
    return np.full((32, 32, 3), shade, np.uint8)


def test_pictures_count_when_turns_are_left_out() -> None:
    messages, sizes, evaluated = [], [], []
    with talk(n_ctx=512) as talking:
        for number in range(26):
            messages.append(talking.message([picture(number), "What?"]))
            reply = talking.ask_all(messages, overflow=TrimMessages(reserve=16))
            messages.append({"role": "assistant", "content": "x"})
            sizes.append(reply["usage"]["prompt_tokens"])
            evaluated.append(reply.cache["evaluated"])
    full = sizes.index(max(sizes))
    assert full < 20, "some turns are to be left out"
    assert min(sizes[full:]) > 512 / 3, "no more goes than about half"
    assert sum(count > 100 for count in evaluated) <= 2, "and not with every turn"


def test_a_picture_that_cannot_be_used_is_named_all_the_same() -> None:
    with talk(n_ctx=512) as talking:
        good, bad = talking.message(["Hello!"]), talking.message([picture(1)])
        bad["content"][0] = {"type": "image_url", "image_url": {"url": "data:,nothing"}}
        with pytest.raises(MediaError, match=r"messages\[1\].content\[0\]"):
            talking.ask_all([good, bad], overflow=TrimMessages())
