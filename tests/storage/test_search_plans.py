"""Words are found through the text index, wherever that is quicker than reading in order."""

import pytest

from app.domain.filters import EventFilter
from app.services.recall import search_session, search_user
from tests.conftest import cloned, database_at, serving
from tests.storage.plans import Explained, buffers, connect, indexes, make_log

# Events of the user that is searched, in ten sessions, and of everybody else, in short ones.
SIZES = [
    pytest.param((10_000, 90_000), id="small"),
    pytest.param((100_000, 900_000), id="1M", marks=pytest.mark.long),
]

# Words of many events, and of two in every session.
TEXT = """
concat_ws(' ', 'about', md5(n::text), md5((n * 7)::text), CASE WHEN n % 2 = 0 THEN 'развёртывание deployment' END,
          CASE WHEN n IN (300, 700) THEN 'zanzibar синхрофазотрон 长江三峡' END)
"""
RARE = ["zanzibar", "ZANZIBAR", "синхрофазотрон", "长江三"]
ABSENT = ["quixotry", "гиппопотам", "青藏高原"]
COMMON = ["about", "deployment", "развёртывание"]
SHORT = ["qx", "江", "三峡"]

FIRST_PAGE = {"page": 0, "page_size": 10}


@pytest.fixture(scope="module", params=SIZES)
async def database(request, postgres, template):
    mine, others = request.param
    async with cloned(postgres, template) as url:
        connection = await connect(url)
        definition = await connection.fetchval("SELECT indexdef FROM pg_indexes WHERE indexname = 'events_search'")
        await connection.execute("DROP INDEX events_search")
        for number in range(10):
            await make_log(connection, f"mine-{number}", events=mine // 10, user="me", text=TEXT)
        for number in range(others // 100):
            await make_log(connection, f"theirs-{number}", events=100, user=f"user-{number % 100}", text=TEXT)
        await connection.execute(definition)
        await connection.execute("ANALYZE")
        await connection.close()
        db = database_at(url)
        yield db, Explained(db)
        await db.close()


async def in_session(db, word, **criteria):
    return (await search_session(db, "mine-3", EventFilter(keywords=(word,), **criteria))).events


async def of_user(db, word, **criteria):
    return (await search_user(db, "me", EventFilter(keywords=(word,), **criteria))).events


SCOPES = pytest.mark.parametrize("search", [in_session, of_user])


@SCOPES
@pytest.mark.parametrize("word", RARE)
async def test_a_rare_word_is_found_through_the_text_index(database, search, word):
    db, explained = database
    found, plans = await explained.of(search(db, word, page=0, page_size=100))
    assert len(found) == (2 if search is in_session else 20)
    assert "events_search" in indexes(plans)
    assert buffers(plans) < 400


@SCOPES
@pytest.mark.parametrize("word", ABSENT)
async def test_an_absent_word_is_missed_through_the_text_index(database, search, word):
    db, explained = database
    found, plans = await explained.of(search(db, word, **FIRST_PAGE))
    assert found == []
    assert "events_search" in indexes(plans)
    assert buffers(plans) < 200


@SCOPES
@pytest.mark.parametrize("word", COMMON)
async def test_the_first_page_of_a_common_word_is_read_in_order(database, search, word):
    db, explained = database
    found, plans = await explained.of(search(db, word, **FIRST_PAGE))
    assert len(found) == 10
    assert "events_search" not in indexes(plans)
    assert buffers(plans) < 200


@SCOPES
@pytest.mark.parametrize("word", SHORT)
async def test_a_term_under_three_characters_is_looked_for_in_its_scope_alone(database, search, word):
    """Such a term has no trigram: the index could only give all of its entries."""
    db, explained = database
    _, plans = await explained.of(search(db, word, **FIRST_PAGE))
    assert "events_search" not in indexes(plans)


SLOW = [
    ("POST", "/v1/sessions/s/search", {"query": "qx"}),
    ("POST", "/v1/users/someone/search", {"query": "qx"}),
    ("POST", "/v1/sessions/s/events/query", {"types": ["tool"]}),
    ("POST", "/v1/sessions/s/events/query", {"pattern": "q.*x"}),
    ("POST", "/v1/users/someone/events/query", {"keyword": "qx", "last_n": 3}),
    ("GET", "/v1/sessions/s/context", None),
]


async def test_a_read_that_takes_too_long_is_refused_and_never_partial(database_url):
    blocker = await connect(database_url)
    await make_log(blocker, "s", events=10)
    async with serving(database_url, statement_timeout_ms=200) as http, blocker.transaction():
        await blocker.execute("LOCK TABLE events")  # It takes as long as the lock is held.
        for method, path, body in SLOW:
            response = await http.request(method, path, json=body)
            assert response.status_code == 422, path
            assert response.json()["type"] == "urn:turnkeeper:problem:search-too-broad"
            assert "Narrow it" in response.json()["detail"]
    await blocker.close()
