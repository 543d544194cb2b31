"""``python -m llama_cpp.server`` and ``llama_cpp.server``, on llama_py's server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import llama_py.compat
from llama_py.demo import demo_model_path
from llama_py.errors import ParameterError
from tests.patience import PATIENCE

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")


def start(*flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "llama_py.compat", "-m", "llama_cpp.server", *flags]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )


def address_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if "serves at" in line:
            return line.split()[-1]
    raise AssertionError(process.stderr.read() if process.stderr else "")


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    openai = pytest.importorskip("openai")
    flags = ("--model", demo_model_path(), "--model_alias", "demo", "--api_key", "secret")
    process = start(*flags, "--port", "0", "--n_ctx", "512", "--n_threads", "1")
    try:
        url = address_of(process)
        with openai.OpenAI(base_url=f"{url}/v1", api_key="secret") as made:
            yield made
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)


def test_the_client_of_openai_works(client: Any) -> None:
    question: Any = [{"role": "user", "content": "What is 2 + 3?"}]
    found = client.chat.completions.create(model="demo", messages=question, temperature=0)
    assert found.choices[0].message.content == "2 + 3 = 5."
    stream = client.chat.completions.create(
        model="whatever", messages=question, temperature=0, stream=True
    )
    assert "".join(each.choices[0].delta.content or "" for each in stream) == "2 + 3 = 5."
    assert [each.id for each in client.models.list()] == ["demo"]


def test_texts_can_be_scored_as_lm_eval_does(client: Any) -> None:
    found = client.completions.create(
        model="demo", prompt="2 + 3 = 5", logprobs=10, max_tokens=1, temperature=0, echo=True
    ).choices[0]
    logprobs = found.logprobs
    assert found.text.startswith("2 + 3 = 5")
    assert logprobs.text_offset[0] == 0
    assert logprobs.token_logprobs[0] is None
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs)


def test_the_routes_beside_those_of_openai(client: Any) -> None:
    def post(path: str, **body: Any) -> Any:
        url = str(client.base_url).removesuffix("v1/") + path
        return client.post(url, body=body, cast_to=object)

    tokens = post("extras/tokenize", input="Hello there")["tokens"]
    assert post("extras/tokenize/count", input="Hello there") == {"count": len(tokens)}
    assert post("extras/detokenize", tokens=tokens) == {"text": "Hello there"}


def test_wrong_settings_end_it_with_a_sentence() -> None:
    process = start("--model", "nowhere.gguf", "--port", "0")
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "no model file at nowhere.gguf" in errors
    assert "Traceback" not in errors + output


# ---- settings --------------------------------------------------------------------------------


@pytest.fixture
def app() -> Iterator[Any]:
    llama_py.compat.install()
    import llama_cpp.server.app

    yield llama_cpp.server.app
    llama_py.compat.uninstall()


def test_settings_come_from_arguments_and_environment(
    app: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from llama_cpp.server.settings import ConfigFileSettings, ModelSettings, Settings

    monkeypatch.setenv("N_CTX", "128")
    monkeypatch.setenv("FLASH_ATTN", "true")
    settings = Settings(model=demo_model_path(), port=0)
    assert (settings.n_ctx, settings.flash_attn, settings.n_batch) == (128, True, 512)
    native = app.native_settings(settings, [ModelSettings.model_validate(settings)])
    assert (native.host, native.port) == ("127.0.0.1", 0)
    assert native.models[0].options["n_ctx"] == 128
    assert app.create_app(settings) is not None
    assert next(app.get_server_settings()) is settings
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"port": 1, "models": [{"model": "a.gguf", "model_alias": "a"}]}))
    found = ConfigFileSettings.read(str(file))
    assert (found.port, found.models[0].model_alias, found.models[0].n_ctx) == (1, "a", 128)


def test_an_open_door_needs_a_key(app: Any) -> None:
    from llama_cpp.server.settings import ModelSettings, ServerSettings

    native = app.native_settings(
        ServerSettings(host="0.0.0.0"), [ModelSettings(model=demo_model_path())]
    )
    with pytest.raises(ParameterError, match="there is no API key"):
        native.refuse_open_door()


def test_the_proxy_gives_the_model_that_is_asked_for(app: Any) -> None:
    from llama_cpp.server.model import LlamaProxy
    from llama_cpp.server.settings import ModelSettings

    models = [
        ModelSettings(model=demo_model_path(), model_alias=name, n_ctx=size, verbose=False)
        for name, size in (("a", 256), ("b", 512))
    ]
    proxy = LlamaProxy(models)
    assert proxy().n_ctx() == proxy("a").n_ctx() == proxy("unknown").n_ctx() == 256
    assert proxy("b").n_ctx() == 512
    proxy.free()
