"""Where settings come from: a TOML file, then the environment, then flags. The last one counts.

``read_configuration`` puts them together and remembers the source of each, so that an error and
``--print-config`` can name it.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from llama_py.chat.formats.builtin import is_template
from llama_py.errors import MissingPackageError, ParameterError, UnknownParameterError, shown
from llama_py.models.references import looks_like_path
from llama_py.models.resolve import Located
from llama_py.options import Option
from llama_py.regular_files import read_short_text
from llama_py.server.access.keys import HIDDEN, ApiKey, key_from_table, read_key_file, single_key
from llama_py.server.config.model_options import MODEL_FLAGS, MODEL_OPTIONS
from llama_py.server.config.setting_readers import read_list, socket_path
from llama_py.server.config.settings import (
    GROUPS,
    SETTINGS,
    ModelSettings,
    Settings,
)

__all__ = [
    "Configuration",
    "Given",
    "default_model_id",
    "read_configuration",
    "to_toml",
    "with_files",
]

_PREFIX = "LLAMA_PY_"
#: Options whose value in the environment, and in a file, may be the name of a file with the text.
_FILES = frozenset({"chat_template"})
#: Options of models that a file may have once for all of them.
_FOR_ALL = frozenset({"isolate"})
#: What stands before the path of a draft model.
_DRAFT = "draft="
#: What to say of the address of a service in the environment.
_KUBERNETES = (
    ". Kubernetes sets such a variable for a service that is called llama-py: set "
    "enableServiceLinks: false in the pod, or call the service something else"
)


@dataclass(frozen=True)
class Given:
    """The settings of the command line.

    Attributes:
        config: the TOML file.
        model: the path of a model, in place of those in the file.
        api_keys: keys, in place of those in the environment.
        settings: single values by name, checked.
        model_options: arguments of ``Llama`` by name, checked; for every model.
        table: what a file would have, from another file that has more than that, and its path; in
            place of ``config``.
    """

    config: Path | None = None
    model: str | None = None
    api_keys: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    model_options: Mapping[str, Any] = field(default_factory=dict)
    table: tuple[Path, Mapping[str, Any]] | None = None


@dataclass(frozen=True)
class Configuration:
    """The settings, and where they come from.

    Attributes:
        sources: where each that is not a default came from, by name.
        file_keys: names of the keys that are in ``api_key_file``.
    """

    settings: Settings
    sources: Mapping[str, str]
    file_keys: frozenset[str] = frozenset()


def read_configuration(
    given: Given, environ: Mapping[str, str], bundled: Callable[[], str]
) -> Configuration:
    """Put the settings together.

    Args:
        given: the command line.
        environ: the environment.
        bundled: the path of the model to offer if none is named.

    Raises:
        ParameterError: a value is not allowed; the message says where it came from.
        OSError: a file cannot be read.
        MissingPackageError: there is a file, and nothing that reads TOML.
    """
    layers = _Layers()
    path = given.config
    if path is None and environ.get("LLAMA_PY_CONFIG"):
        path = Path(environ["LLAMA_PY_CONFIG"])
    if given.table is not None:
        layers.add_table(*given.table)
    elif path is not None:
        layers.add_table(path.expanduser(), _parse_toml(path.expanduser()))
    layers.add_environment(environ)
    layers.add_flags(given)
    return layers.result(bundled)


def with_files(configuration: Configuration, locate: Callable[[str], Located]) -> Configuration:
    """The same with the files of models that are named (``owner/name:QUANT``, a short name).

    Raises:
        ModelNotFoundError, DownloadError, ParameterError: see ``llama_py.models.resolve``.
    """
    settings = configuration.settings
    models = tuple(_with_file(model, locate) for model in settings.models)
    return replace(configuration, settings=replace(settings, models=models))


def _with_file(model: ModelSettings, locate: Callable[[str], Located]) -> ModelSettings:
    if Path(model.path).exists():
        return model
    found, options = locate(model.path), dict(model.options)
    if found.projector is not None and options.get("mmproj", "auto") == "auto":
        options["mmproj"] = found.projector
    unnamed = model.id == default_model_id(model.path)
    name = found.name if unnamed else model.id
    return replace(model, id=name, path=found.path, options=options)


class _Layers:
    """Values by name, those of later layers in place of those of earlier ones."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.sources: dict[str, str] = {}
        self.models: list[ModelSettings] = []
        self.model_options: dict[str, Any] = {}
        self.for_all: dict[str, Any] = {}
        self.tables: list[ApiKey] = []
        self.singles: list[ApiKey] = []

    def set(self, name: str, value: Any, source: str) -> None:
        self.values[name], self.sources[name] = value, source

    # -- the file -------------------------------------------------------------------------------

    def add_table(self, path: Path, given: Mapping[str, Any]) -> None:
        table, here = dict(given), path.parent
        models, keys = table.pop("model", []), table.pop("api_key", [])
        for name, value in table.items():
            with _naming(str(path)):
                if name in _FOR_ALL:
                    self.for_all[name] = MODEL_OPTIONS[name].read(value)
                    continue
                option = SETTINGS.options.get(name)
                if option is None and name in MODEL_OPTIONS:
                    message = f"{name} is an option of a model: put it in [[model]]"
                    raise UnknownParameterError(message)
                if option is None:
                    raise SETTINGS.unknown(name)
                chosen = option.read(value)
                # A relative path in a file is meant to begin where the file is.
                if name == "host":
                    places = ((each, socket_path(each)) for each in chosen.split(","))
                    chosen = ",".join(f"unix:{here / at}" if at else each for each, at in places)
                elif isinstance(chosen, Path):
                    chosen = here / chosen
                self.set(name, chosen, path.name)
        for name, entries in (("model", models), ("api_key", keys)):
            if not (isinstance(entries, list) and all(isinstance(each, dict) for each in entries)):
                raise ParameterError(f"{path}: write each {name} as a table [[{name}]]")
            if entries:
                self.sources[name] = path.name
        with _naming(str(path)):
            self.models = [_model_of(table, here) for table in models]
            self.tables = [key_from_table(table) for table in keys]

    # -- the environment ------------------------------------------------------------------------

    def add_environment(self, environ: Mapping[str, str]) -> None:
        for setting in SETTINGS.options.values():
            if text := environ.get(setting.variable):
                with _naming(setting.variable, _KUBERNETES if text.startswith("tcp://") else ""):
                    self.set(setting.name, setting.parse(text), setting.variable)
        for name in MODEL_FLAGS:
            variable = _PREFIX + name.upper()
            if text := environ.get(variable):
                with _naming(variable):
                    self.model_options[name] = _model_option(MODEL_OPTIONS[name], text)
        if path := environ.get("LLAMA_PY_MODEL"):
            self._replace_models(path, "LLAMA_PY_MODEL")
        if "LLAMA_PY_API_KEY" in environ:
            with _naming("LLAMA_PY_API_KEY"):
                self._replace_keys(environ["LLAMA_PY_API_KEY"].split(","), "LLAMA_PY_API_KEY")
        # A misspelled LLAMA_PY_API_KEY would leave the server open, and nobody would notice.
        known = {setting.variable for setting in SETTINGS.options.values()}
        known |= {_PREFIX + name.upper() for name in MODEL_FLAGS}
        known |= {_PREFIX + name for name in ("CONFIG", "MODEL", "API_KEY", "LIB", "HISTORY")}
        for name in environ:
            if name.startswith(_PREFIX) and name not in known:
                close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.87)
                if close:
                    raise UnknownParameterError(
                        f"there is no environment variable {name}; did you mean {close[0]}?"
                    )

    # -- flags ----------------------------------------------------------------------------------

    def add_flags(self, given: Given) -> None:
        for name, value in given.settings.items():
            self.set(name, value, SETTINGS.options[name].flag.flags[-1])
        self.model_options.update(given.model_options)
        if given.model is not None:
            self._replace_models(given.model, "the command line")
        if given.api_keys:
            with _naming("--api-key"):
                self._replace_keys(given.api_keys, "--api-key")

    def _replace_models(self, path: str, source: str) -> None:
        path = str(Path(path).expanduser())
        self.models = [ModelSettings(id=default_model_id(path), path=path)]
        self.sources["model"] = source

    def _replace_keys(self, keys: Iterable[str], source: str) -> None:
        given = [key.strip() for key in keys]
        if not all(given):
            raise ParameterError(
                "an API key is empty; give one, or leave it out so that no key is asked for"
            )
        self.singles = [single_key(key) for key in given]
        self.sources["api_key"] = source

    # -- all of it ------------------------------------------------------------------------------

    def result(self, bundled: Callable[[], str]) -> Configuration:
        if not self.models:
            path = bundled()
            self.models = [ModelSettings(id=default_model_id(path), path=path)]
        models = tuple(
            replace(model, options={**self.for_all, **model.options, **self.model_options})
            for model in self.models
        )
        file = self.values.get("api_key_file")
        listed = read_key_file(file) if file else []
        keys = (*self.tables, *listed, *self.singles)
        settings = Settings(models=models, api_keys=keys, **self.values)
        return Configuration(settings, self.sources, frozenset(key.name for key in listed))


