"""``Settings``: everything that can be set about the server, each of it declared once.

A setting is a field of one of the groups below: its name, type, default, range and meaning. Its
flag (``--ping-interval``), its environment variable (``LLAMA_PY_PING_INTERVAL``), its key in a TOML
file (``ping_interval``), the checks and the tables in the docs come from that. Where the values
come from is the business of ``configuration``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal
from typing import get_type_hints as hints_of

from llama_py.dialects.limits import TEMPLATE_KWARGS
from llama_py.errors import ParameterError, UnknownParameterError
from llama_py.options import Option, Table
from llama_py.options.checks import read_text
from llama_py.options.marks import Doc, Flag, Range, Reads
from llama_py.server.access.keys import ApiKey, check_keys
from llama_py.server.config.model_options import check_model_options, no_such, option_files
from llama_py.server.config.setting_readers import (
    is_loopback,
    read_addresses,
    read_directory,
    read_file,
    read_hosts,
    read_list,
    read_model_id,
    read_origins,
    read_proxies,
    read_root_path,
    read_status,
    socket_path,
)

__all__ = [
    "GROUPS",
    "SETTINGS",
    "ModelSettings",
    "Setting",
    "Settings",
    "SettingsTable",
]

_LARGEST = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class Listening:
    """Where the server listens."""

    host: Annotated[
        str,
        Reads(read_addresses),
        Flag("--host", metavar="ADDRESS,..."),
        Doc(
            "The address to listen at, or `unix:` and the path of a socket; or several of them, in "
            "a list or with commas. If one can be reached from other machines, there has to be an "
            "API key."
        ),
    ] = "127.0.0.1"
    port: Annotated[int, Range(0, 65535), Doc("The port; 0 takes a free one, and says which.")] = (
        8080
    )
    ollama_port: Annotated[
        int | None,
        Range(0, 65535),
        Flag("--ollama-port", metavar="PORT"),
        Doc("A second port, beside the first: 11434 is where Ollama's clients look."),
    ] = None
    root_path: Annotated[
        str,
        Reads(read_root_path),
        Flag("--root-path", metavar="PATH"),
        Doc("The path at which a reverse proxy serves this server, if it strips that path."),
    ] = ""
    tls_cert: Annotated[
        Path | None,
        Reads(read_file),
        Flag("--tls-cert", metavar="FILE"),
        Doc("A certificate chain in PEM form: HTTPS instead of HTTP."),
    ] = None
    tls_key: Annotated[
        Path | None,
        Reads(read_file),
        Flag("--tls-key", metavar="FILE"),
        Doc("The certificate's private key, if it is in a file of its own."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Access:
    """Who may call, and what they learn of each other."""

    api_key_file: Annotated[
        Path | None,
        Reads(read_file),
        Flag("--api-key-file", metavar="FILE"),
        Doc("A file with an API key in each line: the key, or a name, the key and its limits."),
    ] = None
    share_prefixes: Annotated[
        bool,
        Doc(
            "The keys belong together: what one evaluated is reused for the others, and sessions "
            "are common. Otherwise no key profits from what another one evaluated, nor learns of "
            "it from the time that a reply takes."
        ),
    ] = False
    cors_origins: Annotated[
        tuple[str, ...],
        Reads(read_origins),
        Flag("--cors-origins", metavar="ORIGIN,..."),
        Doc(
            "Origins of web pages that may call (`https://app.example.org`), beside those that "
            "this server serves itself; `localhost` is all pages of this machine, `*` all pages."
        ),
    ] = ()
    allowed_hosts: Annotated[
        tuple[str, ...],
        Reads(read_hosts),
        Flag("--allowed-hosts", metavar="NAME,..."),
        Doc(
            "Names by which clients may address this server. On a loopback address `localhost` "
            "and the addresses of this machine always are among them; elsewhere, none given means "
            "any name. `*` is all of them."
        ),
    ] = ()
    trusted_proxies: Annotated[
        tuple[str, ...],
        Reads(read_proxies),
        Flag("--trusted-proxies", metavar="ADDRESS,..."),
        Doc(
            "Addresses or networks (`10.0.0.0/8`) of proxies whose `X-Forwarded-For` is believed, "
            "and `unix` for those that come over a socket of that kind. The log then names the "
            "client behind them; without any it names the proxy."
        ),
    ] = ()
    expose_prompts: Annotated[
        bool, Doc("`/slots` and the like show prompts, and `/props` the path of the model.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits on what one request may ask for."""

    max_body_bytes: Annotated[
        int, Range(1024, _LARGEST), Doc("Bytes of a request's body; pictures have 4/3 of theirs.")
    ] = 48 << 20
    max_header_bytes: Annotated[
        int, Range(1024, _LARGEST), Doc("Bytes of a request's line and headers.")
    ] = 32 << 10
    max_headers: Annotated[int, Range(8, 1000), Doc("Headers of a request.")] = 100
    max_json_depth: Annotated[int, Range(8, 900), Doc("Nesting of a request's JSON.")] = 200
    max_messages: Annotated[int, Range(1, _LARGEST), Doc("Messages of a conversation.")] = 10_000
    max_prompts: Annotated[int, Range(1, _LARGEST), Doc("Prompts of one call.")] = 64
    max_inputs: Annotated[
        int, Range(1, _LARGEST), Doc("Texts to embed, or documents to rank, of one call.")
    ] = 2048
    max_choices: Annotated[int, Range(1, 128), Doc("Replies to one prompt: `n` and `best_of`.")] = 8
    max_top_logprobs: Annotated[
        int, Range(0, 1000), Doc("Alternatives to each token: `logprobs` and `top_logprobs`.")
    ] = 20
    max_stops: Annotated[int, Range(1, 256), Doc("Stop strings.")] = 16
    max_tools: Annotated[int, Range(0, 10_000), Doc("Tools of one call.")] = 512
    max_stored_responses: Annotated[
        int, Range(0, _LARGEST), Doc("Replies of `/v1/responses` that can be referred to later.")
    ] = 1024
    max_stored_bytes: Annotated[
        int, Range(0), Doc("Bytes of memory that these may take, with their conversations.")
    ] = 128 << 20
    template_kwargs: Annotated[
        tuple[str, ...],
        Reads(read_list),
        Flag("--template-kwargs", metavar="NAME,..."),
        Doc("Variables of the template that `chat_template_kwargs` may set."),
    ] = tuple(sorted(TEMPLATE_KWARGS))
    overflow_status: Annotated[
        int,
        Reads(read_status(413, 400), {"enum": [413, 400]}),
        Flag("--overflow-status", metavar="413|400"),
        Doc(
            "The status where a prompt is longer than the context. Calls of `/v1/messages` always "
            "get 400, as clients of it expect."
        ),
    ] = 413
    strict: Annotated[bool, Doc("Fields of a body that are not known are errors.")] = False


