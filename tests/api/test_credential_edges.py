"""What a holder of a low token may try beyond the plain routes: probing, odd spellings, odd claims, defaults."""

import base64
import math
import time

import jwt
import pytest

from app.api.gate import OPEN_PATHS
from app.domain.errors import NotOwner
from app.domain.events import NewEvent
from app.domain.sessions import Lifetime, NewSession
from app.services.append import append_events
from app.storage import sessions
from tests.api.credentials import AS_SERVICE, KEY, SCOPES, SECRET, bearer, guarded, seed, token
from tests.conftest import serving
from tests.upstream import Answer, scripted_upstream

QUESTION = [{"role": "user", "content": "x"}]


@pytest.fixture(scope="module")
def upstream():
    with scripted_upstream() as running:
        running.reset(*[Answer("We did.")] * 40)
        yield running


@pytest.fixture(scope="module")
async def client(shared_database_url, upstream):
    async with guarded(shared_database_url, upstream_url=upstream.url) as http:
        yield http


# Wrong or right, of routes that create no session: by scope.
PROBES = [
    ("GET", "", {}, "read"),
    ("GET", "/events?last_n=0", {}, "read"),
    ("GET", "/events/e1", {}, "read"),
    ("GET", "/context?max_tokens=0", {}, "read"),
    ("POST", "/events/query", {"json": {"last_n": 0}}, "read"),
    ("POST", "/events/query", {"content": b"{"}, "read"),
    ("POST", "/search", {"json": {"query": ""}}, "search"),
    ("POST", "/search", {"json": {"query": "x", "page_size": 1000}}, "search"),
    ("POST", "/tools/cross_session_search", {"json": {"query": "x"}}, "search"),
    ("POST", "/tools/nothing", {"json": {}}, "search"),
    ("POST", "/tools/MemoryView", {"json": {"path": 1}}, "memory"),
    ("POST", "/compact", {"json": {"strategy": {}}}, "chat"),
    ("POST", "/compact", {"content": b"[]"}, "chat"),
    ("PATCH", "", {"json": {"unknown": 1}}, "write"),
    ("PATCH", "", {"json": {"metadata": {"a": 1}}}, "write"),
    ("DELETE", "", {}, "write"),
]


@pytest.mark.parametrize("bound", ["user", "session"])
async def test_a_token_cannot_tell_another_users_session_from_none(client, bound):
    await seed(client, "probe-own", "prober")
    await seed(client, "probe-theirs", "probed")
    binding = {"user_id": "prober"} if bound == "user" else {"session_id": "probe-own"}
    for method, path, options, scope in PROBES:
        given = bearer(await token(client, **binding, scopes=[scope]))
        told = []
        for session in ("probe-theirs", "probe-absent"):
            answer = await client.request(method, f"/v1/sessions/{session}{path}", headers=given, **options)
            body = {name: value for name, value in answer.json().items() if name != "request_id"}
            told.append((answer.status_code, str(body).replace(session, "SESSION")))
        assert told[0] == told[1], (method, path)
        assert told[0][0] == 404


async def test_a_users_token_still_creates_sessions_by_put_append_and_chat(client):
    await seed(client, "makes-own", "maker")
    given = bearer(await token(client, user_id="maker"))
    event = {"message": {"role": "user", "content": "x"}}
    for method, path, body in (
        ("PUT", "/v1/sessions/makes-1", {"user_id": "maker"}),
        ("POST", "/v1/sessions/makes-2/events", {"user_id": "maker", "events": [event]}),
        ("POST", "/v1/chat", {"session_id": "makes-3", "messages": QUESTION}),
    ):
        answer = await client.request(method, path, json=body, headers=given)
        assert answer.is_success, answer.text
    without_owner = await client.post("/v1/sessions/makes-4/events", json={"events": [event]}, headers=given)
    assert without_owner.status_code == 404


@pytest.mark.parametrize("path", ["/v1/chat", "/v1/chat/completions"])
async def test_a_sessions_token_need_not_name_its_session_in_a_chat(client, path):
    await seed(client, "implied", "implier")
    given = bearer(await token(client, session_id="implied"))
    for names in ({}, {"session_id": ""}, {"session_id": " "}, {"user_id": "implier"}):
        answer = await client.post(path, json={**names, "messages": QUESTION}, headers=given)
        assert (answer.status_code, answer.headers["X-Session-Id"]) == (200, "implied"), answer.text
    of_user = bearer(await token(client, user_id="implier"))
    assert (await client.post(path, json={"messages": QUESTION}, headers=of_user)).status_code == 400


def signed(secret=SECRET, **changed):
    """A token signed by who knows the secret."""
    now = time.time()
    claims = {"iss": "turnkeeper", "aud": "turnkeeper", "sub": "odd", "scopes": SCOPES, "iat": now, "exp": now + 60}
    return jwt.encode(claims | changed, secret, "HS256")


SURROGATE, TOO_LONG, MONTH = "\ud800", "x" * 256, 30 * 24 * 3600
ODD_CLAIMS = [
    *({"sub": sub} for sub in ("", "a/b", "a\0b", "..", SURROGATE, TOO_LONG, "shared:team")),
    *({"sid": sid, "mark": "0" * 32} for sid in (1, [], {}, None, "", "a\0b", SURROGATE, TOO_LONG)),
    *({"sid": "odd", "mark": mark} for mark in (1, [], "é" * 32, SURROGATE)),
    *({"scopes": scopes} for scopes in ([1], [["read"]], [{}], [None])),
    *({"iat": iat} for iat in (math.nan, math.inf, -math.inf, True, "1", [])),
    *({"exp": exp} for exp in (math.nan, math.inf, True, "9999999999", 10**30)),
    {"exp": time.time() + MONTH + 3600},
]