@contextmanager
def _naming(source: str, hint: str = "") -> Iterator[None]:
    """Errors within it say where the value came from."""
    try:
        yield
    except ParameterError as error:
        raise type(error)(f"{source}: {error}{hint}") from None


def default_model_id(path: str) -> str:
    """The name of a model that was given none: that of its file."""
    stem = Path(path).stem
    return "".join(each if "!" <= each <= "~" else "-" for each in stem)[:200] or "model"


# ---- the file ----------------------------------------------------------------------------------


def _parse_toml(path: Path) -> dict[str, Any]:
    try:
        if sys.version_info >= (3, 11):
            import tomllib
        else:
            import tomli as tomllib
    except ModuleNotFoundError:
        raise MissingPackageError(
            f"reading {path} needs Python 3.11, or the package tomli: pip install tomli"
        ) from None
    try:
        # Editors of Windows write a mark at the beginning, which TOML does not know.
        table: dict[str, Any] = tomllib.loads(read_short_text(path, "utf-8-sig"))
        return table
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ParameterError(f"{path} is not TOML: {error}") from None


def _model_of(table: dict[str, Any], here: Path) -> ModelSettings:
    """The model of a table. Relative paths begin ``here``; what stands for a text is read."""
    own = {each.name for each in fields(ModelSettings)} - {"options"}
    values = {name: table[name] for name in table.keys() & own}
    options = {name: table[name] for name in table.keys() - own}
    if not isinstance(values.get("path"), str) or not values["path"]:
        raise ParameterError('a [[model]] has no path; write path = "model.gguf"')
    beside = here / Path(values["path"]).expanduser()
    if looks_like_path(values["path"]) or beside.exists():
        values["path"] = str(beside)
    values.setdefault("id", default_model_id(values["path"]))
    values["aliases"] = read_list("aliases", values.get("aliases", ()))
    if isinstance(lora := options.get("lora_path"), str):
        options["lora_path"] = str(here / Path(lora).expanduser())
    draft = options.get("speculative")
    if isinstance(draft, str) and draft.startswith(_DRAFT):
        path = Path(draft[len(_DRAFT) :].strip()).expanduser()
        options["speculative"] = f"{_DRAFT}{here / path}"
    for name in _FILES & options.keys():
        value = options[name]
        if isinstance(value, str) and not is_template(value):
            with _naming(name):
                options[name] = _text_of(str(here / Path(value).expanduser()))
    return ModelSettings(**values, options=options)