@dataclass(frozen=True, kw_only=True)
class Times:
    """How long things may take, in seconds."""

    ping_interval: Annotated[
        float, Range(0.1, 3600), Doc("Silence on a stream before the server says it is there.")
    ] = 10.0
    queue_timeout: Annotated[
        float | None,
        Range(0.0),
        Doc("Longest wait for a place; then 503. Without it, as long as it takes."),
    ] = None
    request_timeout: Annotated[
        float | None,
        Range(0.0),
        Doc("Longest time for a whole reply; then 504. Without it, no limit."),
    ] = None
    write_timeout: Annotated[
        float, Range(0.1), Doc("How long a client may read nothing of a reply before it is ended.")
    ] = 60.0
    header_timeout: Annotated[
        float, Range(0.1), Doc("How long a client may take to send the headers of a request.")
    ] = 30.0
    body_timeout: Annotated[
        float, Range(0.1), Doc("How long a client may pause while it sends a body.")
    ] = 60.0
    keep_alive_seconds: Annotated[
        int, Range(1, 3600), Doc("How long an idle connection is kept.")
    ] = 75
    stored_seconds: Annotated[
        float, Range(0.0), Doc("How long a reply of `/v1/responses` can be referred to.")
    ] = 24 * 3600.0
    drain_seconds: Annotated[
        float, Range(0.0), Doc("How long a server that was told to stop lets live replies go on.")
    ] = 30.0


