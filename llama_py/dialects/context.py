"""``CallContext``: the facts about a loaded model that parsing a request needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from llama_py.chat.conversation import AudioPart, ImagePart
    from llama_py.chat.messages import ChatRequest
    from llama_py.chat.rendered import RenderedChat
    from llama_py.chat.vocab import VocabLike
    from llama_py.engine.media import Medium

__all__ = ["CallContext"]


class CallContext(Protocol):
    """The interface of a model for ``parse_completion`` and ``parse_chat``."""

    #: Used when a call gives no seed; ``RANDOM_SEED`` chooses one for every call.
    @property
    def seed(self) -> int: ...

    @property
    def vocab(self) -> VocabLike: ...

    #: The scalar metadata of the GGUF, as text.
    @property
    def metadata(self) -> Mapping[str, str]: ...

    #: Named as ``model`` in responses when the call gives no name.
    @property
    def model_path(self) -> str: ...

    #: Default of ``penalty_last_n``.
    @property
    def last_n_tokens_size(self) -> int: ...

    #: Infill prompts begin with the suffix.
    @property
    def spm_infill(self) -> bool: ...

    #: Sampling parameters for calls that do not say, from whoever serves the model; they take
    #: precedence over what its file asks for.
    @property
    def sampling(self) -> Mapping[str, Any]: ...

    #: Most tokens of replies to calls that do not say; None: what the call's own default is.
    @property
    def max_tokens(self) -> int | None: ...

    #: Whether pictures, and sounds, can be in a prompt.
    @property
    def sees(self) -> bool: ...

    @property
    def hears(self) -> bool: ...

    #: Most pictures and sounds of a prompt.
    @property
    def max_media(self) -> int: ...

    def medium(self, part: ImagePart | AudioPart, where: str) -> Medium:
        """What a prompt gets in place of a picture or a sound.

        Raises:
            ParameterError: there is no projector for it.
            MediaError: it cannot be used, or may not be read.
        """

    def render_chat(self, request: ChatRequest) -> RenderedChat:
        """Render a conversation with the model's template, or the chosen chat format."""
