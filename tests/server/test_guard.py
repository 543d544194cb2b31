"""Who is let in: keys, hosts, origins, content types, sizes and rates, in every dialect."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from llama_py.server.access.guard import Guard
from llama_py.server.access.keys import ADMIN, CHAT, SCOPES, Allowance, ApiKey, Caller, KeyRing
from llama_py.server.app import routes_of
from llama_py.server.config.settings import Settings
from llama_py.server.lifecycle import Lifecycle, Phase
from llama_py.server.operations import PUBLIC, Operation, Operations, Routes
from llama_py.server.request_record import RequestRecord

CHATS = "/v1/chat/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
#: A path of each dialect that has a form of its own for errors.
DIALECTS = [CHATS, RESPONSES, MESSAGES]
ALICE = ApiKey("alice", "alice-secret")
OPS = ApiKey("ops", "ops-secret", frozenset({CHAT, ADMIN}))
JSON = {"content-type": "application/json", "content-length": "2"}
HOST = "127.0.0.1:8080"


@dataclass
class Answer:
    """What a client got."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        """The object that says what is wrong; its form is checked."""
        body = json.loads(self.body)
        if "type" in body:
            assert body["type"] == "error"
            assert body["request_id"] == self.headers["request-id"]
            assert body["error"].keys() == {"type", "message"}
        else:
            assert body["error"].keys() == {"message", "type", "param", "code"}
        error: dict[str, Any] = body["error"]
        return error


async def gone() -> Any:
    """There is no body."""
    return {"type": "http.disconnect"}


class Door:
    """A guarded app that answers everything with 200, and knows what it was asked."""

    def __init__(self, **settings: Any) -> None:
        self.lifecycle = Lifecycle()
        self.records: list[RequestRecord] = []
        self.callers: list[Caller] = []
        self.body: Callable[[], Any] = lambda: None
        read = Settings(**settings)
        operations = Operations(routes_of(read))
        self.guard = Guard(self._app, read, self.lifecycle, operations, [self.records.append])

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.callers.append(scope["state"]["caller"])
        await asyncio.sleep(0)
        self.body()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"in"})

    async def call(self, method: str, path: str, headers: dict[str, str] | None = None) -> Answer:
        """Ask it in an event loop."""
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        given = {"host": HOST, **(headers or {})}
        pairs = [(name.encode(), value.encode("latin-1")) for name, value in given.items() if value]
        path, _, query = path.partition("?")
        scope = {"type": "http", "method": method, "path": path, "headers": pairs}
        await self.guard({**scope, "query_string": query.encode()}, gone, send)
        start = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Answer(sent[0]["status"], start, b"".join(each["body"] for each in sent[1:]))

    def ask(self, method: str, path: str, headers: dict[str, str] | None = None) -> Answer:
        """Ask it."""
        return asyncio.run(self.call(method, path, headers))

    def post(self, path: str, **headers: str) -> Answer:
        """Ask it with a body of JSON."""
        return self.ask(
            "POST", path, {**JSON, **{k.replace("_", "-"): headers[k] for k in headers}}
        )


# ---- keys --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        {"authorization": "Bearer alice-secret"},
        {"authorization": "bearer   alice-secret "},
        {"x-api-key": "alice-secret"},
        {"x-api-key": "something", "authorization": "Bearer alice-secret"},
    ],
)
def test_a_key_opens(given: dict[str, str]) -> None:
    door = Door(api_keys=(ALICE, OPS))
    assert door.ask("POST", CHATS, {**JSON, **given}).status == 200
    assert door.callers == [Caller("alice", frozenset({CHAT}))]
    assert door.records[0].caller.name == "alice"


@pytest.mark.parametrize(
    ("path", "kind"),
    [*zip(DIALECTS, ["invalid_request_error"] * 2 + ["authentication_error"], strict=True)],
)
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"authorization": "Bearer alice-secre"},
        {"authorization": "Bearer alice-secret2"},
        {"authorization": "Basic alice-secret"},
        {"authorization": "Bearer "},
        {"x-api-key": "\xe9\xff"},
        {"x-api-key": "ALICE-SECRET"},
        {"cookie": "x-api-key=alice-secret"},
    ],
)
def test_no_other_key_does(path: str, kind: str, given: dict[str, str]) -> None:
    door = Door(api_keys=(ALICE, OPS))
    answer = door.ask("POST", path, {**JSON, **given})
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.error["type"] == kind
    assert answer.error.get("code", "invalid_api_key") == "invalid_api_key"
    assert "secret" not in answer.body.decode()
    assert door.callers == []


def test_without_keys_everybody_may_do_everything() -> None:
    door = Door()
    assert door.post(CHATS).status == door.ask("GET", "/metrics").status == 200
    assert door.callers[0] == Caller("", SCOPES)
    assert door.callers[0].tenant == ""


def test_what_everybody_may_ask() -> None:
    door = Door(api_keys=(ALICE,))
    probes = ("/health", "/v1/health", "/livez", "/readyz", "/api/hello")
    for path in (*probes, "/", "/page/js/app.js", "/docs", "/openapi.json"):
        assert door.ask("GET", path).status == door.ask("HEAD", path).status == 200
    for method, path in (
        ("GET", "/v1/models"),
        ("GET", "/metrics"),
        ("GET", "/props"),
        ("GET", "/slots"),
        ("GET", "/nothing"),
        ("GET", "//health"),
        ("GET", "/page"),
        ("POST", "/health"),
        ("POST", "/"),
        ("DELETE", "/page/app.js"),
        ("GET", "/v1/sessions"),
        ("POST", "/tokenize"),
    ):
        assert door.ask(method, path).status == 401, (method, path)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/metrics"),
        ("GET", "/slots"),
        ("POST", "/models/load"),
        ("POST", "/models/unload"),
        ("POST", "/props"),
        ("POST", "/lora-adapters"),
    ],
)
def test_some_things_need_a_scope(method: str, path: str) -> None:
    door = Door(api_keys=(ALICE, OPS))
    answer = door.ask(method, path, {**JSON, "x-api-key": ALICE.key})
    assert (answer.status, answer.error["code"]) == (403, "permission_denied")
    assert "'admin'" in answer.error["message"]
    assert door.ask(method, path, {**JSON, "x-api-key": OPS.key}).status == 200


def test_an_app_with_a_route_that_anybody_might_use_does_not_start() -> None:
    async def answer(request: Request) -> Response:
        return Response("secrets")

    with pytest.raises(TypeError, match=r"/admin/keys.* declares no operation"):
        Operations([*routes_of(Settings()), Route("/admin/keys", answer)])


def test_a_route_is_guarded_as_the_router_finds_it() -> None:
    """The first that fits, whatever comes after it."""

    async def answer(request: Request) -> Response:
        return Response()

    routes = Routes("Models")
    routes.get("/models/{id:path}", operation=Operation(ADMIN))(answer)
    routes.get("/models/mine", operation=Operation(PUBLIC))(answer)
    routes.post("/models/mine", operation=Operation(CHAT))(answer)
    operations = Operations(routes)
    assert operations.find("GET", "/models/mine").scope == ADMIN
    assert operations.find("HEAD", "/models/a/b").scope == ADMIN
    assert operations.find("POST", "/models/mine").scope == CHAT
    assert operations.find("DELETE", "/models/mine").scope == CHAT


def test_a_key_for_machines_cannot_chat() -> None:
    door = Door(api_keys=(ApiKey("grafana", "g", frozenset({ADMIN})),))
    assert door.ask("GET", "/metrics", {"x-api-key": "g"}).status == 200
    answer = door.post(MESSAGES, x_api_key="g")
    assert (answer.status, answer.error["type"]) == (403, "permission_error")


def test_the_path_below_a_proxy_counts() -> None:
    door = Door(api_keys=(ALICE,), root_path="/llm")
    scope = {"type": "http", "method": "GET", "path": "/llm/health", "root_path": "/llm"}
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", HOST.encode())]
    asyncio.run(door.guard({**scope, "headers": headers}, None, send))  # type: ignore[arg-type]
    assert sent[0]["status"] == 200


def test_keys_are_compared_with_all_of_them_and_in_constant_time() -> None:
    ring = KeyRing([ALICE, OPS, ApiKey("bob", "b")])
    assert ring.find(b"alice-secret") is ALICE
    assert ring.find(b"b") is not None
    assert ring.find(b"") is ring.find(b"alice-secret\x00") is ring.find(b"x" * 10_000) is None
    tree = ast.parse(textwrap.dedent(inspect.getsource(KeyRing.find)))
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For)]
    assert len(loops) == 1
    assert ast.unparse(loops[0].iter) == "self._keys"
    assert "hmac.compare_digest(known, digest)" in ast.unparse(loops[0])
    left_early = (ast.Break, ast.Return, ast.Continue, ast.Compare)
    assert not any(isinstance(node, left_early) for node in ast.walk(loops[0]))


# ---- hosts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8080", "127.0.0.1", "[::1]:8080", "127.1.2.3", "llm.localhost"]
)
def test_hosts_of_this_machine(host: str) -> None:
    assert Door().post(CHATS, host=host).status == 200


@pytest.mark.parametrize("path", DIALECTS)
@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "",
        "localhost.evil.example",
        "127.0.0.1.evil.example:8080",
        "8.8.8.8",
        ":8080",
        "127.0.0.1:80@evil.example",
        "localhost:80@evil.example",
        "[::1]evil.example",
        "[::1",
        "localhost:99999",
        "localhost:x",
        "localhost/evil.example",
    ],
)
def test_names_that_were_made_to_mean_this_machine(path: str, host: str) -> None:
    answer = Door().post(path, host=host)
    assert answer.status == 403
    assert "allowed_hosts" in answer.error["message"]


def test_two_hosts_are_none() -> None:
    door = Door()
    scope = {"type": "http", "method": "GET", "path": "/v1/models"}
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"host", b"evil.example")]
    asyncio.run(door.guard({**scope, "headers": headers}, None, send))  # type: ignore[arg-type]
    assert sent[0]["status"] == 403


def test_hosts_that_are_named() -> None:
    door = Door(allowed_hosts=("llm.example.org",))
    assert door.post(CHATS, host="LLM.example.org.:443").status == 200
    assert door.post(CHATS, host="localhost").status == 200
    assert door.post(CHATS, host="other.example.org").status == 403
    public = Door(host="0.0.0.0", allowed_hosts=("llm.example.org",), api_keys=(ALICE,))
    assert public.post(CHATS, host="llm.example.org", x_api_key=ALICE.key).status == 200
    assert public.post(CHATS, host="localhost", x_api_key=ALICE.key).status == 403
    anywhere = Door(host="0.0.0.0", api_keys=(ALICE,))
    assert anywhere.post(CHATS, host="whatever", x_api_key=ALICE.key).status == 200
    assert Door(allowed_hosts=("*",)).post(CHATS, host="").status == 200
    assert Door(host="unix:/run/llm.sock").post(CHATS, host="").status == 200


def test_hosts_of_a_server_with_several_addresses() -> None:
    local = Door(host="unix:/run/llm.sock,127.0.0.1,::1")
    assert local.post(CHATS, host="localhost").status == 200
    assert local.post(CHATS, host="evil.example").status == 403
    mixed = Door(host="127.0.0.1,192.168.0.7", api_keys=(ALICE,))
    assert mixed.post(CHATS, host="192.168.0.7:8080", x_api_key=ALICE.key).status == 200
    named = Door(host="127.0.0.1,192.168.0.7", allowed_hosts=("llm",), api_keys=(ALICE,))
    for host, status in (("llm", 200), ("localhost", 200), ("evil.example", 403)):
        assert named.post(CHATS, host=host, x_api_key=ALICE.key).status == status


# ---- origins -----------------------------------------------------------------------------------

APP = "https://app.example.org"


@pytest.mark.parametrize("path", DIALECTS)
@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "null",
        "http://127.0.0.1:9999",
        "http://localhost:8080",
        "http://127.0.0.1:x",
        "app://x",
        "http://evil@127.0.0.1",
        "http://127.0.0.1/evil",
    ],
)
def test_pages_of_others_may_not_call(path: str, origin: str) -> None:
    door = Door(cors_origins=(APP,))
    answer = door.post(path, origin=origin)
    assert answer.status == 403
    assert "cors_origins" in answer.error["message"]
    assert "access-control-allow-origin" not in answer.headers
    assert door.callers == []
    preflight = {"origin": origin, "access-control-request-method": "POST"}
    assert door.ask("OPTIONS", path, preflight).status == 403


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost", 200),
        ("http://localhost:3000", 200),
        ("https://127.0.0.1:8443", 200),
        ("http://[::1]:3000", 200),
        ("http://app.localhost:3000", 200),
        ("http://localhost.evil.example", 403),
        ("http://notlocalhost", 403),
        ("http://127.0.0.1.evil.example", 403),
        ("http://evil@127.0.0.1", 403),
        ("http://127.0.0.1:80@evil.example", 403),
        ("http://[::1", 403),
        ("file://localhost", 403),
        ("null", 403),
    ],
)
def test_pages_of_this_machine_may_call_where_they_are_named(origin: str, status: int) -> None:
    door = Door(cors_origins=("localhost",))
    answer = door.post(CHATS, origin=origin)
    assert answer.status == status
    allowed = origin if status == 200 else None
    assert answer.headers.get("access-control-allow-origin") == allowed


def test_pages_of_this_server_may_call() -> None:
    door = Door(allowed_hosts=("llm.example.org",))
    assert door.post(CHATS, origin=f"http://{HOST}").status == 200
    answer = door.post(CHATS, host="llm.example.org", origin="https://LLM.example.org")
    assert answer.status == 200
    assert "access-control-allow-origin" not in answer.headers
    assert answer.headers["vary"] == "Origin"
    rewritten = {"origin": "https://llm.example.org", "sec-fetch-site": "same-origin"}
    assert door.ask("POST", CHATS, {**JSON, **rewritten}).status == 200


def test_pages_that_are_named_may_call() -> None:
    door = Door(cors_origins=(APP,), api_keys=(ALICE,))
    answer = door.post(CHATS, origin=APP, x_api_key=ALICE.key)
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == APP
    assert answer.headers["vary"] == "Origin"
    assert "request-id" in answer.headers["access-control-expose-headers"]
    assert "access-control-allow-credentials" not in answer.headers
    refused = door.post(CHATS, origin=APP)  # a page can read why
    assert (refused.status, refused.headers["access-control-allow-origin"]) == (401, APP)
    asking = {
        "origin": APP,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, content-type, x-stainless-os",
    }
    preflight = door.ask("OPTIONS", CHATS, asking)
    assert preflight.status == 204
    assert preflight.headers["access-control-allow-origin"] == APP
    assert preflight.headers["access-control-allow-headers"].startswith("authorization, ")
    assert preflight.headers["access-control-allow-methods"] == "GET, POST, DELETE"
    odd = door.ask("OPTIONS", CHATS, {**asking, "access-control-request-headers": "a\x7f"})
    assert "access-control-allow-headers" not in odd.headers


def test_any_page_may_call_if_the_settings_say_so_but_without_credentials() -> None:
    answer = Door(cors_origins=("*",)).post(CHATS, origin="https://evil.example")
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, "*")
    assert "access-control-allow-credentials" not in answer.headers


def test_pages_of_others_may_not_load_anything() -> None:
    door = Door()
    image = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    for path in ("/slots", "/v1/models", "/page/js/app.js"):
        assert door.ask("GET", path, image).status == 403
        assert door.ask("GET", path, {**image, "sec-fetch-site": "same-origin"}).status == 200
        assert door.ask("GET", path, {**image, "sec-fetch-mode": "navigate"}).status == 200
    form = {**JSON, "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert door.ask("POST", CHATS, form).status == 403
    assert Door(cors_origins=("*",)).ask("GET", "/v1/models", image).status == 200


def test_options_needs_no_key_and_reaches_nothing() -> None:
    door = Door(api_keys=(ALICE,))
    answer = door.ask("OPTIONS", CHATS)
    assert (answer.status, answer.body, door.callers) == (204, b"", [])


# ---- bodies and headers ------------------------------------------------------------------------


@pytest.mark.parametrize("path", DIALECTS)
@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "application/jsonp"]
)
def test_a_body_has_to_say_that_it_is_json(path: str, kind: str) -> None:
    answer = Door().post(path, content_type=kind)
    assert (answer.status, answer.error["type"]) == (415, "invalid_request_error")
    assert "Content-Type: application/json" in answer.error["message"]


def test_what_json_may_be_called() -> None:
    door = Door()
    assert door.post(CHATS, content_type="Application/JSON; charset=utf-8").status == 200
    assert door.ask("POST", "/slots/0").status == 200  # no body, nothing to be said about it
    chunked = {"transfer-encoding": "chunked"}
    assert door.ask("POST", CHATS, chunked).status == 415
    assert door.post(CHATS, content_encoding="gzip").status == 415


@pytest.mark.parametrize(
    ("path", "kind"),
    [*zip(DIALECTS, ["invalid_request_error"] * 2 + ["request_too_large"], strict=True)],
)
def test_a_body_that_says_it_is_too_large_is_not_read(path: str, kind: str) -> None:
    door = Door(max_body_bytes=2000)
    for length in ("2001", "9" * 30):
        answer = door.post(path, content_length=length)
        assert (answer.status, answer.error["type"]) == (413, kind)
        message = answer.error["message"]
        assert "larger than the limit of 2000 bytes" in message
        assert not any(word in message for word in ("prompt", "context", "token"))
    assert door.post(path, content_length="2000").status == 200


@pytest.mark.parametrize("path", DIALECTS)
def test_too_many_headers_and_too_large_ones(path: str) -> None:
    door = Door(max_headers=10, max_header_bytes=2000)
    assert door.post(path, **{f"x-{n}": "1" for n in range(7)}).status == 200
    for headers in ({f"x-{n}": "1" for n in range(8)}, {"x": "1" * 2000}):
        answer = door.post(path, **headers)
        assert (answer.status, answer.error["type"]) == (431, "invalid_request_error")


@pytest.mark.parametrize("path", DIALECTS)
def test_the_line_of_a_request_counts_with_its_headers(path: str) -> None:
    door = Door(max_header_bytes=2000)
    assert door.post(f"{path}?{'a' * 1500}").status == 200
    answer = door.post(f"{path}?{'a' * 2000}")
    assert (answer.status, answer.error["type"]) == (431, "invalid_request_error")


# ---- how much ----------------------------------------------------------------------------------


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_requests_per_minute() -> None:
    clock = Clock()
    allowance = Allowance(ApiKey("a", "k", requests_per_minute=3), clock)
    assert [allowance.begin() for _ in range(3)] == [None] * 3
    assert allowance.begin() == ("this API key allows 3 requests per minute", 20)
    clock.now += 19.5
    assert allowance.begin() == ("this API key allows 3 requests per minute", 1)
    clock.now += 0.5
    assert allowance.begin() is None
    clock.now += 3600  # what was not used does not add up
    assert [allowance.begin() is None for _ in range(4)] == [True, True, True, False]


def test_requests_at_a_time() -> None:
    allowance = Allowance(ApiKey("a", "k", max_concurrent=2))
    assert [allowance.begin() is None for _ in range(3)] == [True, True, False]
    allowance.end()
    assert allowance.begin() is None


@pytest.mark.parametrize(("path", "kind"), [*zip(DIALECTS, ["rate_limit_error"] * 3, strict=True)])
def test_a_key_that_asks_too_often(path: str, kind: str) -> None:
    door = Door(api_keys=(ApiKey("a", "k", requests_per_minute=1), ALICE))
    assert door.post(path, x_api_key="k").status == 200
    answer = door.post(path, x_api_key="k")
    assert (answer.status, answer.error["type"]) == (429, kind)
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert door.post(path, x_api_key=ALICE.key).status == 200
    assert len(door.callers) == 2


def test_a_key_that_asks_too_much_at_a_time() -> None:
    door = Door(api_keys=(ApiKey("a", "k", max_concurrent=1),))
    headers = {**JSON, "x-api-key": "k"}

    async def both() -> list[int]:
        calls = [door.call("POST", CHATS, headers) for _ in range(2)]
        return [answer.status for answer in await asyncio.gather(*calls)]

    assert sorted(asyncio.run(both())) == [200, 429]
    door.body = lambda: 1 / 0
    assert door.ask("POST", CHATS, headers).status == 500
    door.body = lambda: None
    assert door.ask("POST", CHATS, headers).status == 200  # the place was given back


# ---- loading and draining ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "status", "kind"),
    [
        (CHATS, 503, "unavailable_error"),
        (RESPONSES, 503, "unavailable_error"),
        (MESSAGES, 529, "overloaded_error"),
    ],
)
@pytest.mark.parametrize("phase", [Phase.LOADING, Phase.DRAINING])
def test_nobody_is_let_in_before_and_after(path: str, status: int, kind: str, phase: Phase) -> None:
    door = Door()
    door.lifecycle.phase = phase
    answer = door.post(path)
    assert (answer.status, answer.error["type"]) == (status, kind)
    assert int(answer.headers["retry-after"]) >= 1
    assert door.ask("GET", "/health").status == door.ask("GET", "/metrics").status == 200
    door.lifecycle.phase = Phase.READY
    assert door.post(path).status == 200


def test_it_is_known_when_nothing_is_in_flight() -> None:
    door = Door()

    async def drain() -> tuple[bool, bool, int]:
        assert await door.lifecycle.until_idle(0)
        call = asyncio.ensure_future(door.call("GET", "/v1/models"))
        await asyncio.sleep(0)
        running = door.lifecycle.in_flight
        early = await door.lifecycle.until_idle(0)
        late = await door.lifecycle.until_idle(5)
        await call
        return early, late, running

    assert asyncio.run(drain()) == (False, True, 1)
    assert door.lifecycle.in_flight == 0


@pytest.mark.parametrize(("path", "status"), [(CHATS, 503), (MESSAGES, 529)])
def test_what_ends_with_the_server_is_told_so(path: str, status: int) -> None:
    door = Door()

    def cancelled() -> None:  # as uvicorn does when it has waited for long enough
        raise asyncio.CancelledError

    door.body = cancelled
    answer = door.post(path)
    assert (answer.status, answer.headers["retry-after"]) == (status, "5")
    assert "stopped" in answer.error["message"]
    assert door.lifecycle.in_flight == 0


# ---- everything else ---------------------------------------------------------------------------


def test_requests_have_an_id() -> None:
    door = Door()
    answer = door.post(CHATS, x_request_id="trace-1:a/b")
    assert answer.headers["x-request-id"] == answer.headers["request-id"] == "trace-1:a/b"
    for bad in ("a" * 129, "a b", "a\nb", "é", '"'):
        made = door.post(CHATS, x_request_id=bad).headers["x-request-id"]
        assert made.startswith("req_")
        assert len(made) == 36
    assert door.post(MESSAGES, host="evil", x_request_id="r1").error
    assert (door.records[0].id, door.records[-1].id) == ("trace-1:a/b", "r1")


def test_a_handler_that_crashes_says_nothing_about_it(caplog: pytest.LogCaptureFixture) -> None:
    door = Door()

    def crash() -> None:
        raise ValueError("the secret plan at 0x7f00")

    door.body = crash
    for path in DIALECTS:
        answer = door.post(path)
        assert answer.status == 500
        assert "secret plan" not in answer.body.decode()
        assert answer.error["message"].startswith("the server failed")
    assert "the secret plan" in caplog.text


def test_web_sockets_are_refused() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    door = Door()
    asyncio.run(door.guard({"type": "websocket", "path": "/v1/responses"}, None, send))  # type: ignore[arg-type]
    assert sent[0]["type"] == "websocket.close"
    assert door.callers == []