@dataclass(frozen=True, kw_only=True)
class Loading:
    """Which models are in memory when there are several."""

    max_loaded: Annotated[
        int, Range(1, 1000), Doc("Models in memory at a time; the one longest unused has to go.")
    ] = 1
    model_idle_seconds: Annotated[
        float | None, Range(0.0), Doc("A model that was not used for so long is unloaded.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """Values for requests that do not say."""

    temperature: Annotated[
        float | None,
        Flag("--temp", metavar="T"),
        Doc("How far the choice of a token departs from the most likely one; 0 always takes that."),
    ] = None
    top_k: Annotated[
        int | None,
        Range(None, _LARGEST),
        Flag("--top-k", metavar="K"),
        Doc("Only the K most likely tokens; 0 is all of them."),
    ] = None
    top_p: Annotated[
        float | None,
        Range(0.0, 1.0),
        Flag("--top-p", metavar="P"),
        Doc("Only the most likely tokens that make up this probability; 1 is all of them."),
    ] = None
    min_p: Annotated[
        float | None,
        Range(0.0, 1.0),
        Flag("--min-p", metavar="P"),
        Doc("Only tokens at least P times as likely as the most likely one; 0 is all of them."),
    ] = None
    repeat_penalty: Annotated[
        float | None,
        Range(1e-6),
        Flag("--repeat-penalty", metavar="X"),
        Doc("Divides the logits of tokens that occurred; 1 means no penalty."),
    ] = None
    presence_penalty: Annotated[
        float | None,
        Range(-2.0, 2.0),
        Flag("--presence-penalty", metavar="X"),
        Doc("Taken from a logit once if its token occurred."),
    ] = None
    frequency_penalty: Annotated[
        float | None,
        Range(-2.0, 2.0),
        Flag("--frequency-penalty", metavar="X"),
        Doc("Taken from a logit for each time that its token occurred."),
    ] = None
    seed: Annotated[
        int | None,
        Range(-(2**31), 2**64 - 1),
        Flag("--seed", metavar="N"),
        Doc("Of the random numbers; -1 chooses one for each call."),
    ] = None
    max_tokens: Annotated[
        int | None,
        Range(1, _LARGEST),
        Flag("-n", "--n-predict", "--max-tokens", metavar="N"),
        Doc("Most tokens of a reply. Without it, what each API says, or as many as there is room."),
    ] = None
    reasoning: Annotated[
        Literal["on", "off", "auto"],
        Flag("--reasoning", metavar="on|off|auto"),
        Doc(
            "Whether models that can reason do so before they answer; `auto` is the template's "
            "default. A request may say otherwise (`enable_thinking`, `reasoning_effort`)."
        ),
    ] = "auto"


@dataclass(frozen=True, kw_only=True)
class Keeping:
    """Data that is kept on disk, and under names."""

    session_dir: Annotated[
        Path | None,
        Reads(read_directory),
        Flag("--session-dir", metavar="DIR"),
        Doc("Conversations are kept here, and are there after a restart."),
    ] = None
    slot_dir: Annotated[
        Path | None,
        Reads(read_directory),
        Flag("--slot-dir", metavar="DIR"),
        Doc("Where `/slots/{id}?action=save` writes; without it, that is off."),
    ] = None
    session_bytes: Annotated[
        int,
        Range(1 << 20),
        Flag("--session-bytes", metavar="N"),
        Doc("Bytes of the conversations in `session_dir`; those longest unused go."),
    ] = 8 << 30
    slot_bytes: Annotated[
        int,
        Range(1 << 20),
        Flag("--slot-bytes", metavar="N"),
        Doc("Bytes of the saved slots of one key."),
    ] = 8 << 30
    prefix_cache_slots: Annotated[
        int,
        Range(0),
        Flag("--prefix-cache-slots", metavar="N"),
        Doc("Snapshots of sessions that each key may keep in memory, at most 8; 0 is none."),
    ] = 4
    snapshot_bytes: Annotated[
        int,
        Range(1 << 20),
        Flag("--snapshot-bytes", metavar="N"),
        Doc(
            "Bytes of memory that the snapshots of one key may take; those that are prepared, and "
            "not confirmed, may take as much again."
        ),
    ] = 2 << 30


@dataclass(frozen=True, kw_only=True)
class Watching:
    """Logs, metrics, and what a balancer is told."""

    metrics: Annotated[bool, Doc("`/metrics` answers, in the form of Prometheus.")] = True
    ready_waiting: Annotated[
        int | None,
        Range(0, _LARGEST),
        Doc(
            "`/readyz` is 503 while more requests than so many wait for a place, so that a "
            "balancer sends new ones elsewhere; those that come are answered all the same. Without "
            "it, load does not count."
        ),
    ] = None
    ui: Annotated[bool, Doc("The chat page is at `/`; without it, `/` and `/page/` are 404.")] = (
        True
    )
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Flag("--log-level", metavar="debug|info|warning|error"),
        Doc("The least that is logged; at `info` there is a line for each request."),
    ] = "info"


#: The groups of settings, in the order in which they are explained.
GROUPS = (Listening, Access, Limits, Times, Loading, Defaults, Keeping, Watching)


@dataclass(frozen=True)
class ModelSettings:
    """A model that the server offers.

    Attributes:
        id: its name for clients.
        path: its GGUF file.
        aliases: further names.
        options: further arguments of ``Llama``.

    Raises:
        ParameterError: one of them is not allowed.
    """

    id: str
    path: str
    aliases: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        read_model_id("id", self.id)
        read_text("path", self.path)
        for alias in self.aliases:
            read_model_id("aliases", alias)
        check_model_options(self.options)
        object.__setattr__(self, "options", MappingProxyType(dict(self.options)))

    @property
    def files(self) -> tuple[tuple[str, str], ...]:
        """The files that it is loaded from, its own one first: the setting's name, and the path."""
        return ("path", self.path), *option_files(self.options)


@dataclass(frozen=True, kw_only=True)
class Settings(Watching, Keeping, Defaults, Loading, Times, Limits, Access, Listening):
    """How the server behaves.

    Attributes:
        models: what it offers; none is the bundled model.
        api_keys: who may call; none is everybody.

    Raises:
        ParameterError: a value is not allowed, or contradicts another one.
    """

    models: tuple[ModelSettings, ...] = ()
    api_keys: tuple[ApiKey, ...] = ()

    def __post_init__(self) -> None:
        for option in SETTINGS:
            value = getattr(self, option.name)
            if value is not None or not option.optional:
                object.__setattr__(self, option.name, option.read(value))
        check_keys(self.api_keys)
        seen: set[str] = set()
        for name in (name for model in self.models for name in (model.id, *model.aliases)):
            if name in seen:
                raise ParameterError(f"two models have the name {name!r}; give one another id")
            seen.add(name)
        if self.tls_key is not None and self.tls_cert is None:
            raise ParameterError("tls_key is of no use without tls_cert; give the certificate")

    @property
    def addresses(self) -> tuple[str, ...]:
        """Each address that ``host`` names, or ``unix:`` and a path."""
        return tuple(self.host.split(","))

    @property
    def network_hosts(self) -> tuple[str, ...]:
        """The ``addresses`` that are not Unix sockets."""
        return tuple(each for each in self.addresses if socket_path(each) is None)

    @property
    def open_hosts(self) -> tuple[str, ...]:
        """The ``addresses`` that can be reached from other machines."""
        return tuple(each for each in self.network_hosts if not is_loopback(each))

    def refuse_open_door(self) -> None:
        """Raise ``ParameterError`` if anybody in the network could use the server."""
        if self.open_hosts and not self.api_keys:
            raise ParameterError(
                f"host={self.open_hosts[0]} can be reached from other machines, and there is no "
                "API key: give one (--api-key, LLAMA_PY_API_KEY, or --api-key-file), or listen at "
                "127.0.0.1"
            )


# ---- the table ---------------------------------------------------------------------------------


class Setting(Option):
    """One setting, whose default is that of the field."""

    def __init__(self, declared: Field[Any], hint: Any) -> None:
        super().__init__(declared.name, hint)
        self._default = declared.default

    def default(self, function: str | None = None) -> Any:
        """Its value if it is not given."""
        return self._default

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"LLAMA_PY_{self.name.upper()}"

    @property
    def flag(self) -> Flag:
        """The flag on the command line."""
        own = self.mark(Flag)
        if own is not None:
            return own
        name = "--" + self.name.replace("_", "-")
        number = "SECONDS" if self.name.endswith(("seconds", "timeout", "interval")) else "N"
        return Flag(name, metavar=None if bool in self.kinds else number)


class SettingsTable(Table[Settings]):
    """The settings that are single values, by name; ``models`` and ``api_keys`` are not."""

    @cached_property
    def options(self) -> Mapping[str, Setting]:
        """The settings, in the order of ``GROUPS``."""
        hints = hints_of(Settings, include_extras=True)
        declared = [each for group in GROUPS for each in fields(group)]
        return {each.name: Setting(each, hints[each.name]) for each in declared}

    def unknown(self, name: str) -> UnknownParameterError:
        """The error for a name that is not known."""
        return no_such("setting", name, (*self.options, "model", "api_key"))


SETTINGS = SettingsTable("serve", Settings)
