"""Who may do what: every route with every kind of credential, the right ones and the wrong ones."""

import base64
import json
import time

import jwt
import pytest
from fastapi import APIRouter

from app.api.gate import OPEN_PATHS
from app.api.wire import JsonRoute
from app.config import Settings
from app.main import ROUTERS, create_app
from tests.api.credentials import (
    AS_SERVICE,
    KEY,
    OF_ALL_SESSIONS,
    SCOPES,
    SECRET,
    bearer,
    guarded,
    requests,
    seed,
    token,
)
from tests.conftest import serving
from tests.upstream import Answer, scripted_upstream


@pytest.fixture(scope="module")
def upstream():
    with scripted_upstream() as running:
        running.reset(*[Answer("We did.")] * 400)
        yield running


@pytest.fixture(scope="module")
async def client(shared_database_url, upstream):
    async with guarded(shared_database_url, upstream_url=upstream.url) as http:
        yield http


def slug(response):
    body = response.json()
    return body["error"]["code"].replace("_", "-") if "error" in body else body["type"].rsplit(":", 1)[1]


async def send(client, request, credential):
    method, path, options, _ = request
    response = await client.request(method, path, headers=bearer(credential), **options)
    if method != "HEAD":
        return response
    told = await client.get(path, headers=bearer(credential), **options)  # HEAD says no more than the status.
    assert (response.content, response.status_code) == (b"", told.status_code)
    return told


def test_a_route_without_a_requirement_cannot_be_made():
    router = APIRouter(route_class=JsonRoute)

    async def anybody():
        return None

    with pytest.raises(TypeError, match="anybody does not say who may call it"):
        router.get("/v1/anybody")(anybody)


def test_every_route_declares_what_it_needs():
    app = create_app(Settings(_env_file=None), database_url="postgresql://localhost/none")
    routes = [route for router in ROUTERS for route in router.routes]
    assert len(routes) > 30
    assert all(isinstance(route, JsonRoute) for route in routes)
    open_paths = {route.path for route in routes if route.need == "nothing"}
    others = {route.path for route in app.routes if hasattr(route, "path") and not hasattr(route, "need")}
    # Beyond what declares itself, the framework's own document and its page.
    assert open_paths == OPEN_PATHS - {"/openapi.json", "/docs"}
    assert others - OPEN_PATHS == {"/docs/oauth2-redirect"}


async def test_the_table_of_requests_has_every_operation(client):
    document = (await client.get("/openapi.json")).json()
    known = {name.split()[0] for name in requests("s", "u")} | {"get_health", "get_readiness"}
    named = {operation["operationId"] for path in document["paths"].values() for operation in path.values()}
    assert named - known == set(), "add a request for it to tests/api/credentials.py"


async def test_each_route_is_open_to_its_own_user_and_to_a_service_key(client):
    for name, credential in (("key", KEY), ("user", None)):
        session, user = f"own-{name}", f"owner-{name}"
        await seed(client, session, user)
        given = credential or await token(client, user_id=user)
        for operation, request in requests(session, user).items():
            response = await send(client, request, given)
            if request[3] == "service_key" and credential is None:
                assert (response.status_code, slug(response)) == (403, "service-key-needed"), operation
            else:
                assert response.is_success, (operation, response.text)


async def test_each_route_is_open_to_a_token_of_its_session_or_says_that_it_reaches_further(client):
    await seed(client, "narrow", "nora")
    given = await token(client, session_id="narrow")
    is_deleted = False
    for operation, request in requests("narrow", "nora").items():
        response = await send(client, request, given)
        if is_deleted:
            assert (response.status_code, slug(response)) == (401, "unauthorized"), operation
        elif request[3] == "service_key":
            assert (response.status_code, slug(response)) == (403, "service-key-needed"), operation
        elif operation in OF_ALL_SESSIONS:
            assert (response.status_code, slug(response)) == (403, "forbidden"), operation
        else:
            assert response.is_success, (operation, response.text)
        is_deleted = is_deleted or operation == "delete_session"


