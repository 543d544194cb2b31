"""``Chats``: the part of ``llama_cpp.Llama`` that answers conversations, and handlers of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llama_py.chat.schemas.closing import closed
from llama_py.compat.failures import translated
from llama_py.compat.lenient import changed, lenient
from llama_py.compat.replies import chat_chunks, chat_reply
from llama_py.options import CHAT

if TYPE_CHECKING:
    from llama_py.api.llama import Llama as NativeLlama

__all__ = ["NativeHandler", "answer"]

#: Members of a call that have no effect, or are handled before.
_DROPPED = ("llama", "messages", "tfs_z")


class NativeHandler:
    """A chat handler that lets llama_py render and parse.

    It is called as any other handler: with a model, messages and options. Options that
    ``create_chat_completion`` does not have, ``enable_thinking=False`` for example, go to the
    template.

    Args:
        chat_format: a format by name, or None for the model's own template.
    """

    def __init__(self, chat_format: str | None = None) -> None:
        self.chat_format = chat_format

    def __call__(self, *, llama: Any, messages: Any, **options: Any) -> Any:
        """A reply, or with ``stream`` an iterator of its chunks."""
        options.setdefault("repeat_penalty", 1.1)
        options.setdefault("temperature", 0.2)
        llama._draw_seed(options)
        return answer(llama.native, self.chat_format, messages, options, llama._before_call)

    def __repr__(self) -> str:
        return f"NativeHandler({self.chat_format!r})"


def answer(
    native: NativeLlama,
    chat_format: str | None,
    messages: Any,
    options: Mapping[str, Any],
    begin: Any,
) -> Any:
    """Answer a conversation: by which format, with which options of llama-cpp-python."""
    begin()
    if native.chat_format != chat_format:
        native.chat_format = chat_format
    stream = bool(options.get("stream"))
    given = native_chat_options(options)
    with translated():
        found = native.create_chat_completion(_messages(messages), stream=stream, **given)
    return chat_chunks(found) if stream else chat_reply(found)


def native_chat_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of llama_py's ``create_chat_completion``."""
    given = {
        name: value
        for name, value in changed(options).items()
        if name not in _DROPPED and name != "stream" and value is not None
    }
    _fold_unknown(given)
    _choose_tools(given)
    _read_logprobs(given)
    _close_objects(given)
    return lenient(given)


def _fold_unknown(given: dict[str, Any]) -> None:
    """Options that are not known go to the template."""
    unknown = {name: given.pop(name) for name in list(given) if name not in CHAT.options}
    if unknown:
        given["chat_template_kwargs"] = {**given.get("chat_template_kwargs", {}), **unknown}


def _choose_tools(given: dict[str, Any]) -> None:
    """No choice where there is nothing to choose from."""
    for offered, chosen in (("tools", "tool_choice"), ("functions", "function_call")):
        if not given.get(offered):
            given.pop(offered, None)
            given.pop(chosen, None)
    choice = given.get("tool_choice")
    if isinstance(choice, str) and choice not in ("auto", "none", "required"):
        names = [tool.get("function", {}).get("name") for tool in given["tools"]]
        del given["tool_choice"]  # llama-cpp-python ignores any other text
        if choice in names:
            given["tool_choice"] = {"type": "function", "function": {"name": choice}}
    if "grammar" in given and given.get("tool_choice") in (None, "auto", "none"):
        given.pop("tools", None)
        given.pop("tool_choice", None)


def _read_logprobs(given: dict[str, Any]) -> None:
    """``logprobs`` may be a number there, and ``top_logprobs`` may be alone."""
    wanted = given.pop("logprobs", None)
    if wanted is None or wanted is False:
        given.pop("top_logprobs", None)
        return
    given["logprobs"] = True
    if not isinstance(wanted, bool):
        given.setdefault("top_logprobs", int(wanted))


def _close_objects(given: dict[str, Any]) -> None:
    """A reply has the listed properties only, unless its schema says otherwise."""
    wanted = given.get("response_format")
    if not isinstance(wanted, Mapping):
        return
    if "schema" in wanted:
        wanted = {**wanted, "schema": closed(wanted["schema"])}
    named = wanted.get("json_schema")
    if isinstance(named, Mapping) and "schema" in named:
        wanted = {**wanted, "json_schema": {**named, "schema": closed(named["schema"])}}
    given["response_format"] = wanted


def _messages(messages: Any) -> Any:
    """Messages whose content is a text where there is none."""
    if not isinstance(messages, (list, tuple)):
        return messages
    return [
        {**message, "content": ""}
        if message.get("content", "") is None and message.get("role") in ("system", "user")
        else message
        for message in messages
    ]
