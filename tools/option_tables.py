"""``docs/options.md``, from the declarations in ``llama_py.options``.

    python -m tools.option_tables

``page()`` is the whole text; a test compares it with the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llama_py.options import CHAT, COMPLETION, EMBEDDER, LOAD, SAMPLE, Table
from llama_py.options.calls import PromptOptions, ReplyOptions, RequestOptions, TurnOptions
from llama_py.options.describe import markdown_table
from llama_py.options.loading import ContextOptions, MediaOptions, ModelOptions
from llama_py.options.sampling import CriteriaOptions, SamplingOptions

PAGE = Path(__file__).parent.parent / "docs" / "options.md"

_HEAD = """\
# Options

Every option of the library, with its allowed values and its default. Wrong values, wrong types and
unknown names are errors before anything else happens: `Llama(path, n_ctx=-1)` fails before the file
is opened, and `max_token=5` gets the answer "did you mean 'max_tokens'?". Type checkers and editors
know the options too, because the signatures unpack the classes of `llama_py.options`.

Instead of names such as `"q8_0"`, llama.cpp's numbers are accepted as well. In calls, `None` means
"not given" unless the table says otherwise.

This page is generated: `python -m tools.option_tables`.
"""

_DEFAULTS = """\
Options of `create_completion`, `create_chat_completion`, the turns of a session, `sample` and
`generate`. The steps and their order are llama.cpp's. Defaults in a model's file
(`general.sampling.*` in its GGUF) take precedence over these, and arguments of the call over both.
"""

_REPLY = "Options of `create_completion`, `create_chat_completion` and the turns of a session.\n"
_OF_EMBEDDER = """\
It has the options of the model and of pictures and sounds as well (the first and the third
table). See [embeddings](embeddings.md).
"""
_OF_GENERATE = """\
These two have the options that say how a token is chosen, and other names from llama-cpp-python.
`generate` has `grammar` and `stopping_criteria` as well.
"""


def page() -> str:
    """The text of the page."""
    sampling = _names(SamplingOptions)
    reply = [*_names(CriteriaOptions), *_own(ReplyOptions, SamplingOptions, CriteriaOptions)]
    of_completions = _others(COMPLETION, ReplyOptions, RequestOptions)
    of_chats = _own(TurnOptions, ReplyOptions, PromptOptions)
    of_embedder = _others(EMBEDDER, ModelOptions, MediaOptions)
    rest = _others(LOAD, ModelOptions, ContextOptions, MediaOptions)
    texts = [
        _section("Loading: the model", "", LOAD, _names(ModelOptions)),
        _section("Loading: the context", "", LOAD, _names(ContextOptions)),
        _section("Loading: pictures and sounds", "", LOAD, _names(MediaOptions)),
        _section("Loading: everything else", "", LOAD, rest),
        _section("Temperature and sampling", _DEFAULTS, COMPLETION, sampling),
        _section("When a reply ends, and what is reported", _REPLY, CHAT, reply),
        _section("Completions and chats", "", CHAT, _names(RequestOptions)),
        _section("Completions only", "", COMPLETION, of_completions),
        _section("Chats and sessions: the prompt", "", CHAT, _names(PromptOptions)),
        _section("Chats and sessions: the reply", "", CHAT, of_chats),
        _section("`Embedder`", _OF_EMBEDDER, EMBEDDER, of_embedder),
        _section("`sample` and `generate`", _OF_GENERATE, SAMPLE, _others(SAMPLE, SamplingOptions)),
    ]
    return "\n".join([_HEAD, *texts])


def _section(title: str, text: str, table: Table[Any], names: list[str]) -> str:
    parts = [f"## {title}\n", *([text] if text else []), markdown_table(table, names) + "\n"]
    return "\n".join(parts)


def _names(declaration: Any) -> list[str]:
    return [*declaration.__annotations__]


def _own(declaration: Any, *bases: Any) -> list[str]:
    known = {name for base in bases for name in base.__annotations__}
    return [name for name in declaration.__annotations__ if name not in known]


def _others(table: Table[Any], *bases: Any) -> list[str]:
    return _own(table.declaration, *bases)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
