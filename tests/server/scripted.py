"""A server whose model says what a test wants it to say; all else is as ever."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from llama_py.server.config.settings import Settings
from tests.server.serving import Server, serving, tiny_settings
from tests.steering import Steer, spelled, vocabulary_model

__all__ = ["Prompter", "scripted_serving"]


class Prompter:
    """Tells the model of a server what to want.

    Attributes:
        server: the one that clients talk to.
        text: what every reply from now on wants to be, and then to end.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.text = ""
        self._llama: Any = server.service.models.models[0].llama
        driver: Any = self._llama.runtime.loaded.driver
        self._submit = driver.submit
        driver.submit = self._steered

    def _steered(self, requests: Sequence[Any], *args: Any, **options: Any) -> Any:
        vocab = self._llama.vocab
        tokens = [*spelled(vocab, self.text.encode()), vocab.eos]
        steered = [
            replace(each, sampling=replace(each.sampling, logits_processors=(Steer(tokens),)))
            for each in requests
        ]
        return self._submit(steered, *args, **options)


@contextlib.contextmanager
def scripted_serving(template: str, **options: Any) -> Iterator[Prompter]:
    """Serve a model with a real vocabulary and this chat template until the end of the block."""
    path = vocabulary_model("phi-3")
    settings: Settings = tiny_settings(path, chat_template=template, n_ctx=4096, **options)
    with serving(settings) as server:
        yield Prompter(server)
