"""``llama-py chat``: one question, or a conversation at the keyboard."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_py.cli import options
from llama_py.cli.asking import add_words, prompt_of, with_input
from llama_py.cli.attachments import Attachments, read_file
from llama_py.cli.commands import Commands, recall
from llama_py.cli.elsewhere import LLAMA_CLI, with_aliases
from llama_py.cli.terminal import Interrupts, LineReader, is_terminal, note
from llama_py.cli.words import remedy
from llama_py.errors import ContextOverflowError, LlamaError, ParameterError

if TYPE_CHECKING:
    from llama_py.api.llama import Llama
    from llama_py.api.sessions.session import ChatSession, TurnStream

__all__ = ["Chat", "add_parser"]

#: Most tokens that are kept free for a reply when the context is full.
_RESERVE = 256
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


def add_parser(commands: Any) -> None:
    """Add ``chat`` to the subcommands of ``llama-py``."""
    parser = commands.add_parser(
        "chat",
        help="ask one question, or talk",
        usage="llama-py chat [MODEL.gguf] [PROMPT] [options]",
        description="Talk to a model. With a PROMPT, or when standard input is not a terminal, "
        "one reply is printed; otherwise a conversation begins, in which /help lists the commands.",
        epilog='examples: llama-py chat model.gguf --temp 0 "Why is the sky blue?"; '
        'llama-py chat model.gguf --image cat.png "What is this?"; '
        'git diff | llama-py chat model.gguf "Summarise this change."',
    )
    parser.elsewhere, parser.words = LLAMA_CLI, True
    add_words(parser, "PROMPT", 'the question; text from a pipe comes before it; "-": alone')
    parser.add_argument(
        "-i",
        "--interactive",
        action="store_true",
        help="begin a conversation in any case: with PROMPT as its first message, or with one "
        "message per line of standard input",
    )
    parser.add_argument(
        *with_aliases("-s", "--system"), dest="system", metavar="TEXT", help="the system message"
    )
    for kind, shown in (
        ("image", "a picture (PNG, JPEG, WebP, GIF, BMP)"),
        ("audio", "a sound (WAV, FLAC, MP3, Ogg)"),
    ):
        parser.add_argument(
            f"--{kind}",
            metavar="FILE",
            action="append",
            default=[],
            help=f"{shown} that goes with the first message; may be repeated",
        )
    parser.add_argument("--load", metavar="FILE", help="go on with a conversation saved by /save")
    parser.add_argument(
        *with_aliases("--json-schema"),
        dest="json_schema",
        metavar="SCHEMA",
        help="the reply follows this JSON schema (text or file)",
    )
    parser.add_argument(
        "--no-think", action="store_true", help="ask a reasoning model to answer at once"
    )
    parser.add_argument(
        "--stats", action="store_true", help="print tokens and speed after every reply"
    )
    options.add_model_options(parser)
    options.add_sampling_options(parser, None)
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    sampling = options.sampling(parsed)
    if parsed.json_schema is not None:
        schema = options.read_schema(parsed.json_schema)
        sampling["response_format"] = {"type": "json_object", "schema": schema}
    if parsed.no_think:
        sampling["enable_thinking"] = False
    prompt = prompt_of(parsed)
    talks = parsed.interactive or (prompt is None and is_terminal(sys.stdin))
    if not talks:
        prompt = with_input(prompt, "type the question").strip()
        if not prompt:
            raise ParameterError('standard input is empty; give a prompt: llama-py chat "Hello!"')
    files = [(path, read_file("image", path)) for path in parsed.image]
    files += [(path, read_file("audio", path)) for path in parsed.audio]
    with options.load_model(parsed) as llm:
        chat = Chat(llm, _session(llm, parsed, sampling), stats=parsed.stats)
        for path, sent in files:
            chat.attached.add(sent, path)
        if prompt is not None and not talks:
            chat.say(prompt)
            return 0
        return chat.talk(prompt)


def _session(llm: Llama, parsed: argparse.Namespace, sampling: dict[str, Any]) -> ChatSession:
    from llama_py.api.overflow import TrimMessages
    from llama_py.api.sessions.session import ChatSession

    given = parsed.max_tokens or 0  # 0 and less: as many as there is room for
    reserve = min(given if given > 0 else _RESERVE, _RESERVE, llm.n_ctx() // 4)
    overflow: Any = TrimMessages(reserve=reserve)
    if parsed.load is None:
        return ChatSession(llm, parsed.system, overflow=overflow, **sampling)
    session = ChatSession.load(llm, parsed.load, overflow=overflow, **sampling)
    if parsed.system is not None:
        session.system = parsed.system
    return session


class Chat:
    """A conversation on the terminal.

    Attributes:
        session: the conversation; ``/load`` replaces it.
        attached: pictures and sounds for the next message.
    """

    def __init__(self, llm: Llama, session: ChatSession, *, stats: bool = False) -> None:
        self.llm = llm
        self.session = session
        self.attached = Attachments(llm)
        self._stats = stats
        self._colours = is_terminal(sys.stdout) and not os.environ.get("NO_COLOR")

    # -- at the keyboard ------------------------------------------------------------------------

    def talk(self, first: str | None = None) -> int:
        """Read and answer until the end of the input or ``/exit``; return the exit code."""
        commands = Commands(self)
        reader = LineReader(commands.names)
        if reader.interactive:
            name, room = Path(self.llm.model_path).name, f"{self.llm.n_ctx():,}"
            note(f"{name}, {room} tokens of context; /help lists the commands, /exit leaves")
        recall(self.session)
        with reader:
            line = first
            while True:
                if line is None:
                    line = reader.read()
                if line is None or (line.startswith("/") and commands.run(line)):
                    return 0
                if line and not line.startswith("/"):
                    self.attempt(line)
                line = None

    def attempt(self, text: str | None) -> None:
        """Send a message, or regenerate the reply if it is None. An error does not end the chat."""
        try:
            with Interrupts() as interrupts:
                self.say(text, interrupts)
        except ContextOverflowError as error:
            count = f"at least {error.prompt_tokens}" if error.at_least else error.prompt_tokens
            note(
                f"this does not fit even without the earlier turns: {count} tokens, and the "
                f"context holds {error.limit}; say it shorter, or start with a larger --n-ctx"
            )
        except (LlamaError, OSError) as error:
            note(remedy(error))

    # -- one turn -------------------------------------------------------------------------------

    def say(self, text: str | None, interrupts: Interrupts | None = None) -> None:
        """One turn: send a message, and print the reply as it is generated.

        When the context is full, the oldest turns are left out, and the user is told.
        """
        from llama_py.cli.progress import ProgressLine

        progress = ProgressLine("processing the prompt", enabled=is_terminal(sys.stderr))

        def on_progress(done: int, total: int) -> None:
            if interrupts is not None and interrupts.seen:
                raise Stopped
            progress.tokens(done, total)

        try:
            with progress:
                reply = self._send(text, on_progress)
                self._print(reply, progress, interrupts)
        except Stopped:
            note("stopped; the message was not sent")
            return
        response = reply.response
        choice = response["choices"][0]
        if choice["finish_reason"] is None:
            note("stopped")
        elif (
            choice["finish_reason"] == "length"
            and int(response["usage"]["total_tokens"]) >= self.llm.n_ctx()
        ):
            note("the context is full: the reply ends here")
        elif not choice["message"]["content"]:
            note("the model said nothing")
        if self._stats:
            note(_stats(response))

    def _send(self, text: str | None, on_progress: Any) -> TurnStream:
        session = self.session
        if text is None:
            reply = session.regenerate(stream=True, on_progress=on_progress)
        else:
            content = self.attached.content(text)
            reply = session.send(content, stream=True, on_progress=on_progress)
            self.attached.clear()
        turns = sum(message["role"] == "user" for message in session.dropped)
        if turns:
            what = "the oldest turn was" if turns == 1 else f"the {turns} oldest turns were"
            note(f"the context is full: {what} left out of the conversation")
        return reply

    def _print(self, reply: TurnStream, progress: Any, interrupts: Interrupts | None) -> None:
        last, thinking = "", False
        try:
            for delta in reply.deltas():
                thought, text = delta.get("reasoning_content"), delta.get("content")
                if thought or text:
                    progress.clear()
                if self._colours and bool(thought) != thinking and (thought or text):
                    thinking = bool(thought)
                    self._write(_DIM if thinking else f"{_PLAIN}\n\n")
                if thought and self._colours:
                    self._write(thought)
                    last = thought
                if text:
                    self._write(text)
                    last = text
                if interrupts is not None and interrupts.seen:
                    reply.stop()
        finally:
            self._write(_PLAIN if thinking else "")
            if last and not last.endswith("\n"):
                self._write("\n")

    @staticmethod
    def _write(text: str) -> None:
        if text:
            sys.stdout.write(text)
            sys.stdout.flush()


class Stopped(Exception):
    """Raised for Ctrl-C while the prompt is evaluated."""


def _stats(response: dict[str, Any]) -> str:
    timings = response.get("timings")
    if not timings:
        return "no statistics: the reply was stopped"
    return (
        f"prompt: {timings['cache_n']} tokens reused, {timings['prompt_n']} evaluated at "
        f"{timings['prompt_per_second']:.1f}/s; reply: {timings['predicted_n']} tokens at "
        f"{timings['predicted_per_second']:.1f}/s"
    )
