"""The commands of ``llama-py chat`` that begin with a slash."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Protocol

from llama_py.cli.attachments import read_file
from llama_py.cli.terminal import note
from llama_py.cli.words import remedy
from llama_py.errors import LlamaError

if TYPE_CHECKING:
    from llama_py.api.llama import Llama
    from llama_py.api.sessions.session import ChatSession
    from llama_py.cli.attachments import Attachments

__all__ = ["Commanded", "Commands", "recall"]

#: Characters of a message that are shown when a conversation is loaded.
_SHOWN = 300

_HELP = """\
/reset          begin again; the system message stays
/system TEXT    set the system message; without TEXT, show it
/file FILE      send a text file with the next message
/image FILE     show a picture with the next message
/audio FILE     let it hear a sound with the next message
/retry          ask for the last reply again
/save FILE      save the conversation
/load FILE      go on with a saved conversation
/info           what was reused for the last reply
/exit           leave (also Ctrl-D)
Ctrl-C stops a reply. Tab completes commands and files. Pasted lines are one message; so are lines
between \"\"\" and \"\"\", and a line that ends with \\ goes on in the next one."""

#: Names of commands that end the chat.
_ENDS = ("exit", "quit", "bye")


class Commanded(Protocol):
    """The object of a command."""

    llm: Llama
    session: ChatSession
    attached: Attachments

    def attempt(self, text: str | None) -> None:
        """Say something (None: ask for the last reply again)."""


class Commands:
    """Runs slash commands for one chat."""

    def __init__(self, chat: Commanded) -> None:
        self._chat = chat
        self._known = {
            "audio": lambda path: self._attach("audio", path),
            "image": lambda path: self._attach("image", path),
            "file": self._attach_text,
            "help": self._help,
            "info": self._info,
            "load": self._load,
            "reset": self._reset,
            "retry": self._retry,
            "save": self._save,
            "system": self._system,
        }

    @property
    def names(self) -> list[str]:
        """The commands, with their slashes."""
        return [f"/{name}" for name in (*self._known, "exit")]

    def run(self, line: str) -> bool:
        """Run one command; True if it ends the chat."""
        name, _, rest = line[1:].partition(" ")
        if name in _ENDS:
            return True
        run = self._known.get(name)
        if run is None:
            close = get_close_matches(name, [*self._known, *_ENDS], n=1)
            hint = f"did you mean /{close[0]}? " if close else ""
            note(f"there is no command /{name}; {hint}/help lists them")
            return False
        try:
            run(rest.strip())
        except (LlamaError, OSError) as error:
            note(remedy(error))
        return False

    def _help(self, _rest: str) -> None:
        print(_HELP)

    def _reset(self, _rest: str) -> None:
        self._chat.session.reset()
        self._chat.attached.clear()
        note("the conversation begins again")

    def _system(self, text: str) -> None:
        if text:
            self._chat.session.system = text
            note("the system message is set")
        else:
            note(self._chat.session.system or "there is no system message")

    def _retry(self, _rest: str) -> None:
        self._chat.attempt(None)

    def _attach(self, kind: str, path: str) -> None:
        if not path:
            note(f"say which: /{kind} FILE")
            return
        count = self._chat.attached.add(read_file(kind, path), path)
        note(f"{path} goes with the next message, as {count} tokens")

    def _attach_text(self, path: str) -> None:
        if not path:
            note("say which: /file FILE")
            return
        count = self._chat.attached.add_text(path)
        note(f"{path} goes with the next message, as {count} tokens")

    def _save(self, path: str) -> None:
        if not path:
            note("say where: /save FILE")
            return
        session = self._chat.session
        session.save(path, state=False)
        note(f"{len(session.messages)} messages are saved in {path}")

    def _load(self, path: str) -> None:
        if not path:
            note("say which: /load FILE")
            return
        self._chat.session = session = self._chat.session.reopen(path)
        note(f"the conversation goes on after {len(session.messages)} messages")
        recall(session)

    def _info(self, _rest: str) -> None:
        info = self._chat.llm.cache.info
        if not info:
            note("nothing was said yet")
            return
        why = f"; not more, because {info['reason']}" if info["reason"] else ""
        reused, evaluated = info["reused"], info["evaluated"]
        note(f"{reused} tokens of the prompt were reused, {evaluated} evaluated{why}")


def recall(session: ChatSession) -> None:
    """Show the last question and answer of a conversation, shortened."""
    for message in session.messages[-2:]:
        content = message.get("content") or ""
        if not isinstance(content, str):
            content = " ".join(part.get("text", f"[{part.get('type')}]") for part in content)
        text = " ".join(content.split())
        note(f"{message['role']}: {text if len(text) <= _SHOWN else text[:_SHOWN] + '…'}")