@pytest.mark.parametrize("bound", ["user", "session"])
async def test_each_route_refuses_a_token_without_its_scope(client, bound):
    session, user = f"scopes-{bound}", f"scoped-{bound}"
    await seed(client, session, user)
    binding = {"user_id": user} if bound == "user" else {"session_id": session}
    for operation, request in requests(session, user).items():
        if request[3] in {None, "service_key"}:
            continue
        without = await token(client, **binding, scopes=[scope for scope in SCOPES if scope != request[3]])
        response = await send(client, request, without)
        assert (response.status_code, slug(response)) == (403, "scope-missing"), operation
        assert repr(request[3]) in response.text


@pytest.mark.parametrize("bound", ["user", "session"])
async def test_no_route_lets_a_token_reach_another_user(client, bound):
    await seed(client, f"mine-{bound}", f"me-{bound}")
    await seed(client, f"theirs-{bound}", f"them-{bound}")
    binding = {"user_id": f"me-{bound}"} if bound == "user" else {"session_id": f"mine-{bound}"}
    given = await token(client, **binding)
    for operation, request in requests(f"theirs-{bound}", f"them-{bound}").items():
        if request[3] is None:
            continue
        response = await send(client, request, given)
        assert "decided on PostgreSQL" not in response.text, operation
        by_session = request[1].startswith("/v1/sessions/") or operation in {"chat", "chat_completions"}
        if request[3] == "service_key" or not by_session:
            expected = (403, "service-key-needed" if request[3] == "service_key" else "forbidden")
        else:
            expected = (404, "session-not-found")
        if operation == "list_models":
            assert response.is_success
        else:
            assert (response.status_code, slug(response)) == expected, (operation, response.text)
    # Nothing of the other user's was changed.
    theirs = await client.get(f"/v1/sessions/theirs-{bound}/events", headers=AS_SERVICE)
    assert [event["id"] for event in theirs.json()["events"]] == ["e1"]
    file = await client.get(f"/v1/memories/them-{bound}/file?path=a.md", headers=AS_SERVICE)
    assert file.text == f"of them-{bound}"


_EVENT = {"message": {"role": "user", "content": "x"}}

