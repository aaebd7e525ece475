"""What a read or an append touches does not grow with the log."""

from itertools import count

import pytest

from app.domain.events import NewEvent
from app.domain.filters import EventFilter
from app.services.append import append_events
from app.services.recall import search_session
from app.storage import reads, scans
from tests.conftest import cloned, database_at
from tests.storage.plans import Explained, buffers, connect, make_log

SHORT = 1_000
LENGTHS = [100_000, pytest.param(1_000_000, marks=pytest.mark.long)]

# Three for each of 20 events, to see whether it is archived, and a few for everything else.
MOST = 120

# The types of events, in SQL about their number. "answers" has no turn start at all and "questions" no tool call; in
# "archived" all turn starts are archived, so that the active window has none.
SHAPES = {
    "turns": "CASE WHEN n % 2 = 1 THEN 'user' ELSE 'assistant' END",
    "answers": "'assistant'",
    "questions": "'user'",
    "archived": "CASE WHEN n <= {events} THEN 'user' ELSE 'assistant' END",
}
TEXT = "'event ' || n || CASE WHEN n IN (300, 700) THEN ' needle' ELSE '' END"

_ids = count()


def window(**criteria):
    async def read(db, session):
        async with db.reading() as connection:
            return (await reads.read_session(connection, session, EventFilter(**criteria))).events

    return read


def page(**criteria):
    async def read(db, session):
        async with db.searching() as connection:
            return (await reads.read_session(connection, session, EventFilter(**criteria))).events

    return read


def appending(message, *, named=False):
    async def append(db, session):
        event = NewEvent(id=f"new-{next(_ids)}", message=message, tokens=1)
        return (await append_events(db, session, [event], named=named)).events

    return append


async def stream(db, session):
    async for batch in scans.stream_session(db, session, EventFilter(exclude_archived=True)):
        return batch
    return []


SAID = {"role": "user", "content": "We decided."}
RESULT = {"role": "tool", "content": "Done."}

# What is done, on which shape of a log, and how many events that returns.
ACTS = {
    "a window": (window(last_n=20), "turns", 20),
    "a window that lands inside a turn": (window(last_n=19), "turns", 20),
    "an active window": (window(last_n=19, exclude_archived=True), "turns", 20),
    "a window without a turn start": (window(last_n=20), "answers", 20),
    "an active window after archived turns": (window(last_n=20, exclude_archived=True), "archived", 20),
    "a window of events that were said": (page(last_n=20, exclude_synthetic=True), "turns", 20),
    "the log before an event": (window(last_n=20, before_seq=700 * 1024), "turns", 21),
    "the log after an event": (page(after_seq=500 * 1024, page_size=20), "turns", 20),
    "an append": (appending(SAID), "turns", 1),
    "an append with an id": (appending(SAID, named=True), "turns", 1),
    "a result of a call": (appending(RESULT | {"tool_call_id": "call-4"}), "answers", 1),
    "a result of a call without an id": (appending(RESULT | {"tool_call_id": ""}), "answers", 1),
    "a result of nothing": (appending(RESULT | {"tool_call_id": "call-4"}), "questions", 1),
}

SEARCHES = {"common": ("event", 20), "rare": ("needle", 2), "absent": ("haystack", 0)}


@pytest.fixture(scope="module", params=LENGTHS)
async def database(request, postgres, template):
    """Each shape of a log in two lengths, and many other sessions; statements are planned before they are there."""
    async with cloned(postgres, template) as url:
        db = database_at(url)
        explained = Explained(db)
        connection = await connect(url)
        await make_log(connection, "empty", events=0)
        for act, *_ in ACTS.values():
            await act(db, "empty")
        for number in range(1_000):
            await make_log(connection, f"other-{number}", events=0)
        for name, events in (("short", SHORT), ("long", request.param)):
            for shape, type_ in SHAPES.items():
                await make_log(
                    connection,
                    f"{shape}-{name}",
                    events=events + 100,
                    archived=events if shape == "archived" else 0,
                    type=type_.format(events=events),
                    text=TEXT,
                )
        yield db, explained, connection
        await connection.close()
        await db.close()


@pytest.fixture(scope="module")
async def analyzed_database(database):
    db, explained, connection = database
    await connection.execute("ANALYZE")
    return db, explained


@pytest.mark.parametrize(("act", "shape", "returned"), ACTS.values(), ids=ACTS)
async def test_what_it_touches_does_not_grow_with_the_log(database, act, shape, returned):
    db, explained, _ = database
    await _assert_bounded(explained, lambda name: act(db, f"{shape}-{name}"), returned)


@pytest.mark.parametrize(("act", "shape", "returned"), ACTS.values(), ids=ACTS)
async def test_nor_does_it_when_planned_with_statistics(analyzed_database, act, shape, returned):
    db, explained = analyzed_database
    await _assert_bounded(explained, lambda name: act(db, f"{shape}-{name}"), returned)


@pytest.mark.parametrize(("word", "returned"), SEARCHES.values(), ids=SEARCHES)
async def test_what_a_search_of_a_session_touches_does_not_grow_with_it(analyzed_database, word, returned):
    db, explained = analyzed_database
    event_filter = EventFilter(keyword=word, page=0, page_size=20)

    async def search(name):
        return (await search_session(db, f"turns-{name}", event_filter)).events

    await _assert_bounded(explained, search, returned)


async def _assert_bounded(explained, act, returned):
    touched = {}
    for name in ("short", "long"):
        found, plans = await explained.of(act(name))
        assert len(found) == returned
        touched[name] = buffers(plans)
    assert touched["long"] <= min(touched["short"] + 10, MOST), touched