# ---- the environment ---------------------------------------------------------------------------


def _model_option(option: Option, text: str) -> Any:
    if option.name not in _FILES:
        return option.parse(text)
    return text if is_template(text) else _text_of(text)


def _text_of(text: str) -> str:
    """The content of a file."""
    try:
        return read_short_text(Path(text).expanduser())
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError(f"cannot read {text}: {error}") from None


# ---- and back ----------------------------------------------------------------------------------


def to_toml(configuration: Configuration) -> str:
    """The settings as a TOML file that gives the same ones, but for the keys, which it hides."""
    settings, sources = configuration.settings, configuration.sources
    blocks = []
    for group in GROUPS:
        lines = [f"# {group.__doc__}"]
        for name in group.__annotations__:
            value = getattr(settings, name)
            source = f"  # {sources[name]}" if name in sources else ""
            entry = f"# {name} is not set" if value is None else f"{name} = {_toml(value)}"
            lines.append(entry + source)
        blocks.append("\n".join(lines))
    for model in settings.models:
        own = {"id": model.id, "path": model.path, "aliases": model.aliases}
        blocks.append(_table("model", {**own, **model.options}))
    for key in settings.api_keys:
        limits = {name: getattr(key, name) for name in ("requests_per_minute", "max_concurrent")}
        own = {"name": key.name, "key": HIDDEN, "scopes": sorted(key.scopes)}
        table = _table("api_key", {**own, **limits})
        if key.name in configuration.file_keys:  # it is found there again
            table = "# in api_key_file:\n# " + table.replace("\n", "\n# ")
        blocks.append(table)
    return "\n\n".join(blocks) + "\n"


def _table(name: str, entries: Mapping[str, Any]) -> str:
    lines = [f"{key} = {_toml(value)}" for key, value in entries.items() if value is not None]
    return "\n".join([f"[[{name}]]", *lines])


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml(str(k))} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (str, Path)):
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    raise ParameterError(f"{shown(value)} cannot be written as TOML")
