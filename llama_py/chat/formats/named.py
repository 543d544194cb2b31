"""A table of named chat formats.

They are for models whose GGUF has no template, or a wrong one. Each entry is data: the texts before
and after the messages of each role. The tokenizer adds BOS.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from llama_py.chat.conversation import AudioPart, ImagePart, Message, Text
from llama_py.chat.messages import ChatRequest
from llama_py.chat.rendered import RenderedChat
from llama_py.chat.templates.system import FixedSlots, place_system
from llama_py.errors import TemplateError

__all__ = ["FORMATS", "NamedFormat"]


@dataclass(frozen=True, slots=True)
class NamedFormat:
    """A chat format made of fixed texts.

    Attributes:
        user, assistant: the texts before and after such a message.
        system: the same for the system message; None puts it before the first user message.
        default_system: the system message of a conversation without one.
        opening: the text that opens the reply, if it is not the text before assistant messages.
        first: the text before the first user message after a system message, if it differs
            (because the system message is a part of that message).
        stops: texts that end a reply.
    """

    user: tuple[str, str]
    assistant: tuple[str, str]
    system: tuple[str, str] | None = None
    default_system: str = ""
    opening: str | None = None
    first: str | None = None
    stops: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """Its fixed texts as a Jinja template, which ``Markup`` reads."""
        pairs = (self.user, self.assistant, self.system or ())
        return "\n".join((*(text for pair in pairs for text in pair), *self.stops))

    def render(self, request: ChatRequest) -> RenderedChat:
        """Render a conversation.

        Raises:
            TemplateError: there are tools or tool messages, which the format cannot express.
        """
        if request.uses_tools:
            raise TemplateError(
                "this chat format has no form for tool calls; use the model's own template "
                '(leave chat_format out) or chat_format="chatml-function-calling"'
            )
        pieces = self._pieces(request)
        opening = self.assistant[0].rstrip(" ") if self.opening is None else self.opening
        if request.continue_final_message:
            tail = pieces.pop().removesuffix(self.assistant[1])
            opening = tail if tail.startswith(self.assistant[0]) else self.assistant[0] + tail
        elif not request.add_generation_prompt:
            opening = ""
        return RenderedChat(
            prompt="".join(pieces) + opening,
            generation_prompt=opening,
            stops=self.stops,
            delimiters=(("user", self.user[0]), ("assistant", self.assistant[0])),
            message_starts=tuple(accumulate(map(len, pieces))),
            schema=request.schema,
        )

    def _pieces(self, request: ChatRequest) -> list[str]:
        placed = place_system(request.messages, FixedSlots())
        systems = [_plain_text(m) for m in placed if m.role in ("system", "developer")]
        messages = [m for m in placed if m.role not in ("system", "developer")]
        system = "\n\n".join(systems) or self.default_system
        pieces = []
        if system and self.system is not None:
            pieces.append(self.system[0] + system + self.system[1])
        for i, message in enumerate(messages):
            text = _plain_text(message)
            if i == 0 and self.system is None and system:
                text = f"{system}\n\n{text}"
            pieces.append(self._piece(message.role, text, first=len(pieces) == 1 and i == 0))
        # The tokenizer writes the first BOS.
        return [piece.removeprefix("<s>") if i == 0 else piece for i, piece in enumerate(pieces)]

    def _piece(self, role: str, text: str, *, first: bool) -> str:
        if role == "assistant":
            return self.assistant[0] + text + self.assistant[1]
        if role == "user":
            before = self.first if first and self.first is not None else self.user[0]
            return before + text + self.user[1]
        raise TemplateError(
            f'this chat format has no form for a message of the role "{role}"; use the model\'s '
            "own template (leave chat_format out)"
        )


def _plain_text(message: Message) -> str:
    """The text of a message, its parts joined by line breaks; markers where pictures are."""
    return "\n".join(
        part.text if isinstance(part, Text) else part.marker
        for part in message.parts
        if isinstance(part, Text | ImagePart | AudioPart)
    )


def _lines(user: str, assistant: str, end: str = "\n", **rest: Any) -> NamedFormat:
    """``NAME: text``, one after the other."""
    return NamedFormat((f"{user}: ", end), (f"{assistant}: ", end), **rest)


_CHATML = NamedFormat(
    user=("<|im_start|>user\n", "<|im_end|>\n"),
    assistant=("<|im_start|>assistant\n", "<|im_end|>\n"),
    system=("<|im_start|>system\n", "<|im_end|>\n"),
    stops=("<|im_end|>",),
)
_HEADERS = NamedFormat(
    user=("<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"),
    assistant=("<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"),
    system=("<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"),
    stops=("<|eot_id|>",),
)

FORMATS: dict[str, NamedFormat] = {
    "chatml": _CHATML,
    "qwen": replace(
        _CHATML,
        default_system="You are a helpful assistant.",
        stops=("<|im_end|>", "<|endoftext|>"),
    ),
    "llama-2": NamedFormat(
        user=("<s>[INST] ", " [/INST]"),
        assistant=(" ", " </s>"),
        system=("[INST] <<SYS>>\n", "\n<</SYS>>\n\n"),
        opening="",
        first="",
        stops=("</s>",),
    ),
    "llama-3": _HEADERS,
    "alpaca": NamedFormat(
        user=("### Instruction:\n", "\n\n"),
        assistant=("### Response:\n", "</s>"),
        system=("", "\n\n"),
        stops=("### Instruction:",),
    ),
    "vicuna": NamedFormat(
        user=("USER: ", " "),
        assistant=("ASSISTANT: ", "</s>"),
        system=("", " "),
        default_system=(
            "A chat between a curious user and an artificial intelligence assistant. The assistant "
            "gives helpful, detailed, and polite answers to the user's questions."
        ),
        stops=("</s>", "USER:"),
    ),
    "oasst_llama": NamedFormat(
        user=("<|prompter|>", "</s>"),
        assistant=("<|assistant|>", "</s>"),
        system=("[INST] <<SYS>>\n", "\n<</SYS>>\n\n"),
        stops=("</s>",),
    ),
    "baichuan": NamedFormat(("<reserved_102>", ""), ("<reserved_103>", ""), ("", "")),
    "baichuan-2": NamedFormat(("<reserved_106>", ""), ("<reserved_107>", ""), ("", "")),
    "openbuddy": _lines(
        "User",
        "Assistant",
        system=("", "\n"),
        default_system="You are Buddy, a helpful, respectful and honest assistant.",
        stops=("User:",),
    ),
    "redpajama-incite": _lines("<human>", "<bot>", system=("", "\n"), stops=("<human>",)),
    "snoozy": NamedFormat(
        user=("### Prompt: ", "\n"),
        assistant=("### Response: ", "\n"),
        system=("### Instruction:\n", "\n"),
        default_system=(
            "The prompt below is a question to answer, a task to complete, or a conversation to "
            "respond to; decide which and write an appropriate response."
        ),
        stops=("###",),
    ),
    "phind": NamedFormat(
        user=("### User Message\n", "\n\n"),
        assistant=("### Assistant\n", "\n\n"),
        system=("### System Prompt\n", "\n\n"),
        default_system="You are an intelligent programming assistant.",
        stops=("### User Message",),
    ),
    "intel": NamedFormat(
        user=("### User:\n", "\n"),
        assistant=("### Assistant:\n", "\n"),
        system=("### System:\n", "\n"),
        stops=("### User:",),
    ),
    "open-orca": NamedFormat(
        user=("User: ", "<|end_of_turn|>\n"),
        assistant=("Assistant: ", "<|end_of_turn|>\n"),
        system=("", "<|end_of_turn|>\n"),
        default_system="You are a helpful assistant. Please answer truthfully, step by step.",
        stops=("<|end_of_turn|>", "User:"),
    ),
    "mistrallite": NamedFormat(
        user=("<|prompter|>", "</s>\n"),
        assistant=("<|assistant|>", "</s>\n"),
        system=("<|system|>", "</s>\n"),
        stops=("</s>",),
    ),
    "zephyr": NamedFormat(
        user=("<|user|>\n", "</s>\n"),
        assistant=("<|assistant|>\n", "</s>\n"),
        system=("<|system|>\n", "</s>\n"),
        stops=("</s>",),
    ),
    "pygmalion": NamedFormat(
        user=("<|user|>", "\n"),
        assistant=("<|model|>", "\n"),
        system=("<|system|>", "\n"),
        stops=("<|user|>",),
    ),
    "mistral-instruct": NamedFormat(
        user=("[INST] ", " [/INST]"), assistant=("", "</s>"), stops=("</s>",)
    ),
    "chatglm3": NamedFormat(
        user=("<|user|>\n ", ""),
        assistant=("<|assistant|>\n ", ""),
        system=("<|system|>\n ", ""),
        opening="<|assistant|>",
        stops=("<|user|>", "<|observation|>"),
    ),
    "openchat": NamedFormat(
        user=("GPT4 Correct User: ", "<|end_of_turn|>"),
        assistant=("GPT4 Correct Assistant: ", "<|end_of_turn|>"),
        system=("", "<|end_of_turn|>"),
        stops=("<|end_of_turn|>",),
    ),
    "saiga": NamedFormat(
        user=("<s>user\n", "</s>\n"),
        assistant=("<s>bot\n", "</s>\n"),
        system=("<s>system\n", "</s>\n"),
        stops=("</s>",),
    ),
    "gemma": NamedFormat(
        user=("<start_of_turn>user\n", "<end_of_turn>\n"),
        assistant=("<start_of_turn>model\n", "<end_of_turn>\n"),
        stops=("<end_of_turn>",),
    ),
}