async def test_a_signed_token_with_odd_claims_is_a_401(client):
    await seed(client, "odd", "odd")
    of_user = "/v1/sessions?user_id=odd"
    assert (await client.get(of_user, headers=bearer(signed()))).is_success
    for claims in ODD_CLAIMS:
        for path in (of_user, "/v1/sessions/odd", "/v1/tools"):
            answer = await client.get(path, headers=bearer(signed(**claims)))
            assert answer.status_code == 401, (claims, path, answer.text)


def misspelt(given):
    """The same token for a lenient decoder."""
    rest, signature = given.rsplit(".", 1)
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    next_of_last = alphabet[alphabet.index(signature[-1]) + 1]  # The last two of its bits say nothing.
    assert base64.urlsafe_b64decode(f"{signature[:-1]}{next_of_last}=") == base64.urlsafe_b64decode(f"{signature}=")
    return [
        f"{given}=",
        f"{given}==",
        f"{rest}.{signature[:-1]}{next_of_last}",
        f"{rest}.{signature[:9]}!{signature[9:]}",
        f"{rest}.{signature[:9]}\n{signature[9:]}",
    ]


@pytest.mark.filterwarnings("error")
async def test_a_token_has_one_spelling(shared_database_url):
    """By each of several it would have a share of its own of what the rate limit lets through."""
    async with guarded(shared_database_url, rate_limit="2/hour") as client:
        given = await token(client, user_id="speller")
        for spelling in misspelt(given):
            headers = {"Authorization": f"Bearer {spelling}".replace("\n", " ").encode()}
            assert (await client.get("/v1/tools", headers=headers)).status_code == 401, spelling


async def test_no_spelling_of_a_key_or_token_gets_round_the_rate_limit(shared_database_url):
    async with guarded(shared_database_url, rate_limit="3/hour") as client:
        given = await token(client, user_id="speller")
        for credential in (given, KEY):
            statuses = [
                (await client.get("/v1/tools", headers={"Authorization": form % credential.encode()})).status_code
                for form in (
                    *(b"Bearer %s", b"bearer %s", b"Bearer   %s", b"Bearer %s\xa0", b"Bearer %s\xa0\xa0"),
                    *(b"Bearer \xa0%s", b"Bearer \x85%s", b"Bearer %s\x85", b"Bearer %s x", b"Bearer %s"),
                )
            ]
            assert statuses.count(200) <= 3, statuses
            assert statuses[-1] == 429


async def test_of_two_authorizations_none_counts(client):
    given = await token(client, user_id="twice")
    key, low = ("Authorization", f"Bearer {KEY}"), ("Authorization", f"Bearer {given}")
    for pair in ([key, low], [low, key], [low, low]):
        answer = await client.get("/v1/sessions?user_id=twice", headers=pair)
        assert answer.status_code == 401, answer.text
        assert "one Authorization" in answer.json()["detail"]


async def test_a_store_that_all_chats_have_by_default_is_not_a_tokens(shared_database_url):
    """What a token does not reach, it does not get by default either."""
    for store in ("shared:default", "somebody"):
        with scripted_upstream() as upstream:
            call = ("c1", "MemoryView", '{"path": "secret.md"}')
            memory = {"long_term": True, "store": store}
            async with guarded(shared_database_url, upstream_url=upstream.url, chat_memory=memory) as client:
                file = f"/v1/memories/{store}/file?path=secret.md"
                await client.put(file, content="SECRET", headers=AS_SERVICE)
                session = f"by-default-of-{store}"
                await seed(client, session, "taker")
                low = await token(client, user_id="taker")
                for credential, sees in ((low, False), (KEY, True)):
                    upstream.reset(Answer(calls=[call]), Answer("done"))
                    body = {"session_id": session, "messages": QUESTION}
                    assert (await client.post("/v1/chat", json=body, headers=bearer(credential))).is_success
                    assert ("SECRET" in str(upstream.requests[-1]["messages"])) is sees


@pytest.mark.parametrize("path", sorted(OPEN_PATHS))
async def test_two_authorizations_are_no_fault_of_the_service(shared_database_url, path):
    async with guarded(shared_database_url, rate_limit="100/hour") as client:
        pair = [("Authorization", "Bearer a"), ("Authorization", "Bearer b")]
        assert (await client.get(path, headers=pair)).status_code == 401


async def test_an_open_service_does_not_open_to_two_authorizations(shared_database_url):
    async with serving(shared_database_url) as client:
        pair = [("Authorization", "Bearer a"), ("Authorization", "Bearer b")]
        assert (await client.get("/v1/tools", headers=pair)).status_code == 401
        assert (await client.get("/v1/tools")).is_success


async def test_an_append_is_refused_whose_session_became_another_users_since_the_check(db):
    """Deleted and created anew between the two: the statement that writes looks again."""
    mine, theirs = (NewSession(id="changes", user_id=user, lifetime=Lifetime()) for user in ("early", "late"))
    event = NewEvent(id="e1", message=QUESTION[0], tokens=1)
    async with db.transaction() as connection:
        await sessions.create(connection, mine)
    await append_events(db, "changes", [event], named=True, owner="early")
    async with db.transaction() as connection:
        await sessions.delete(connection, "changes")
        await sessions.create(connection, theirs)
    for named in (True, False):
        with pytest.raises(NotOwner):
            await append_events(db, "changes", [event], named=named, owner="early")
    async with db.autocommit() as connection:
        assert (await sessions.get(connection, "changes")).event_version == 0
