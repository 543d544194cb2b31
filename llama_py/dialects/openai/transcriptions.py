"""``/v1/audio/transcriptions``: a chat about a sound that a model hears, and its reply as a text.

There are no times of words or segments: a language model that hears says none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from llama_py.chat.checks import check_text
from llama_py.chat.conversation import AudioPart, Message, Text
from llama_py.chat.messages import ChatRequest
from llama_py.chat.rendered import RenderedChat
from llama_py.chat.stream import ChatStream
from llama_py.dialects.chat_requests import chat_requests
from llama_py.dialects.context import CallContext
from llama_py.dialects.failures import Failure, Kind, RequestError, openai_error
from llama_py.dialects.media_parts import PlacedAudio
from llama_py.dialects.requests import NO_PROMPT, read_generation, read_sampling
from llama_py.dialects.usage import PromptProgress
from llama_py.dialects.wire import WireCall, WireReply
from llama_py.dialects.wire_json import DONE, frame
from llama_py.engine.request import Event, GenerationRequest, Record, TokenEvent
from llama_py.errors import shown
from llama_py.options import CHAT

__all__ = ["TranscriptionReply", "read_transcription"]

_FORMATS = ("json", "text")
_TIMED = ("verbose_json", "srt", "vtt", "diarized_json")
_INSTRUCTION = "Transcribe the recording as text."
#: Families whose speech models expect a system message of their own, and no instruction.
_SYSTEM = {"lfm2": "Perform ASR."}


def read_transcription(
    context: CallContext, form: Mapping[str, Any], model: str, session: str | None = None
) -> WireCall:
    """The fields of a form: ``file``, and ``language``, ``prompt``, ``response_format``,
    ``temperature``, ``max_tokens``, ``stream``.

    Raises:
        RequestError, ParameterError: it cannot be answered.
        MediaError: the sound cannot be used.
    """
    if not context.hears:
        message = (
            f"model: {model} hears nothing (it has no projector for sounds), so it transcribes "
            "nothing; ask a model that has audio among its input_modalities"
        )
        raise RequestError(Kind.INVALID_VALUE, message, "model", code="unsupported_model")
    data = form.get("file")
    if data is None:
        raise RequestError(Kind.MISSING, "the field 'file' is missing: the sound", "file")
    if not isinstance(data, bytes):
        raise RequestError(Kind.INVALID_TYPE, "file must be a file, with a filename", "file")
    wanted_format = _text(form, "response_format") or "json"
    if wanted_format not in _FORMATS:
        timed = ", and no times are known here; use json"
        why = timed if wanted_format in _TIMED else "; expected json or text"
        message = f"response_format is {shown(wanted_format)}{why}"
        raise RequestError(Kind.INVALID_VALUE, message, "response_format")
    request = ChatRequest(_messages(context, form, data))
    rendered = context.render_chat(request)
    temperature, most = _number(form, "temperature", 0.0), _number(form, "max_tokens", 0.0)
    options = CHAT.read({"temperature": temperature})
    generation = read_generation(options, context, max_tokens=int(most) or None, logprobs=None)
    sampling = read_sampling(CHAT, options, context)
    wanted = GenerationRequest(NO_PROMPT, sampling, generation, session=session)
    calls = chat_requests(wanted, context.vocab, request, rendered)

    def encoder(records: Sequence[Record]) -> WireReply:
        return TranscriptionReply(records, rendered, as_text=wanted_format == "text")

    return WireCall(calls, bool(form.get("stream")), encoder)


def _messages(context: CallContext, form: Mapping[str, Any], data: bytes) -> tuple[Message, ...]:
    prompt, language = (_text(form, name) for name in ("prompt", "language"))
    family = context.metadata.get("general.architecture", "")[:4]
    system = _SYSTEM.get(family)
    said = prompt or ("" if system else _INSTRUCTION)
    if language:
        said = f"{said} (language: {language})".lstrip()
    sound: AudioPart = PlacedAudio(data, where="file")
    parts = (Text(said), sound) if said else (sound,)
    opening = (Message("system", (Text(system),)),) if system else ()
    return (*opening, Message("user", parts))


# ---- fields of a form: all of them are texts ---------------------------------------------------


def _text(form: Mapping[str, Any], name: str) -> str:
    value = form.get(name)
    return "" if value is None else check_text(value, name)


def _number(form: Mapping[str, Any], name: str, default: float) -> float:
    text = _text(form, name)
    try:
        value = float(text) if text else default
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and 0 <= value < 2**31):
        message = f"{name} must be a number that is not negative, not {shown(text)}"
        raise RequestError(Kind.INVALID_VALUE, message, name)
    return value


# ---- the reply -------------------------------------------------------------------------------


class TranscriptionReply:
    """Encodes one reply (see ``dialects.wire.WireReply``).

    Args:
        records: what is known of its request; nothing if that was never queued.
        rendered: the prompt that is continued.
        as_text: the reply is the bare text.
    """

    def __init__(
        self, records: Sequence[Record], rendered: RenderedChat, *, as_text: bool = False
    ) -> None:
        self._record = records[0] if records else None
        self._stream = ChatStream(rendered)
        self._as_text = as_text
        self._said = ""

    def open(self) -> bytes:
        """Nothing: the first frame is a piece of the text."""
        return b""

    def keep_alive(self) -> bytes:
        """A comment."""
        return b": the recording is being read\n\n"

    def progress(self, progress: PromptProgress) -> bytes:
        """Nothing: there is no frame for that."""
        return b""

    def feed(self, index: int, event: Event) -> bytes:
        """``transcript.text.delta``, if there is new text."""
        deltas = self._stream.feed(event.text)
        if not isinstance(event, TokenEvent):
            deltas = deltas + self._stream.flush()
        text = "".join(delta.content for delta in deltas)
        self._said += text
        return frame({"type": "transcript.text.delta", "delta": text}) if text else b""

    def close(self) -> bytes:
        """``transcript.text.done``."""
        return frame({"type": "transcript.text.done", **self._reply()}) + DONE

    def fail(self, failure: Failure) -> bytes:
        """A line with the error."""
        return frame(openai_error(failure)[1]) + DONE

    def whole(self) -> Any:
        """The text, or an object with it."""
        return f"{self._said}\n" if self._as_text else self._reply()

    def _reply(self) -> dict[str, Any]:
        record = self._record
        if record is None:
            return {"text": self._said}
        usage = {
            "type": "tokens",
            "input_tokens": record.n_prompt,
            "input_token_details": {
                "audio_tokens": sum(token < 0 for token in record.tokens),
                "text_tokens": sum(token >= 0 for token in record.tokens),
                "cached_tokens": record.reused,
            },
            "output_tokens": record.n_reply,
            "total_tokens": record.n_prompt + record.n_reply,
        }
        return {"text": self._said, "usage": usage}
