"""``docs/server-settings.md``, from the declarations in ``llama_py.server.config.settings``.

    python -m tools.server_settings

``page()`` is the whole text; a test compares it with the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llama_py.options.describe import allowed
from llama_py.options.marks import Reads
from llama_py.server.config.model_options import MODEL_FLAGS, MODEL_OPTIONS
from llama_py.server.config.settings import GROUPS, SETTINGS, Setting

PAGE = Path(__file__).parent.parent / "docs" / "server-settings.md"

_HEAD = """\
# Settings of the server

Each setting can come from a TOML file, from the environment, and from the command line. The command
line counts most, then the environment:

```console
$ llama-py serve --config server.toml --port 9000       # port = 9000 in the file
$ LLAMA_PY_PORT=9000 llama-py serve                     # LLAMA_PY_ and the name, in capitals
$ llama-py serve --config server.toml --check           # is it right? Nothing is loaded
$ llama-py serve --config server.toml --print-config    # all of them, and where each comes from
```

`LLAMA_PY_CONFIG` names the file as well. An unknown name in the file is an error that suggests the
nearest one, and so is a variable that looks like a misspelled one. Lists are written with commas on
the command line and in the environment. Reading TOML needs Python 3.11, or the package `tomli`.

```toml
host = "0.0.0.0"
session_dir = "sessions"          # relative paths begin at the file

[[model]]                         # the first one is used where a request names none
path = "models/qwen3-8b-q4_k_m.gguf"
aliases = ["gpt-4o", "claude-*"]
n_ctx = 65536                     # every further key is an argument of Llama

[[model]]
id = "small"
path = "models/qwen3-0.6b-q8_0.gguf"
n_seq_max = 4

[[api_key]]
name = "alice"                    # in the log; sessions belong to this name
key = "…"
requests_per_minute = 120
max_concurrent = 8

[[api_key]]
name = "ops"
key = "…"
scopes = ["chat", "admin"]
```

## API keys

With a key, every request but those of health probes and of the chat page's files needs one, as
`Authorization: Bearer KEY` or `x-api-key: KEY`. At an address that other machines can reach, the
server does not start without a key.

Keys come from `[[api_key]]` tables, from `api_key_file`, and from `LLAMA_PY_API_KEY` (several with
commas) or `--api-key`; all of them count. The scope `chat` allows to use the models, and `admin` to
see `/metrics` and `/slots`, and to load and unload models. A key has the scope `chat` if nothing is
said; one from `LLAMA_PY_API_KEY` or `--api-key` has both. A key file has a key in each line, as
llama-server's, or more:

```text
# name  key     limits
alice   a1b2c3  requests_per_minute=120 max_concurrent=8
ops     d4e5f6  scopes=chat,admin
```

One key reuses nothing that another one evaluated, unless `share_prefixes` is set.

"""

_MODELS = """\
## Models

Options with a flag hold for every model; those and all others can stand in a `[[model]]` table
([what they mean](options.md#loading-the-model)). `LLAMA_PY_MODEL` is the path of a model, like the
argument of `llama-py serve`: it replaces those in the file. Paths in a table begin where the
file is: `path`, `lora_path`, the file of `speculative = "draft=FILE"`, and that of `chat_template`,
which may also be the template itself, or the name of one of llama.cpp's (`command-r`).

| in the file | flag | variable |
| --- | --- | --- |
"""


def page() -> str:
    """The text of the page."""
    return "\n".join([_HEAD.rstrip() + "\n", *map(_group, GROUPS), _models()])


def _group(group: type[Any]) -> str:
    rows = [_row(SETTINGS.options[name]) for name in group.__annotations__]
    head = ["| setting | allowed | default | meaning |", "| --- | --- | --- | --- |"]
    return "\n".join([f"## {group.__name__}\n", f"{group.__doc__}\n", *head, *rows, ""])


def _row(setting: Setting) -> str:
    metavar = setting.flag.metavar or ""
    kind = metavar.replace("|", " or ") if setting.mark(Reads) else allowed(setting)
    default = setting.default()
    shown = ", ".join(default) if isinstance(default, tuple) else default
    cells = (
        f"`{setting.name}`",
        kind,
        "" if shown in (None, "") else f"`{shown}`",
        setting.doc,
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _models() -> str:
    rows = []
    for name, flag in MODEL_FLAGS.items():
        flags = ", ".join(f"`{each}`" for each in flag.flags)
        rows.append(f"| `{name}` | {flags} | `LLAMA_PY_{name.upper()}` |")
    others = ", ".join(f"`{name}`" for name in MODEL_OPTIONS if name not in MODEL_FLAGS)
    return _MODELS + "\n".join(rows) + f"\n\nFurther ones: {others}.\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
