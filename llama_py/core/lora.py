"""``LoraAdapter``: low-rank changes to a model's weights."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from llama_py._native import llama_h as C
from llama_py.core import logs
from llama_py.core.handle import Handle
from llama_py.core.model import ModelFiles
from llama_py.core.weights import check_finite
from llama_py.errors import InvalidModelError
from llama_py.gguf.adapters import check_adapter_file

if TYPE_CHECKING:
    from llama_py.core.model import Model

__all__ = ["LoraAdapter"]

_log = logging.getLogger("llama_py")


class LoraAdapter(Handle[C.llama_adapter_lora_p]):
    """An adapter loaded for ``model``; give it to ``Context.set_adapters``.

    Closed while a context applies it, it is freed when that context does not any more.

    Attributes:
        model: the model it changes, kept alive.
        path: the file it was loaded from.
        fingerprint: identifies its content.

    Raises:
        ModelNotFoundError, InvalidModelError: there is no such file, or it is not an adapter of
            this model (``gguf.adapters``).
    """

    def __init__(self, model: Model, path: str | os.PathLike[str]) -> None:
        self.model = model
        info = check_adapter_file(path, model.info)
        self.path = info.path
        try:
            check_finite(info.header)
        except InvalidModelError as error:
            raise InvalidModelError(f"the LoRA adapter {path} cannot be used: {error}") from None
        files = ModelFiles({self.path: (self.path.stat().st_size,)})
        #: Identifies the adapter in the fingerprint of saved states.
        self.fingerprint = files.digest
        with logs.ErrorLines() as lines, model.in_use() as parent:
            pointer = C.llama_adapter_lora_init(parent, os.fsencode(self.path))
            if not pointer:
                raise InvalidModelError(f"llama.cpp cannot load the LoRA adapter {path}: {lines}")
            super().__init__(pointer, C.llama_adapter_lora_free, model)
        for remark in info.remarks:
            _log.warning("the LoRA adapter %s: %s", self.path.name, remark)
        try:
            files.check()
        except BaseException:
            self.close()
            raise
