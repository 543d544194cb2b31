"""Settings: where they come from, and what is said about those that are wrong."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from llama_py import demo_model_path
from llama_py.errors import MissingPackageError, ParameterError
from llama_py.options.marks import Range
from llama_py.server.access.keys import ApiKey
from llama_py.server.config.configuration import Configuration, Given, read_configuration, to_toml
from llama_py.server.config.settings import SETTINGS, ModelSettings, Setting, Settings
from tests.rules import holds_for_all

ALL = SETTINGS.options.values()
MODEL = ModelSettings(id="m", path="m.gguf")


def read(
    toml: str = "", environ: dict[str, str] | None = None, where: Path | None = None, **given: Any
) -> Configuration:
    """The configuration from a file with this text (in ``where``), variables and flags."""
    if where is not None:
        given["config"] = where / "server.toml"
        given["config"].write_text(toml, encoding="utf-8")
    return read_configuration(Given(**given), environ or {}, demo_model_path)


def made(name: str, value: Any) -> Settings:
    """Settings with one value."""
    return Settings(**{name: value})


# ---- declarations ------------------------------------------------------------------------------


def test_every_setting_is_declared_whole() -> None:
    holds_for_all(is_declared_whole, ALL, lambda setting: setting.name)


def is_declared_whole(setting: Setting) -> None:
    assert setting.doc.endswith((".", ").")), "what does it mean?"
    assert setting.flag.flags[-1].startswith("--")
    default = setting.default()
    if default is not None:
        assert setting.read(default) == default, "the default is not allowed"
    with pytest.raises(ParameterError, match=setting.name):
        setting.read(object())


def test_ranges_are_kept_and_named() -> None:
    holds_for_all(keeps_its_range, ALL, lambda setting: setting.name)


def keeps_its_range(setting: Setting) -> None:
    limits = setting.mark(Range)
    for edge, beyond in ((limits.low, -1), (limits.high, 1)) if limits else ():
        if edge is not None:
            assert getattr(made(setting.name, edge), setting.name) == edge
            with pytest.raises(ParameterError, match=rf"{setting.name}=.* out of range"):
                made(setting.name, edge + beyond)


def test_flags_and_variables_are_unlike_each_other() -> None:
    flags = [flag for setting in SETTINGS.options.values() for flag in setting.flag.flags]
    assert len({*flags}) == len(flags) >= len(SETTINGS.options)


# ---- where they come from ----------------------------------------------------------------------


def test_nothing_given_is_the_bundled_model_on_this_machine() -> None:
    settings = read().settings
    assert (settings.host, settings.port, settings.api_keys) == ("127.0.0.1", 8080, ())
    assert [model.path for model in settings.models] == [demo_model_path()]
    assert settings.models[0].id == "demo-chat-q8_0"
    assert not settings.open_hosts


def test_flags_count_more_than_the_environment_and_that_more_than_the_file(
    tmp_path: Path,
) -> None:
    toml = "port = 1001\nmax_tools = 7\nping_interval = 3\ncors_origins = ['https://a.example']\n"
    environ = {"LLAMA_PY_PORT": "1002", "LLAMA_PY_MAX_TOOLS": "8", "LLAMA_PY_METRICS": "off"}
    read_ = read(toml, environ, tmp_path, settings={"port": 1003})
    settings = read_.settings
    assert (settings.port, settings.max_tools, settings.ping_interval) == (1003, 8, 3.0)
    assert settings.cors_origins == ("https://a.example",)
    assert settings.metrics is False
    assert read_.sources == {
        "port": "--port",
        "max_tools": "LLAMA_PY_MAX_TOOLS",
        "ping_interval": "server.toml",
        "cors_origins": "server.toml",
        "metrics": "LLAMA_PY_METRICS",
    }


def test_the_environment_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text("port = 7")
    assert read(environ={"LLAMA_PY_CONFIG": str(tmp_path / "x.toml")}).settings.port == 7


def test_an_empty_variable_is_one_that_is_not_set() -> None:
    assert read(environ={"LLAMA_PY_PORT": "", "LLAMA_PY_MODEL": ""}).settings == read().settings


MODELS = """
[[model]]
path = "small.gguf"
n_ctx = 4096

