"""The dashboard, the alerts and the scraping: every name is one that the server has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from llama_py.server.access.keys import ADMIN, CHAT, ApiKey
from tests.deploy.files import DEPLOY, expressions, read_yaml
from tests.patience import PATIENCE
from tests.server.serving import Server, demo_settings, serving

OPS = ApiKey("ops", "ops-secret", frozenset({CHAT, ADMIN}))
#: What Prometheus itself knows of a target.
OF_PROMETHEUS = {"up": {"job", "instance"}}
#: Words of the query language that are not names of metrics.
WORDS = {"sum", "avg", "rate", "increase", "histogram_quantile", "topk", "by", "le", "and"}
_TEXTS = re.compile(r'"[^"]*"')
_NAME = re.compile(r"[a-zA-Z_][\w:]*")


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / "grafana" / "llama-py.json").read_text())
    return found


def alerts() -> dict[str, str]:
    rules = read_yaml("rules.yml")["groups"][0]["rules"]
    return {rule["alert"]: rule["expr"] for rule in rules}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(demo_settings({"api_keys": (OPS,)})) as server:
        with server.http(headers={"Authorization": f"Bearer {OPS.key}"}) as http:
            body = {"messages": [{"role": "user", "content": "What is 2 + 3?"}], "max_tokens": 8}
            for _ in range(3):
                http.post("/v1/chat/completions", json=body).raise_for_status()
        yield server


@pytest.fixture(scope="module")
def page(server: Server) -> str:
    with server.http(headers={"Authorization": f"Bearer {OPS.key}"}) as http:
        return http.get("/metrics").raise_for_status().text


@pytest.fixture(scope="module")
def labels(page: str) -> dict[str, set[str]]:
    """The labels of each name on the server's page."""
    found: dict[str, set[str]] = defaultdict(set, OF_PROMETHEUS)
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found[sample.name] |= {*sample.labels}
    return found


def names_in(expression: str) -> Iterator[tuple[str, set[str]]]:
    """Names of metrics, each with the labels that are asked of it."""
    bare = _TEXTS.sub("''", expression)
    grouped = {name for by in re.findall(r"by \(([^)]*)\)", bare) for name in _NAME.findall(by)}
    bare = re.sub(r"by \([^)]*\)|\[[^]]*\]", "", bare)
    for name, braces in re.findall(r"([a-zA-Z_][\w:]*)(\{[^}]*\})?", re.sub(r"''", "", bare)):
        if name not in WORDS and f"{{{name}" not in bare and f", {name}" not in braces:
            yield name, {*re.findall(r"(\w+)[=!]", braces)} | grouped


@pytest.mark.parametrize("source", ["dashboard", "alerts"])
def test_every_name_is_one_of_the_server(source: str, labels: dict[str, set[str]]) -> None:
    asked = expressions(dashboard()) if source == "dashboard" else alerts()
    assert len(asked) >= 5
    for title, expression in asked.items():
        found = [*names_in(expression)]
        assert found, title
        for name, wanted in found:
            assert name in labels, f"{title}: the server has no {name}"
            assert wanted <= labels[name], f"{title}: {name} has no labels {wanted - labels[name]}"


def test_a_name_that_is_not_there_is_noticed(labels: dict[str, set[str]]) -> None:
    expression = 'sum by (status) (rate(llama_py_htp_requests_total{path="/"}[5m])) / up{job="a"}'
    assert dict(names_in(expression)) == {
        "llama_py_htp_requests_total": {"status", "path"},
        "up": {"status", "job"},
    }
    assert "llama_py_htp_requests_total" not in labels


def test_the_choice_of_a_model_asks_for_a_name_of_the_server(labels: dict[str, set[str]]) -> None:
    (variable,) = dashboard()["templating"]["list"]
    found = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
    assert found
    assert found[2] in labels[found[1]]


def test_panels_do_not_lie_over_one_another() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


# ---- with Prometheus ---------------------------------------------------------------------------


def promtool(*arguments: str, text: str = "") -> str:
    done = subprocess.run(["promtool", *arguments], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here")


@needs_promtool
def test_prometheus_understands_settings_and_expressions(tmp_path: Path, page: str) -> None:
    promtool("check", "rules", str(DEPLOY / "rules.yml"))
    shutil.copy(DEPLOY / "rules.yml", tmp_path)
    (tmp_path / "prometheus.yml").write_text((DEPLOY / "prometheus.yml").read_text())
    promtool("check", "config", "--syntax-only", str(tmp_path / "prometheus.yml"))
    rules = [
        {"record": f"panel{number}", "expr": expression}
        for number, expression in enumerate(expressions(dashboard()).values())
    ]
    panels = tmp_path / "panels.yml"
    panels.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", str(panels))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="no Prometheus here")
def test_every_panel_shows_something(server: Server, tmp_path: Path) -> None:
    """Prometheus scrapes the server, by the file of the deployment, and is asked for each."""
    config = read_yaml("prometheus.yml")
    config["global"]["scrape_interval"] = "1s"
    job = config["scrape_configs"][0]
    (tmp_path / "key").write_text(OPS.key)
    job["authorization"]["credentials_file"] = str(tmp_path / "key")
    job["static_configs"][0]["targets"] = [server.url.removeprefix("http://")]
    config["rule_files"] = [str(DEPLOY / "rules.yml")]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    process = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            "--web.listen-address=127.0.0.1:0",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        address = next(
            found[1]
            for line in process.stdout
            if (found := re.search(r'msg="?Listening on"? address=(127\S+)', line))
        )
        with httpx.Client(base_url=f"http://{address}", timeout=PATIENCE) as http:
            until_scraped(http)
            for title, expression in expressions(dashboard()).items():
                answer = http.get("/api/v1/query", params={"query": expression}).json()
                assert answer["status"] == "success", f"{title}: {answer}"
                assert answer["data"]["result"], f"{title}: {expression}"
            listed = http.get("/api/v1/rules").json()["data"]["groups"][0]["rules"]
            assert {rule["name"] for rule in listed} == {*alerts()}
            assert {rule["state"] for rule in listed} == {"inactive"}
    finally:
        process.kill()
        process.communicate()


def until_scraped(http: httpx.Client) -> None:
    """Wait until there are several samples, which rates are made of."""
    end = time.monotonic() + PATIENCE
    query = {"query": 'sum_over_time(up{job="llama-py"}[1m])'}
    while time.monotonic() < end:
        result = http.get("/api/v1/query", params=query).json()["data"]["result"]
        if result and float(result[0]["value"][1]) >= 3:
            return
        time.sleep(0.2)
    raise AssertionError("Prometheus scraped nothing")
