"""The files in ``deploy``: what can be said about them without installing anything."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.routing import Route

from llama_py import demo_model_path
from llama_py.cli import main
from llama_py.server.app import routes_of
from llama_py.server.config.configuration import Given, read_configuration
from llama_py.server.config.settings import SETTINGS, Settings
from tests.deploy.files import CLOSING, DEPLOY, DRAIN, VARIABLES, read_yaml, seconds
from tools import server_settings


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("LLAMA_PY_")]:
        if name != "LLAMA_PY_LIB":
            monkeypatch.delenv(name)


def test_the_page_of_settings_is_what_is_declared() -> None:
    expected = server_settings.page()
    found = server_settings.PAGE.read_text(encoding="utf-8")
    assert found == expected, "run: python -m tools.server_settings"
    for name in SETTINGS.options:
        assert f"\n| `{name}` | " in found


def test_the_file_of_settings() -> None:
    given = Given(config=DEPLOY / "server.toml")
    settings = read_configuration(given, {"LLAMA_PY_API_KEY": "k"}, demo_model_path).settings
    settings.refuse_open_door()
    assert settings.models[0].path == str(DEPLOY / "models" / "assistant.gguf")


# ---- systemd -----------------------------------------------------------------------------------


def unit() -> dict[str, list[str]]:
    """The values of each key of the unit."""
    values: dict[str, list[str]] = {}
    for line in (DEPLOY / "llama-py.service").read_text(encoding="utf-8").splitlines():
        if line and line[0] not in "#[":
            name, _, value = line.partition("=")
            values.setdefault(name, []).append(value)
    return values


def test_the_unit_starts_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    values = unit()
    (tmp_path / "api-keys").write_text("alice " + "0" * 48)
    for entry in values["Environment"]:
        name, _, value = entry.partition("=")
        assert name in VARIABLES or name.startswith("PYTHON")
        monkeypatch.setenv(name, re.sub("%[dS]", str(tmp_path), value))
    for command in (*values["ExecStartPre"], *values["ExecStart"]):
        words = shlex.split(command)
        assert words[0].endswith("/bin/llama-py")
        config = words.index("--config") + 1
        words[config] = str(DEPLOY / "server.toml")
        assert main([*words[1:], "--print-config"]) == 0
    printed = capsys.readouterr().out
    assert 'name = "alice"' in printed
    assert f'session_dir = "{tmp_path}/llama-py/sessions"' in printed


def test_the_unit_gives_it_time_to_drain() -> None:
    assert int(unit()["TimeoutStopSec"][0]) >= DRAIN + CLOSING
    assert unit()["RestartPreventExitStatus"] == ["2"]  # what the command line returns


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_understands_the_unit() -> None:
    path = str(DEPLOY / "llama-py.service")
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True
    )
    complaints = [line for line in verified.stderr.splitlines() if "not executable" not in line]
    assert [line for line in complaints if "llama-py.service" in line] == []
    rated = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", path], capture_output=True, text=True
    )
    level = re.search(r"exposure level for llama-py\.service: (\d\.\d)", rated.stdout)
    if level is not None:  # older ones cannot say it without the service
        assert float(level[1]) < 2


# ---- a container -------------------------------------------------------------------------------


def instructions() -> Iterator[tuple[str, str]]:
    """The instructions of the container file, with what follows them."""
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition(" ")
            yield name, rest


def test_the_container_file() -> None:
    found = [*instructions()]
    known = {"FROM", "ARG", "RUN", "COPY", "ENV", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL"}
    assert {name for name, _ in found} <= known | {"HEALTHCHECK", "ENTRYPOINT"}
    assert [rest for name, rest in found if name == "FROM"] == ["${BASE} AS build", "${BASE}"]
    last = dict(found)
    assert int(last["USER"].partition(":")[0]) > 0
    assert json.loads(last["ENTRYPOINT"]) == ["/opt/llama-py/bin/llama-py", "serve"]
    assert last["STOPSIGNAL"] == "SIGTERM"
    assert last["EXPOSE"] == str(SETTINGS.options["port"].default())
    for entry in shlex.split(last["ENV"]):
        name, _, value = entry.partition("=")
        if name in VARIABLES:
            VARIABLES[name].parse(value)
        else:
            assert name == "PATH" or name.startswith("PYTHON")


def test_the_container_is_asked_whether_it_is_well() -> None:
    """By its health, which is good while it drains: nobody should kill it for that."""
    check = dict(instructions())["HEALTHCHECK"]
    program = json.loads(check[check.index("[") :])
    compile(program[2], "HEALTHCHECK", "exec")
    assert "'/health'" in program[2]
    assert "/health" in {route.path for route in routes_of(Settings()) if isinstance(route, Route)}
    assert "LLAMA_PY_PORT" in VARIABLES


def test_the_container_runs_with_little() -> None:
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    for flag in ("--read-only", "--cap-drop ALL", "--security-opt no-new-privileges"):
        assert flag in text
    stop = re.search(r"--stop-timeout (\d+)", text)
    assert stop is not None
    assert int(stop[1]) >= DRAIN + CLOSING


# ---- several containers ------------------------------------------------------------------------


def test_containers_get_what_they_understand() -> None:
    services = read_yaml("compose.yaml")["services"]
    server = services["llama-py"]
    understood = {*VARIABLES, *re.findall(r"`(LLAMA_PY_\w+)`", server_settings.page())}
    assert {*server["environment"]} <= understood
    assert seconds(server["stop_grace_period"]) >= DRAIN + CLOSING
    assert (DEPLOY / server["build"]["context"] / server["build"]["dockerfile"]).is_file()
    assert "ports" not in server, "the server is reached by the proxy only"
    for service in services.values():
        assert service["cap_drop"] == ["ALL"]
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        image = service["image"]
        assert "build" in service or ":" in image.rpartition("/")[2], f"{image} has no version"


def test_files_that_containers_mount_are_there() -> None:
    content = read_yaml("compose.yaml")
    made = {"./secrets", "./models"}  # by whoever starts them
    for service in content["services"].values():
        for volume in service["volumes"]:
            source = re.sub(r"\$\{\w+:-(.*?)\}", r"\1", volume).partition(":")[0]
            named = source in content["volumes"] or source in made
            assert named or (DEPLOY / source).is_file(), volume
        assert {*service.get("secrets", ())} <= {*content["secrets"]}
        assert {*service["networks"]} <= {*content["networks"]}


def test_containers_find_one_another() -> None:
    services = read_yaml("compose.yaml")["services"]
    proxy = (DEPLOY / "nginx.conf").read_text(encoding="utf-8")
    scraped = read_yaml("prometheus.yml")["scrape_configs"][0]
    source = read_yaml("grafana/datasources.yaml")["datasources"][0]
    provider = read_yaml("grafana/dashboards.yaml")["providers"][0]
    port = SETTINGS.options["port"].default()
    assert f"server llama-py:{port};" in proxy
    assert scraped["static_configs"][0]["targets"] == [f"llama-py:{port}"]
    assert scraped["authorization"]["credentials_file"] == "/run/secrets/metrics-key"
    assert source["url"] == "http://prometheus:9090"
    assert {"llama-py", "prometheus"} <= {*services}
    mounts = " ".join(services["grafana"]["volumes"])
    assert f"{provider['options']['path']}/llama-py.json:ro" in mounts


def test_keys_are_read_as_the_page_writes_them(tmp_path: Path) -> None:
    page = (DEPLOY.parent / "docs" / "deploy.md").read_text(encoding="utf-8")
    script = page.partition("```sh\n")[2].partition("```")[0]
    assert "> api-keys" in script
    subprocess.run(["sh", "-eu"], input=script, text=True, cwd=tmp_path, check=True)
    secrets = tmp_path / "deploy" / "secrets"
    given = Given(config=None)
    environment = {
        "LLAMA_PY_API_KEY_FILE": str(secrets / "api-keys"),
        "LLAMA_PY_HOST": "0.0.0.0",
    }
    settings = read_configuration(given, environment, demo_model_path).settings
    settings.refuse_open_door()
    scopes = {key.name: key.scopes for key in settings.api_keys}
    assert scopes == {"alice": {"chat"}, "metrics": {"admin"}}
    metrics = next(key for key in settings.api_keys if key.name == "metrics")
    assert (secrets / "metrics-key").read_text().strip() == metrics.key


# ---- what is installed -------------------------------------------------------------------------


def test_nothing_installs_a_name_that_is_nobodys() -> None:
    """On an index, the name of this package belongs to whoever registers it."""
    found = []
    for path in followed():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for words in re.findall(r"pip install([^`#]*)", line):
                if re.search(r"(?<![\w./-])['\"]?llama[-_]py(?![\w./…-])", words):
                    found.append(f"{path}:{number}: {line.strip()}")
    assert found == []


def followed() -> list[Path]:
    """What people and machines follow."""
    root = DEPLOY.parent
    parts = [root.glob("*.md"), root.glob(".github/workflows/*")]
    for folder, kinds in (("docs", ["md"]), ("deploy", ["*"]), ("examples", ["md", "py"])):
        parts += [root.joinpath(folder).rglob(f"*.{kind}") for kind in kinds]
    files = {path for part in parts for path in part if path.is_file() and path.suffix != ".json"}
    return sorted(files)


def test_actions_and_tools_of_the_workflows_are_pinned() -> None:
    for path in DEPLOY.parent.glob(".github/workflows/*"):
        text = path.read_text(encoding="utf-8")
        for used in re.findall(r"uses: (\S+)", text):
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", used), used
        for words in re.findall(r"pip install (.*?)(?: &&|$)", text, re.MULTILINE):
            assert all("==" in each or each.endswith(".whl") for each in words.split()), words


def test_ray_s_ports_are_closed_to_others() -> None:
    service, policy = (
        read_yaml(f"cluster/{name}.yaml") for name in ("rayservice", "networkpolicy")
    )
    head = service["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]
    ports = {each["containerPort"] for each in head["containers"][0]["ports"]}
    assert {6379, 10001} < ports
    open_to_all = [rule for rule in policy["spec"]["ingress"] if "from" not in rule]
    assert [each["port"] for rule in open_to_all for each in rule["ports"]] == [8000]
