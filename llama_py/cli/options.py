"""Options that several commands share, and what is made of them."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from llama_py.cli.elsewhere import with_aliases
from llama_py.errors import LlamaError, ParameterError
from llama_py.options import CHAT, COMPLETION, LOAD, Option, Table
from llama_py.options.describe import plain_default
from llama_py.options.marks import Flag
from llama_py.regular_files import read_short_text
from llama_py.version import LLAMA_CPP_COMMIT, __version__

if TYPE_CHECKING:
    from llama_py.api.llama import Llama
    from llama_py.models.resolve import Located

__all__ = [
    "Parser",
    "add_flag",
    "add_model_file",
    "add_model_options",
    "add_sampling_options",
    "argument_type",
    "help_of",
    "load_model",
    "located",
    "meaning_of",
    "model_path",
    "read_argument",
    "read_template",
    "sampling",
    "version_text",
]


#: Options whose value is the text of a file on the command line.
_FILES = frozenset({"grammar", "chat_template"})
#: Options that may be given several times.
_REPEATED = frozenset({"stop"})


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence.

    Attributes:
        elsewhere: what to say of options, or commands, that another program has, by their names.
        words: arguments without a flag may stand anywhere among the others, in ``words``.
    """

    elsewhere: Mapping[str, str] = MappingProxyType({})
    words = False
    _given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuses an unknown option itself, since only the parser of the command knows the others.

        argparse would have its value taken for the prompt, and speak of all that is left over.
        """
        self._given = [*args] if args is not None else sys.argv[1:]
        if self._subparsers is None:
            self._refuse_glued()
        parsed, rest = super().parse_known_args(args, namespace)
        unknown = next((each for each in rest if each.startswith("-") and each != "-"), None)
        if unknown is not None:
            self.error(self._unknown(unknown.partition("=")[0]))
        if self.words:
            parsed.words = [*parsed.words, *rest]
            rest = []
        return parsed, rest

    def _refuse_glued(self) -> None:
        """Refuses ``-np``, which argparse would take for ``-n p``, and ``-sy`` for ``-sys``."""
        known = self._option_string_actions
        for given in self._given:
            name = given.partition("=")[0]
            if given == "--":
                return
            if re.match(r"-[A-Za-z]\S", given) and name not in known:
                self.error(self._unknown(name))

    def _unknown(self, given: str) -> str:
        if given in self.elsewhere:
            return f"there is no option {given}: {self.elsewhere[given]}"
        known = [each for each in self._option_string_actions if each.startswith("--")]
        close = difflib.get_close_matches(given, known, n=1, cutoff=0.6)
        if given[:2] in self._option_string_actions and given[2:3].isdigit():
            close = [f"{given[:2]} {given[2:]}"]
        return f"there is no option {given}" + (f"; did you mean {close[0]}?" if close else "")

    def _no_command(self, given: str, known: Iterable[str]) -> str:
        if given in self.elsewhere:
            return f"there is no command {given}: {self.elsewhere[given]}"
        close = difflib.get_close_matches(given, [*known], n=1, cutoff=0.6)
        return f"there is no command {given}" + (f"; did you mean {close[0]}?" if close else "")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action.choices, Mapping) and value not in action.choices:  # commands
            raise argparse.ArgumentError(None, self._no_command(str(value), action.choices))
        super()._check_value(action, value)

    def error(self, message: str) -> NoReturn:
        # Of options that there are not, the first one is named: whatever else is wrong may follow
        # from it. What looks like its value is a second model to argparse, for example.
        known = self._option_string_actions
        for given in self._given if self._subparsers is None else ():
            name = given.partition("=")[0]
            if given == "--":
                break
            is_other = name.startswith("--") and not any(each.startswith(name) for each in known)
            if is_other or (name in self.elsewhere and name not in known):
                message = self._unknown(name)
                break
        if self._subparsers is not None and self._given and self._given[0] not in known:
            first = self._given[0]
            if first.startswith("-"):
                message = f'{first} stands before a command; write {self.prog} chat "Hello!"'
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def version_text() -> str:
    """The output of ``--version``."""
    return f"llama-py {__version__} (llama.cpp {LLAMA_CPP_COMMIT})"


# ---- the options -----------------------------------------------------------------------------


def add_model_file(parser: argparse.ArgumentParser) -> None:
    """Which file, for commands that do not load a model as others do."""
    parser.add_argument("file", nargs="?", metavar="MODEL.gguf", help="a GGUF file")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("-m", "--model", metavar="PATH", help="the same as MODEL.gguf")
    which.add_argument("--hf", metavar="REPO[:QUANT]", help="download it first")


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Which model, and how it is loaded."""
    group = parser.add_argument_group("model")
    which = group.add_mutually_exclusive_group()
    which.add_argument(
        "-m",
        "--model",
        metavar="MODEL",
        help="a GGUF file, OWNER/NAME:QUANT of the hub, or a name of llama-py list (default: "
        "LLAMA_PY_MODEL, or the bundled demonstration)",
    )
    which.add_argument(
        "--hf",
        metavar="REPO[:QUANT]",
        help="download from the Hugging Face hub, for example Qwen/Qwen3-0.6B-GGUF:Q8_0",
    )
    for option in _flagged(LOAD):
        add_flag(group, option, LOAD)


