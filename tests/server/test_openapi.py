"""``/openapi.json`` and ``/docs`` describe the server that serves them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from typing import Any

import jsonschema
import pytest

from llama_py.options import CHAT
from llama_py.server.access.keys import ApiKey
from llama_py.server.app import routes_of
from llama_py.server.config.settings import Settings
from llama_py.server.openapi.document import document
from llama_py.server.operations import TAGS, DeclaredRoute, Operations
from tests.server.serving import Server, demo_settings, serving

#: What is for browsers, and for programs that look whether there is a server at all.
UNDESCRIBED = {
    ("GET", "/docs"),
    ("GET", "/docs.css"),
    ("GET", "/api/hello"),
    ("GET", "/"),
    ("HEAD", "/"),
    ("GET", "/index.html"),
    ("GET", "/favicon.ico"),
    ("GET", "/page/{path}"),
}


@pytest.fixture(scope="module")
def described(server: Server) -> dict[str, Any]:
    with server.http() as http:
        described: dict[str, Any] = http.get("/openapi.json").json()
        return described


def operations(described: Mapping[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (method.upper(), path): operation
        for path, item in described["paths"].items()
        for method, operation in item.items()
    }


def test_every_route_is_described(described: dict[str, Any]) -> None:
    routes = {
        (route.operation.method, path)
        for route in routes_of(demo_settings())
        if isinstance(route, DeclaredRoute)
        for path in route.operation.paths
    }
    assert {*operations(described)} == routes - UNDESCRIBED


def test_every_operation_has_a_name_of_its_own(described: dict[str, Any]) -> None:
    names = [each["operationId"] for each in operations(described).values()]
    assert len({*names}) == len(names)
    tags = {tag for each in operations(described).values() for tag in each["tags"]}
    assert tags == {each["name"] for each in described["tags"]}
    assert tags == {*TAGS}


def references(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield from (each for name, each in value.items() if name == "$ref")
        for each in value.values():
            yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


def test_what_is_referred_to_is_there(described: dict[str, Any]) -> None:
    found = set(references(described))
    schemas = described["components"]["schemas"]
    assert found <= {f"#/components/schemas/{name}" for name in schemas}
    assert len(found) > 10


def test_schemas_are_schemas(described: dict[str, Any]) -> None:
    for schema in described["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def validator(described: Mapping[str, Any], name: str) -> jsonschema.Draft202012Validator:
    components = {"components": described["components"]}
    return jsonschema.Draft202012Validator({"$ref": f"#/components/schemas/{name}", **components})


@pytest.mark.parametrize(
    ("path", "reply"),
    [("/v1/chat/completions", "ChatCompletion"), ("/v1/completions", "Completion")],
)
def test_requests_and_replies_are_what_they_are_said_to_be(
    server: Server, described: dict[str, Any], path: str, reply: str
) -> None:
    question = {"messages": [{"role": "user", "content": "What is 2 + 3?"}], "logprobs": True}
    body: dict[str, Any] = {"model": "demo", "max_tokens": 5, "stop": ["x"], "seed": 1}
    body |= question if "chat" in path else {"prompt": "Hello", "logprobs": 2}
    operation = operations(described)["POST", path]
    asked = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    validator(described, asked.rsplit("/", 1)[-1]).validate(body)
    with server.http() as http:
        answer = http.post(path, json=body)
        assert answer.status_code == 200
        validator(described, reply).validate(answer.json())
        chunks = http.post(path, json={**body, "stream": True}).text.split("\n\n")
        for chunk in chunks[:-2]:
            validator(described, f"{reply}Chunk").validate(json.loads(chunk[len("data: ") :]))
        wrong = http.post(path, json={**body, "max_tokens": "many"})
        assert str(wrong.status_code) in operation["responses"]
        validator(described, "Error").validate(wrong.json())


ASKED: dict[str, dict[str, Any] | None] = {
    "POST /v1/messages": {"max_tokens": 5, "messages": [{"role": "user", "content": "Hello!"}]},
    "POST /v1/messages/count_tokens": {"messages": [{"role": "user", "content": "Hello!"}]},
    "POST /v1/responses": {"input": "Hello!", "max_output_tokens": 5},
    "POST /v1/responses/input_tokens": {"input": [{"role": "user", "content": "Hello!"}]},
    "POST /v1/chat/completions/input_tokens": {"messages": [{"role": "user", "content": "Hi"}]},
    "POST /completion": {"prompt": "Hello", "n_predict": 5, "repeat_last_n": 8, "mirostat": 1},
    "POST /tokenize": {"content": ["Hello", 3], "with_pieces": True},
    "POST /detokenize": {"tokens": [3, 4]},
    "POST /extras/tokenize": {"input": "Hello"},
    "POST /extras/tokenize/count": {"input": "Hello"},
    "POST /extras/detokenize": {"tokens": [3, 4]},
    "POST /apply-template": {"messages": [{"role": "user", "content": "Hello!"}]},
    "POST /models/load": {"model": "demo"},
    "GET /props": None,
    "GET /slots": None,
    "GET /lora-adapters": None,
    "GET /v1/models": None,
    "GET /v1/sessions": None,
    "GET /health": None,
}


@pytest.mark.parametrize("way", ASKED)
def test_what_is_asked_and_answered_fits(
    server: Server, described: dict[str, Any], way: str
) -> None:
    method, path = way.split()
    operation, body = operations(described)[method, path], ASKED[way]
    if body is not None:
        asked = operation["requestBody"]["content"]["application/json"]["schema"]
        validator(described, asked["$ref"].rsplit("/", 1)[-1]).validate(body)
    with server.http() as http:
        reply = http.request(method, path, json=body)
    assert reply.status_code == 200, reply.text
    answered = operation["responses"]["200"]["content"]["application/json"]["schema"]
    validator(described, answered["$ref"].rsplit("/", 1)[-1]).validate(reply.json())


def test_a_session_is_what_it_is_said_to_be(server: Server, described: dict[str, Any]) -> None:
    body = {"messages": [{"role": "user", "content": "Hello!"}], "session_id": "described"}
    with server.http() as http:
        assert http.post("/v1/chat/completions", json=body).status_code == 200
        session = http.get("/v1/sessions/described").json()
        validator(described, "Session").validate(session)
        fork = http.post("/v1/sessions/described/fork", json={"id": "branch"}).json()
        validator(described, "Session").validate(fork)
        gone = http.delete("/v1/sessions/branch").json()
        validator(described, "DeletedSession").validate(gone)
        properties = described["components"]["schemas"]["Session"]["properties"]
        assert {*session} <= {*properties}


def test_options_are_those_that_are_declared(described: dict[str, Any]) -> None:
    schema = described["components"]["schemas"]["ChatCompletionRequest"]
    options = schema["properties"]
    # Functions, and what only those decide who run the server.
    elsewhere = {"logits_processor", "stopping_criteria", "on_progress", "overflow", "speculative"}
    assert {*CHAT.options} - elsewhere <= {*options}
    assert elsewhere.isdisjoint(options)
    assert options["min_p"]["default"] == CHAT["min_p"].default()
    assert schema["required"] == ["messages"]


def test_limits_and_keys_are_those_of_the_settings() -> None:
    settings = Settings(max_choices=3, max_tools=7, overflow_status=400, api_keys=())
    routes = Operations(routes_of(settings))
    described = document(settings, routes)
    options = described["components"]["schemas"]["ChatCompletionRequest"]["properties"]
    assert options["n"]["maximum"] == 3
    assert options["tools"]["maxItems"] == 7
    chat = operations(described)["POST", "/v1/chat/completions"]
    assert "context_length_exceeded" in chat["responses"]["400"]["description"]
    assert {} in chat["security"]
    closed = document(Settings(api_keys=(ApiKey("me", "secret"),)), routes)
    assert {} not in operations(closed)["POST", "/v1/chat/completions"]["security"]
    assert operations(closed)["GET", "/health"]["security"] == []
    assert "secret" not in json.dumps(closed)


# -- the page --------------------------------------------------------------------------------------


class Elements(HTMLParser):
    """What a page consists of, and whether its elements are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_needs_nothing_from_elsewhere(server: Server) -> None:
    with server.http() as http:
        reply = http.get("/docs")
        style = http.get("/docs.css")
    policy = reply.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'self'")
    assert style.headers["Content-Type"].startswith("text/css")
    elements = Elements()
    elements.feed(reply.text)
    assert not elements.open
    tags = {tag for tag, _ in elements.found}
    assert tags.isdisjoint({"script", "style", "img", "iframe", "form"})
    attributes = {name for _, attrs in elements.found for name in attrs}
    assert "style" not in attributes
    assert not [name for name in attributes if name.startswith("on")]
    targets = [
        attrs[name] or ""
        for _, attrs in elements.found
        for name in ("href", "src")
        if name in attrs
    ]
    assert not [target for target in targets if re.match(r"[a-z]+:|//", target)]
    ids = [attrs["id"] for _, attrs in elements.found if "id" in attrs]
    assert len({*ids}) == len(ids)
    assert {target[1:] for target in targets if target.startswith("#")} <= {*ids}


def test_the_page_says_what_there_is(server: Server, described: dict[str, Any]) -> None:
    with server.http() as http:
        page = http.get("/docs").text
    for path in described["paths"]:
        assert f"<code>{path}</code>" in page
    assert "Only tokens at least P times as likely" in page


def test_both_are_open_and_the_rest_is_not() -> None:
    settings = demo_settings({"api_keys": (ApiKey("me", "secret"),)})
    with serving(settings) as server, server.http() as http:
        assert [http.get(path).status_code for path in ("/docs", "/docs.css", "/openapi.json")] == [
            200, 200, 200,
        ]  # fmt: skip
        assert http.get("/v1/models").status_code == 401
