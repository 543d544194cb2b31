"""The file of ``llama-py cluster deploy``, and the manifest for Kubernetes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from llama_py import demo_model_path
from llama_py.cli import main
from llama_py.cluster.configuration import ClusterSettings, read_cluster
from llama_py.errors import ModelNotFoundError, ParameterError, UnknownParameterError
from llama_py.server.config.settings import Settings

yaml = pytest.importorskip("yaml")
DEPLOY = Path(__file__).parents[2] / "deploy" / "cluster"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LLAMA_PY_API_KEY", "LLAMA_PY_MODEL", "LLAMA_PY_PORT"):
        monkeypatch.delenv(name, raising=False)


def written(place: Path, text: str) -> Path:
    file = place / "cluster.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def test_without_a_file_there_are_three_replicas_of_the_bundled_model() -> None:
    settings = read_cluster(None, {})
    assert settings.replicas == 3
    assert settings.server.models[0].path == demo_model_path()
    assert settings.server.models[0].options["n_threads"] == 1
    settings.check()


def test_the_servers_settings_are_those_of_its_own_file(tmp_path: Path) -> None:
    text = "server: {port: 9000, session_dir: kept, model: [{path: m.gguf, n_ctx: 512}]}"
    settings = read_cluster(written(tmp_path, f"{text}\nreplicas: 2\npolicy: {{patience: 3}}"), {})
    assert settings.server.port == 9000
    assert settings.server.session_dir == tmp_path / "kept"
    assert settings.server.models[0].path == str(tmp_path / "m.gguf")
    assert settings.server.models[0].options["n_ctx"] == 512
    assert settings.policy.patience == 3
    with pytest.raises(ModelNotFoundError, match=r"m\.gguf"):
        settings.check()


def test_the_environment_takes_precedence(tmp_path: Path) -> None:
    environ = {"LLAMA_PY_PORT": "9001", "LLAMA_PY_API_KEY": "a-key"}
    settings = read_cluster(written(tmp_path, "server: {port: 9000}"), environ)
    assert settings.server.port == 9001
    assert [key.key for key in settings.server.api_keys] == ["a-key"]


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("replica: 3", UnknownParameterError, "did you mean replicas"),
        ("policy: {patients: 3}", UnknownParameterError, "did you mean patience"),
        ("server: {prot: 3}", UnknownParameterError, "prot"),
        ("replicas: 0", ParameterError, "replicas"),
        ("replicas: many", ParameterError, "replicas"),
        ("{replicas: 4, max_replicas: 2}", ParameterError, "max_replicas"),
        ("routing: random", ParameterError, "prefix or default"),
        ("policy: {patience: -1}", ParameterError, "patience"),
        ("policy: 5", ParameterError, "a table"),
        ("- a\n- b", ParameterError, "a table"),
        ("{a: [", ParameterError, "is not YAML"),
        ("server: {host: 'unix:/run/a.sock'}", ParameterError, "one address"),
        ("server: {root_path: /llm}", ParameterError, "root_path"),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path, text: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        read_cluster(written(tmp_path, text), {})
    if error is ParameterError and "root" not in words:
        assert "cluster.yaml" in str(caught.value)


def test_an_address_that_others_reach_wants_a_key() -> None:
    with pytest.raises(ParameterError, match="API key"):
        ClusterSettings(server=Settings(host="0.0.0.0")).check()


def test_the_command_says_whether_a_file_is_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, "{replicas: 2, max_replicas: 4}")
    assert main(["cluster", "deploy", str(file), "--check"]) == 0
    assert "2 to 4 replicas of demo-chat-q8_0" in capsys.readouterr().out
    file.write_text("replicas: none", encoding="utf-8")
    assert main(["cluster", "deploy", str(file), "--check"]) == 2
    assert "replicas" in capsys.readouterr().err


# -- examples --------------------------------------------------------------------------------------


def test_the_example_is_right() -> None:
    environ = {"LLAMA_PY_API_KEY": "a-key"}
    settings = read_cluster(DEPLOY / "cluster.yaml", environ)
    settings.server.refuse_open_door()
    assert settings.server.models[0].options["n_threads"] == settings.cpus


def manifest() -> Any:
    return yaml.safe_load((DEPLOY / "rayservice.yaml").read_text(encoding="utf-8"))


def test_the_manifest_has_the_form_of_a_rayservice() -> None:
    """Its schema is part of the operator, which is in no package index; so by structure."""
    resource = manifest()
    assert (resource["apiVersion"], resource["kind"]) == ("ray.io/v1", "RayService")
    assert {*resource["spec"]} == {"serveConfigV2", "rayClusterConfig"}
    cluster = resource["spec"]["rayClusterConfig"]
    assert {*cluster} == {
        *("rayVersion", "enableInTreeAutoscaling", "headGroupSpec", "workerGroupSpecs")
    }
    assert {*cluster["headGroupSpec"]} == {"rayStartParams", "template"}
    group = cluster["workerGroupSpecs"][0]
    assert {*group} == {
        *("groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template")
    }
    for part in (cluster["headGroupSpec"], group):
        assert all(isinstance(value, str) for value in part["rayStartParams"].values())
        pod = part["template"]["spec"]
        assert pod["enableServiceLinks"] is False  # LLAMA_PY_PORT would be the service's address
        names = {volume["name"] for volume in pod["volumes"]}
        for container in pod["containers"]:
            assert {"name", "image", "env", "resources", "volumeMounts"} <= {*container}
            assert {mount["name"] for mount in container["volumeMounts"]} <= names
            assert all(isinstance(each.get("value", ""), str) for each in container["env"])


def test_the_manifest_fits_the_example_of_settings() -> None:
    settings = read_cluster(DEPLOY / "cluster.yaml", {"LLAMA_PY_API_KEY": "a-key"})
    group = manifest()["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]
    assert (group["minReplicas"], group["maxReplicas"]) == (
        settings.replicas,
        settings.max_replicas,
    )
    pod = group["template"]["spec"]
    assert float(pod["containers"][0]["resources"]["requests"]["cpu"]) == settings.cpus
    assert pod["terminationGracePeriodSeconds"] >= settings.server.drain_seconds + 20
    version = manifest()["spec"]["rayClusterConfig"]["rayVersion"]
    project = (DEPLOY.parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    assert re.search(rf"ray\[serve\]>={re.escape(version.removesuffix('.0'))},", project)


def test_rays_part_of_the_manifest_is_valid_by_its_schema() -> None:
    schema = pytest.importorskip("ray.serve.schema")
    config = yaml.safe_load(manifest()["spec"]["serveConfigV2"])
    checked = schema.ServeDeploySchema.model_validate(config)
    module, _, name = checked.applications[0].import_path.partition(":")
    assert callable(getattr(__import__(module, fromlist=[name]), name))