BODIES = [
    ("POST", "/v1/sessions", {"user_id": "eve"}, 403),
    ("POST", "/v1/sessions", {"id": "wide-own", "user_id": "eve"}, 403),
    ("PUT", "/v1/sessions/wide-own", {"user_id": "eve"}, 403),
    ("PUT", "/v1/sessions/wide-new", {"user_id": "eve"}, 403),
    ("POST", "/v1/sessions/wide-own/events", {"user_id": "eve", "events": []}, 422),
    ("POST", "/v1/sessions/wide-own/events", {"user_id": "eve", "events": [_EVENT]}, 403),
    ("POST", "/v1/sessions/wide-new/events", {"user_id": "eve", "events": [_EVENT]}, 403),
    ("POST", "/v1/sessions/wide-own/events", {"events": [_EVENT | {"synthetic": True}]}, 403),
    *(
        ("POST", path, {"session_id": session, "messages": [{"role": "user", "content": "x"}], **more}, status)
        for path in ("/v1/chat", "/v1/chat/completions")
        for session, more, status in (
            ("wide-own", {"user_id": "eve"}, 403),
            ("wide-new", {"user_id": "eve"}, 403),
            ("wide-eve", {}, 404),
            ("wide-eve", {"user_id": "wide"}, 404),
            ("wide-own", {"memory": {"store": "eve"}}, 403),
            ("wide-own", {"memory": {"long_term": True, "store": "eve"}}, 403),
            ("wide-own", {"memory": {"long_term": True, "store": "shared:team"}}, 403),
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize("bound", ["user", "session"])
@pytest.mark.parametrize(("method", "path", "body", "status"), BODIES)
async def test_what_a_body_says_never_widens_a_token(client, upstream, bound, method, path, body, status):
    await seed(client, "wide-own", "wide")
    await seed(client, "wide-eve", "eve")
    given = await token(client, **({"user_id": "wide"} if bound == "user" else {"session_id": "wide-own"}))
    asked = len(upstream.requests)
    response = await client.request(method, path, json=body, headers=bearer(given))
    if bound == "session" and ("wide-new" in path or body.get("session_id") == "wide-new"):
        status = 404
    assert response.status_code == status, response.text
    assert len(upstream.requests) == asked
    assert (await client.get("/v1/sessions/wide-new", headers=AS_SERVICE)).status_code == 404


async def test_what_headers_say_never_widens_a_token(client):
    await seed(client, "heads-own", "heads")
    await seed(client, "heads-eve", "eve-2")
    given = await token(client, user_id="heads")
    body = {"messages": [{"role": "user", "content": "x"}]}
    for headers, status in (
        ({"X-Session-Id": "heads-eve"}, 404),
        ({"X-Session-Id": "heads-own", "X-User-Id": "eve-2"}, 403),
        ({"X-Session-Id": "heads-new", "X-User-Id": "eve-2"}, 403),
        ({"X-Session-Id": "heads-new"}, 200),
    ):
        response = await client.post("/v1/chat", json=body, headers=bearer(given) | headers)
        assert response.status_code == status, (headers, response.text)
    made = await client.get("/v1/sessions/heads-new", headers=AS_SERVICE)
    assert made.json()["user_id"] == "heads"


async def test_a_token_gets_of_the_chats_defaults_what_it_reaches(shared_database_url, upstream):
    settings = {"upstream_url": upstream.url, "chat_memory": {"recall": True, "long_term": True}}
    async with guarded(shared_database_url, **settings) as client:
        for scopes, tools in (
            (["chat"], 0),
            (["chat", "search"], 1),
            (["chat", "memory"], 6),
            (SCOPES, 7),
        ):
            given = await token(client, user_id="default", scopes=scopes)
            body = {"session_id": f"d{tools}", "messages": [{"role": "user", "content": "x"}]}
            assert (await client.post("/v1/chat", json=body, headers=bearer(given))).is_success
            assert len(upstream.requests[-1].get("tools", [])) == tools
            for option, scope in (("recall", "search"), ("long_term", "memory")):
                asked = {**body, "memory": {option: True}}
                response = await client.post("/v1/chat", json=asked, headers=bearer(given))
                assert response.is_success is (scope in scopes)


async def test_lists_over_all_users_take_a_service_key(client):
    for binding in ({"user_id": "lister"}, {"session_id": "lists"}):
        await seed(client, "lists", "lister")
        response = await client.get("/v1/sessions", headers=bearer(await token(client, **binding)))
        assert (response.status_code, slug(response)) == (403, "service-key-needed")
    for store in ("shared:team", "shared:"):
        response = await client.get(
            f"/v1/memories/{store}/files", headers=bearer(await token(client, user_id="team"))
        )
        assert response.status_code in {403, 422}
    assert (await client.get("/v1/memories/shared:team/files", headers=AS_SERVICE)).is_success


def forged(**changed):
    """A token that is valid but for what is changed; None leaves a claim out."""
    now = time.time()
    claims = {
        "iss": "turnkeeper",
        "aud": "turnkeeper",
        "sub": "mallory",
        "scopes": SCOPES,
        "iat": now,
        "exp": now + 60,
    }
    options = {"key": changed.pop("key", SECRET), "algorithm": changed.pop("algorithm", "HS256")}
    claims = {name: value for name, value in (claims | changed).items() if value is not None}
    return jwt.encode(claims, **options)


def unsigned():
    header, claims, _ = forged().split(".")
    none = base64.urlsafe_b64encode(b'{"alg":"none","typ":"JWT"}').decode().rstrip("=")
    return [f"{none}.{claims}.", f"{header}.{claims}.", f"{none}.{claims}.{'A' * 43}", f".{claims}.", "..", "a.b.c"]


@pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning")  # The short keys are the attacker's.
async def test_every_route_refuses_every_wrong_token(client):
    await seed(client, "stale", "mallory")
    of_session = jwt.decode(await token(client, session_id="stale"), SECRET, ["HS256"], audience="turnkeeper")
    deep = base64.urlsafe_b64encode(b"[" * 20_000).decode().rstrip("=")
    wrong = [
        *unsigned(),
        *(forged(**{claim: None}) for claim in ("iss", "aud", "exp", "iat", "sub", "scopes")),
        *(forged(key=key) for key in (KEY, SECRET[:-1], "x" * 32)),
        *(forged(algorithm=algorithm) for algorithm in ("HS384", "HS512")),
        *(forged(exp=exp) for exp in (1, time.time() - 1, "soon", [], -1)),
        *(forged(iss=iss) for iss in ("", "other")),
        *(forged(aud=aud) for aud in ("", "other", ["other"])),
        *(forged(scopes=scopes) for scopes in ("read", {}, 1)),
        forged(iat="now"),
        forged(sid="stale"),
        forged(sid="stale", mark="0" * 32),
        forged(sid="stale", mark=1),
        forged(sid="other", mark=of_session["mark"]),
        f"{deep}.{deep}.AAAA",
        forged().replace(".", ". "),
        forged()[:-2],
    ]
    for operation, request in requests("stale", "mallory").items():
        for credential in wrong:
            response = await send(client, request, credential)
            assert (response.status_code, slug(response)) == (401, "unauthorized"), (operation, credential)
            assert response.headers["WWW-Authenticate"] == "Bearer"
    assert (await send(client, requests("stale", "mallory")["get_session"], forged())).is_success


async def test_a_token_ends_with_its_session_also_when_that_is_created_anew(client):
    for end in ("delete", "expire", "recreate", "erase"):
        session, user = f"end-{end}", f"ended-{end}"
        await seed(client, session, user)
        given = await token(client, session_id=session)
        if end == "expire":
            body = {"expires_at": "2001-01-01T00:00:00Z"}
            assert (await client.patch(f"/v1/sessions/{session}", json=body, headers=AS_SERVICE)).is_success
        elif end == "erase":
            assert (await client.delete(f"/v1/users/{user}", headers=AS_SERVICE)).is_success
        else:
            assert (await client.delete(f"/v1/sessions/{session}", headers=AS_SERVICE)).is_success
        if end == "recreate":
            await seed(client, session, user)
        for operation, request in requests(session, user).items():
            response = await send(client, request, given)
            assert response.status_code == 401, (end, operation)


async def test_a_users_token_ends_with_the_user_and_a_new_one_begins(client):
    await seed(client, "again", "phoenix")
    before = await token(client, user_id="phoenix")
    assert (await client.delete("/v1/users/phoenix", headers=AS_SERVICE)).is_success
    for operation, request in requests("again", "phoenix").items():
        assert (await send(client, request, before)).status_code == 401, operation
    after = await token(client, user_id="phoenix")
    assert (await client.get("/v1/sessions?user_id=phoenix", headers=bearer(after))).is_success
    assert (await client.get("/v1/sessions?user_id=phoenix", headers=bearer(before))).status_code == 401


async def test_of_two_secrets_the_first_signs_and_both_are_accepted(shared_database_url, client):
    old = await token(client, user_id="rotated")
    newer = "another secret of at least 32 bytes"
    path = "/v1/sessions?user_id=rotated"
    async with serving(shared_database_url, api_keys=(KEY,), token_secret=(newer, SECRET)) as both:
        new = await token(both, user_id="rotated")
        await seed(both, "rotates", "rotated")
        of_session = await token(client, session_id="rotates")
        assert (await both.get("/v1/sessions/rotates", headers=bearer(of_session))).is_success
        for given in (old, new):
            assert (await both.get(path, headers=bearer(given))).is_success
    async with serving(shared_database_url, api_keys=(KEY,), token_secret=(newer,)) as later:
        assert (await later.get(path, headers=bearer(new))).is_success
        assert (await later.get(path, headers=bearer(old))).status_code == 401
    assert (await client.get(path, headers=bearer(new))).status_code == 401


TOKEN_BODIES = [
    {},
    {"scopes": SCOPES},
    {"user_id": "a"},
    {"user_id": "a", "session_id": "b", "scopes": SCOPES},
    {"user_id": "a", "scopes": []},
    {"user_id": "a", "scopes": None},
    {"user_id": "a", "scopes": "read"},
    {"user_id": "a", "scopes": ["read", "admin"]},
    {"user_id": "a", "scopes": ["*"]},
    {"user_id": "", "scopes": SCOPES},
    {"user_id": "a/b", "scopes": SCOPES},
    {"user_id": "shared:team", "scopes": SCOPES},
    {"session_id": "..", "scopes": SCOPES},
    {"user_id": "a\u0000", "scopes": SCOPES},
    *({"user_id": "a", "scopes": SCOPES, "ttl_seconds": ttl} for ttl in (0, -1, 2_592_001, 1.5, "60", True, 10**30)),
    {"user_id": "a", "scopes": SCOPES, "aud": "x"},
]


@pytest.mark.parametrize("body", TOKEN_BODIES, ids=json.dumps)
async def test_a_token_is_asked_for_rightly_or_not_made(client, body):
    response = await client.post("/v1/tokens", json=body, headers=AS_SERVICE)
    assert response.status_code == 422
    assert response.json()["errors"]


async def test_what_a_token_says_of_itself(client):
    await seed(client, "told", "tom")
    made = await client.post("/v1/tokens", json={"user_id": "tom", "scopes": ["read", "read"]}, headers=AS_SERVICE)
    claims = jwt.decode(made.json()["token"], options={"verify_signature": False})
    assert claims["exp"] - claims["iat"] == pytest.approx(3_600, abs=1)
    assert made.json()["expires_at"].startswith(time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(claims["exp"])))
    body = {"session_id": "told", "scopes": ["chat"], "ttl_seconds": 60}
    made = await client.post("/v1/tokens", json=body, headers=AS_SERVICE)
    claims = jwt.decode(made.json()["token"], options={"verify_signature": False})
    assert set(claims) == {"iss", "aud", "iat", "exp", "sub", "sid", "mark", "scopes"}
    unknown = await client.post("/v1/tokens", json={"session_id": "no", "scopes": ["chat"]}, headers=AS_SERVICE)
    assert (unknown.status_code, slug(unknown)) == (404, "session-not-found")


async def test_without_a_secret_there_are_no_tokens(shared_database_url):
    async with serving(shared_database_url, api_keys=(KEY,)) as client:
        response = await client.post("/v1/tokens", json={"user_id": "a", "scopes": ["read"]}, headers=AS_SERVICE)
        assert (response.status_code, slug(response)) == (503, "tokens-not-configured")
        assert (await client.get("/v1/sessions", headers=bearer(forged()))).status_code == 401


async def test_a_service_without_keys_is_open_but_a_token_is_a_token(shared_database_url, client):
    await seed(client, "open-own", "oscar")
    await seed(client, "open-eve", "eve-3")
    given = await token(client, user_id="oscar")
    async with serving(shared_database_url, token_secret=(SECRET,)) as keyless:
        for headers in ({}, bearer("unused"), bearer("sk-whatever"), {"Authorization": "Basic eA=="}):
            assert (await keyless.get("/v1/sessions/open-eve", headers=headers)).is_success
        assert (await keyless.get("/v1/sessions/open-own", headers=bearer(given))).is_success
        assert (await keyless.get("/v1/sessions/open-eve", headers=bearer(given))).status_code == 404
        assert (await keyless.get("/v1/sessions/open-own", headers=bearer(given[:-3]))).status_code == 401


async def test_a_hostile_id_in_a_path_is_no_different_for_a_token(client):
    given = await token(client, user_id="hostile")
    for path in ("%00", "a%00b", "x" * 256, "%01", "%F0%9F%98%80", "shared:x"):
        response = await client.get(f"/v1/sessions/{path}", headers=bearer(given))
        assert response.status_code in {404, 422}, path
        for place in (f"/v1/users/{path}/events", f"/v1/memories/{path}/files"):
            assert (await client.get(place, headers=bearer(given))).status_code in {403, 422}, place