[[model]]
id = "org/large"
aliases = ["large", "gpt-4o"]
path = "/models/large.gguf"
type_k = "q8_0"
n_threads = 3
"""


def test_models_of_a_file(tmp_path: Path) -> None:
    small, large = read(MODELS, where=tmp_path).settings.models
    assert (small.id, small.path) == ("small", str(tmp_path / "small.gguf"))
    assert (small.aliases, dict(small.options)) == ((), {"n_ctx": 4096})
    assert (large.id, large.aliases) == ("org/large", ("large", "gpt-4o"))
    assert dict(large.options) == {"type_k": "q8_0", "n_threads": 3}


def test_files_of_a_model_begin_where_the_settings_are(tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text("{{ messages }}", encoding="utf-8")
    toml = '[[model]]\npath = "m.gguf"\nchat_template = "chat.jinja"\nspeculative = "draft=d.gguf"'
    (model,) = read(toml, where=tmp_path).settings.models
    assert model.options["chat_template"] == "{{ messages }}"
    assert model.options["speculative"] == f"draft={tmp_path / 'd.gguf'}"


def test_a_template_in_a_file_is_its_text_or_a_file_that_exists(tmp_path: Path) -> None:
    toml = '[[model]]\npath = "m.gguf"\nchat_template = "{}"'
    (model,) = read(toml.replace("{}", "{{ messages }}"), where=tmp_path).settings.models
    assert model.options["chat_template"] == "{{ messages }}"
    (model,) = read(toml.replace("{}", "command-r"), where=tmp_path).settings.models
    assert model.options["chat_template"] == "command-r"
    named = read(environ={"LLAMA_PY_CHAT_TEMPLATE": "llama3"}).settings.models
    assert named[0].options["chat_template"] == "llama3"
    with pytest.raises(ParameterError, match=r"chat_template: cannot read .*missing\.jinja"):
        read(toml.replace("{}", "missing.jinja"), where=tmp_path)


def test_options_of_models_from_the_environment_and_flags_are_for_all_of_them(
    tmp_path: Path,
) -> None:
    environ = {"LLAMA_PY_N_CTX": "512", "LLAMA_PY_N_THREADS": "2"}
    models = read(MODELS, environ, tmp_path, model_options={"n_threads": 1}).settings.models
    assert [dict(model.options) for model in models] == [
        {"n_ctx": 512, "n_threads": 1},
        {"n_ctx": 512, "n_threads": 1, "type_k": "q8_0"},
    ]


def test_a_model_on_the_command_line_replaces_those_of_the_file(tmp_path: Path) -> None:
    environ = {"LLAMA_PY_MODEL": "from/the environment.gguf"}
    assert read(MODELS, environ, tmp_path).settings.models[0].id == "from-the-environment"[5:]
    settings = read(MODELS, environ, tmp_path, model="other.gguf").settings
    assert [(model.id, model.path) for model in settings.models] == [("other", "other.gguf")]


KEYS = """
[[api_key]]
name = "alice"
key = "alice-secret"
requests_per_minute = 60