def add_sampling_options(parser: argparse.ArgumentParser, max_tokens: int | None) -> None:
    """How a reply is chosen, and when it ends.

    Args:
        max_tokens: most tokens to write if ``-n`` is not given, None for as many as fit.
    """
    group = parser.add_argument_group("sampling")
    for option in _flagged(COMPLETION):
        if option.name != "max_tokens":
            add_flag(group, option, COMPLETION if max_tokens else CHAT)
    limit = "until it ends" if max_tokens is None else str(max_tokens)
    option = COMPLETION["max_tokens"]
    add_flag(group, option, COMPLETION, f"most tokens to write (default: {limit})", max_tokens)


def add_flag(
    group: argparse._ActionsContainer,
    option: Option,
    table: Table[Any],
    help: str | None = None,
    default: Any = None,
) -> None:
    """The flag of an option, with its checks, and its meaning as the help."""
    flag = option.mark(Flag)
    if flag is None:
        raise ValueError(f"{option.name} has no flag")
    shown = help or flag.help or help_of(option, table)
    flags = with_aliases(*flag.flags)
    if flag.metavar is None:
        group.add_argument(*flags, dest=option.name, action="store_true", help=shown)
        return
    several = option.name in _REPEATED
    group.add_argument(
        *flags,
        dest=option.name,
        metavar=flag.metavar,
        type=str if several or option.name in _FILES else argument_type(option),
        action="append" if several else "store",
        default=default,
        help=shown + ("; may be repeated" if several else ""),
    )


def _flagged(table: Table[Any]) -> list[Option]:
    return [option for option in table if option.mark(Flag)]


def argument_type(option: Option) -> Callable[[str], Any]:
    """The ``type`` of an argument of argparse whose value is that of an option."""

    def read(text: str) -> Any:
        try:
            return option.parse(text)
        except LlamaError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def help_of(option: Option, table: Table[Any]) -> str:
    """Its meaning, in a sentence, and its default."""
    default = plain_default(option, table).replace("`", "")
    return meaning_of(option) + (f" (default: {default})" if default else "").replace("%", "%%")


def meaning_of(option: Option) -> str:
    """The first sentence of what is said about it, in plain text."""
    text = re.sub(r" \(\[.*?\)\)|`", "", option.doc).split(". ")[0].removesuffix(".")
    names = f": {', '.join(option.choices)}" if option.names else ""
    return f"{text[0].lower()}{text[1:]}{names}".replace("%", "%%")


# ---- what is made of them --------------------------------------------------------------------


def sampling(parsed: argparse.Namespace) -> dict[str, Any]:
    """The options of ``create_completion`` and ``create_chat_completion`` that were given."""
    return _given(parsed, COMPLETION)


def _given(parsed: argparse.Namespace, table: Table[Any]) -> dict[str, Any]:
    given = {option.name: getattr(parsed, option.name) for option in _flagged(table)}
    for name in _FILES & given.keys():
        read = read_template if name == "chat_template" else read_argument
        given[name] = read(given[name], f"--{name.replace('_', '-')}")
    return {name: value for name, value in given.items() if value is not None}


def read_argument(path: str | None, option: str) -> str | None:
    """The text of a file that an option names."""
    if path is None:
        return None
    try:
        return read_short_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError(f"{option}: cannot read {path}: {error}") from None


def read_template(given: str | None, option: str) -> str | None:
    """A chat template: its text, a name of llama.cpp's, or the text of a file."""
    from llama_py.chat.formats.builtin import is_template, nearest

    if given and is_template(given):
        return given
    try:
        return read_argument(given, option)
    except ParameterError as error:
        hint = f"nor is it the name of one of llama.cpp's templates: {nearest(str(given))}"
        raise ParameterError(f"{error}; {hint}") from None


def read_schema(given: str) -> Any:
    """A JSON schema, given as text or as the name of a file."""
    text = given if given.lstrip().startswith("{") else read_argument(given, "--json-schema")
    try:
        return json.loads(text or "")
    except (ValueError, RecursionError) as error:
        raise ParameterError(f"--json-schema is not JSON: {error}") from None


def model_path(model: str | None, hf: str | None) -> str:
    """The file of the model that was asked for; downloads it if it has to be.

    Without a name it is that of the environment variable ``LLAMA_PY_MODEL``, or the bundled one.
    """
    return located(model, hf).path


def located(model: str | None, hf: str | None = None) -> Located:
    """The same, with the projector that came with it."""
    from llama_py.models.resolve import Located, resolve

    name = f"hf:{hf}" if hf is not None else model or os.environ.get("LLAMA_PY_MODEL")
    if not name:
        from llama_py.demo import demo_model_path

        return Located(demo_model_path())
    from llama_py.cli.progress import ProgressLine

    with ProgressLine(name, enabled=sys.stderr.isatty()) as line:
        return resolve(name, line.bytes)


def load_model(parsed: argparse.Namespace) -> Llama:
    """Load the model, with a progress bar if it takes long and somebody is looking."""
    from llama_py.api.llama import Llama
    from llama_py.cli.progress import ProgressLine

    found = located(parsed.model, parsed.hf)
    options = _given(parsed, LOAD)
    if found.projector is not None:
        options.setdefault("mmproj", found.projector)
    if "n_threads" in options:
        options["n_threads_batch"] = options["n_threads"]
    progress = ProgressLine("loading the model", enabled=sys.stderr.isatty() and not parsed.verbose)
    with progress:
        return Llama(found.path, progress=progress.fraction, **options)