[[api_key]]
name = "ops"
key = "ops-secret"
scopes = ["chat", "admin"]
max_concurrent = 2
"""


def test_keys_of_the_file_of_another_file_and_given_by_themselves(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(
        "# who may call\nbare-secret\n\nbob bob-secret scopes=admin max_concurrent=3\n"
    )
    toml = f"api_key_file = 'keys'\n{KEYS}"
    keys = read(toml, {"LLAMA_PY_API_KEY": "one, two"}, tmp_path).settings.api_keys
    assert [(key.key, sorted(key.scopes)) for key in keys] == [
        ("alice-secret", ["chat"]),
        ("ops-secret", ["admin", "chat"]),
        ("bare-secret", ["chat"]),
        ("bob-secret", ["admin"]),
        ("one", ["admin", "chat"]),
        ("two", ["admin", "chat"]),
    ]
    assert (keys[0].requests_per_minute, keys[1].max_concurrent, keys[3].max_concurrent) == (
        60,
        2,
        3,
    )
    flags = read(toml, {"LLAMA_PY_API_KEY": "one"}, tmp_path, api_keys=("three",))
    assert [key.key for key in flags.settings.api_keys[4:]] == ["three"]


def test_a_key_without_a_name_is_called_the_same_wherever_it_stands() -> None:
    first = read(environ={"LLAMA_PY_API_KEY": "a,b"}).settings.api_keys
    second = read(environ={"LLAMA_PY_API_KEY": "b,a"}).settings.api_keys
    assert {key.key: key.name for key in first} == {key.key: key.name for key in second}


def test_paths_of_sockets_begin_where_the_file_is(tmp_path: Path) -> None:
    settings = read("host = 'unix:run/llm.sock'", where=tmp_path).settings
    assert settings.addresses == (f"unix:{tmp_path / 'run' / 'llm.sock'}",)
    assert read("host = 'unix:/run/x.sock'", where=tmp_path).settings.host == "unix:/run/x.sock"


def test_an_address_may_have_brackets() -> None:
    assert read(environ={"LLAMA_PY_HOST": "[::1]"}).settings.host == "::1"


@pytest.mark.parametrize(
    "given", ['"127.0.0.1, [::1],run/x.sock"', '["127.0.0.1", "::1", "run/x.sock"]']
)
def test_several_addresses(given: str, tmp_path: Path) -> None:
    settings = read(f"host = {given}", where=tmp_path).settings
    assert settings.addresses == ("127.0.0.1", "::1", f"unix:{tmp_path / 'run/x.sock'}")
    again = tmp_path / "again"
    again.mkdir()
    printed = to_toml(Configuration(settings, {}))
    assert read(printed, where=again).settings.addresses == settings.addresses
    assert read(environ={"LLAMA_PY_HOST": "::1,::1,localhost"}).settings.host == "::1,localhost"


def test_a_file_may_begin_with_a_mark_of_its_encoding(tmp_path: Path) -> None:
    assert read("\ufeffport = 99", where=tmp_path).settings.port == 99


def test_isolate_is_for_all_models_of_a_file_or_for_one(tmp_path: Path) -> None:
    text = """
    isolate = true
    [[model]]
    path = "a.gguf"
    [[model]]
    path = "b.gguf"
    isolate = false
    """
    first, second = read(text, where=tmp_path).settings.models
    assert (first.options["isolate"], second.options["isolate"]) == (True, False)
    (bundled,) = read("isolate = true", where=tmp_path).settings.models
    assert bundled.options["isolate"] is True


# ---- what is wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("toml", "expected"),
    [
        ("n_ctx = 512", r"n_ctx is an option of a model: put it in \[\[model\]\]"),
        ("prot = 1", r"server\.toml: there is no setting 'prot'; did you mean 'port'\?"),
        ("port = 'x'", r"server\.toml: port must be an integer, not str"),
        ("port = 70000", r"server\.toml: port=70000 is out of range: allowed is 0 to 65535"),
        ("port = true", "port must be an integer"),
        ("max_headers = 2.5", "max_headers must be an integer"),
        ("port = \nx = 1", "is not TOML.*line 1"),
        ("overflow_status = 500", "overflow_status=500: expected 413 or 400"),
        ("log_level = 'loud'", "log_level='loud': expected one of debug, info"),
        ("cors_origins = ['https://a.example/']", "is not an origin; give scheme, host and port"),
        ("cors_origins = ['null']", "is not an origin"),
        ("allowed_hosts = ['http://a']", "is not a valid host name"),
        ("trusted_proxies = ['proxy']", "'proxy' is not an address; give addresses or networks"),
        ("isolate = 'yes'", "isolate must be"),
        ("host = []", "host names no address to listen at"),
        ("host = ['a,b']", "host: 'a,b' has a comma"),
        ("host = 7", "host must be a list of texts, not int"),
        ("root_path = 'llm'", "must begin with a slash"),
        ("tls_key = 'k'", "tls_key is of no use without tls_cert"),
        ("model = 'x.gguf'", r"write each model as a table \[\[model\]\]"),
        ("api_key = 'x'", r"write each api_key as a table \[\[api_key\]\]"),
        ("[[model]]\nid = 'a'", "has no path"),
        ("[[model]]\npath='a'\nn_ctxx = 1", "no option of a model 'n_ctxx'; did you mean 'n_ctx'"),
        ("[[model]]\npath='a'\nn_ctx = -1", "n_ctx=-1 is out of range"),
        ("[[model]]\npath='a'\nin_place = true", "no option of a model 'in_place'"),
        ("[[model]]\npath='a'\nid = 'a b'", "without spaces"),
        ("[[model]]\npath='a'\n[[model]]\npath='b/a.gguf'", "two models have the name 'a'"),
        ("[[api_key]]\nkey='k'", "name of an API key is empty"),
        ("[[api_key]]\nname='a'", "key of an API key is empty"),
        ("[[api_key]]\nname='a'\nkey='k'\nkeey=1", "an API key has no 'keey'"),
        ("[[api_key]]\nname='a'\nkey='k'\nscopes=['root']", "scope 'root'; allowed are admin"),
        ("[[api_key]]\nname='a'\nkey='k'\nmax_concurrent=0", "max_concurrent of the API key 'a'=0"),
        ("[[api_key]]\nname='a'\nkey='top secret'", "without spaces"),
        (KEYS + KEYS, "'alice' and 'alice' have the same name"),
        ("[[api_key]]\nname='a'\nkey='k'\n[[api_key]]\nname='b'\nkey='k'", "the same key"),
    ],
)
def test_a_file_that_is_wrong(toml: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=expected) as caught:
        read(toml, where=tmp_path)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("PORT", "http", "LLAMA_PY_PORT: port must be an integer"),
        ("PORT", "tcp://10.0.0.1:8080", "enableServiceLinks: false"),
        ("STRICT", "maybe", "LLAMA_PY_STRICT: strict must be True or False"),
        ("N_CTX", "-4", "LLAMA_PY_N_CTX: n_ctx=-4 is out of range"),
        ("CHAT_TEMPLATE", "/nowhere", "LLAMA_PY_CHAT_TEMPLATE: cannot read /nowhere"),
        ("API_KEY", "", "LLAMA_PY_API_KEY: an API key is empty; give one, or leave it out"),
        ("API_KEY", "one,", "LLAMA_PY_API_KEY: an API key is empty"),
        ("API_KEY", os.fsdecode(b"k\xff"), "LLAMA_PY_API_KEY: the API key .* 1 to 512 visible"),
        ("API_KEY", "(hidden)", "was left out when these settings were printed"),
        ("HOST", "unix:", "names no socket"),
        ("HOST", " , ", "LLAMA_PY_HOST: host names no address to listen at"),
        ("API_KEYS", "secret", "no environment variable LLAMA_PY_API_KEYS; .* LLAMA_PY_API_KEY"),
        ("ALOWED_HOSTS", "x", "did you mean LLAMA_PY_ALLOWED_HOSTS"),
    ],
)
def test_a_variable_that_is_wrong(name: str, value: str, expected: str) -> None:
    with pytest.raises(ParameterError, match=expected):
        read(environ={f"LLAMA_PY_{name}": value})


def test_variables_of_others_are_left_alone() -> None:
    others = {"LLAMA_PY_SERVICE_HOST": "10.0.0.1", "LLAMA_PY_LIB": "/lib", "LLAMA_PY_HISTORY": ""}
    assert read(environ=others).settings == read().settings


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(config=tmp_path / "none.toml")
    with pytest.raises(FileNotFoundError):
        read(settings={"api_key_file": tmp_path / "none"})


def test_a_key_file_that_is_wrong_names_the_line_and_no_key(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    lines = ("se/cret alice", "alice secret chat", "alice secret scopes=rooot", "secret #alice")
    for line in lines:
        path.write_text(f"good-key\n{line}\n")
        with pytest.raises(ParameterError, match=f"{path}, line 2: ") as caught:
            read(settings={"api_key_file": path})
        assert "secret" not in str(caught.value)
        assert "se/cret" not in str(caught.value)
    path.write_text("# nobody\n")
    with pytest.raises(ParameterError, match="there is no API key in"):
        read(settings={"api_key_file": path})


def test_toml_needs_a_package_before_python_3_11(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 0, "final", 0))
    monkeypatch.setitem(sys.modules, "tomli", None)
    with pytest.raises(MissingPackageError, match="pip install tomli"):
        read("port = 1", where=tmp_path)


def test_an_open_door_is_refused() -> None:
    for host in ("0.0.0.0", "::", "192.168.0.7", "llm.example.org"):
        with pytest.raises(ParameterError, match=f"host={host} can be reached"):
            Settings(host=host, models=(MODEL,)).refuse_open_door()
        Settings(host=host, api_keys=(ApiKey("a", "k"),)).refuse_open_door()
    for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost", "unix:/run/llm.sock"):
        Settings(host=host).refuse_open_door()
    with pytest.raises(ParameterError, match=r"host=192\.168\.0\.7 can be reached"):
        Settings(host="127.0.0.1,192.168.0.7,unix:/x").refuse_open_door()
    Settings(host="127.0.0.1,::1,unix:/x").refuse_open_door()


# ---- and back ----------------------------------------------------------------------------------


def test_what_is_printed_is_read_again_and_hides_keys(tmp_path: Path) -> None:
    toml = 'session_dir = "kept \\"here\\""\nrequest_timeout = 600\n' + MODELS + KEYS
    first = read(toml, {"LLAMA_PY_PORT": "99", "LLAMA_PY_API_KEY": "env-secret"}, tmp_path)
    printed = to_toml(first)
    assert "secret" not in printed
    assert "port = 99  # LLAMA_PY_PORT" in printed
    assert "request_timeout = 600.0  # server.toml" in printed
    assert "# tls_cert is not set" in printed
    for number in range(printed.count('"(hidden)"')):
        printed = printed.replace('"(hidden)"', f'"k{number}"', 1)
    again = read(printed, where=tmp_path).settings
    for name in SETTINGS.options:
        assert getattr(again, name) == getattr(first.settings, name), name
    assert again.models == first.settings.models
    assert [key.name for key in again.api_keys] == [key.name for key in first.settings.api_keys]


def test_what_is_printed_is_not_a_door_that_is_open(tmp_path: Path) -> None:
    """Keys of a file are found there again; others have to be put in, for theirs is known."""
    (tmp_path / "keys").write_text("bob bob-secret requests_per_minute=9\n")
    (tmp_path / "again").mkdir()
    printed = to_toml(read("api_key_file = 'keys'", where=tmp_path))
    assert '# in api_key_file:\n# [[api_key]]\n# name = "bob"\n' in printed
    again = read(printed, where=tmp_path / "again").settings
    assert [(key.name, key.requests_per_minute) for key in again.api_keys] == [("bob", 9)]
    printed = to_toml(read(KEYS, where=tmp_path))
    with pytest.raises(ParameterError, match=r"'alice' was left out .* in place of \(hidden\)"):
        read(printed, where=tmp_path)
