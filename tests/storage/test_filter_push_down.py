"""SQL and `EventFilter.apply` agree: the same ids in the same order, for any log and any filter."""

import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from app.domain.events import NewEvent
from app.domain.filters import EventFilter
from app.domain.sessions import Lifetime, NewSession
from app.services.append import append_events
from app.storage import reads, scans, sessions

CASES = int(os.environ.get("TURNKEEPER_TEST_CASES", "200"))
_serial = count()

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)

# Few and alike, so that filters hit; with what is special to LIKE, to case folding and to PostgreSQL.
WORDS = [
    "spring",
    "Spring",
    "ÉCOLE",
    "e\u0301cole",
    "Straße",
    "STRASSE",
    "100%",
    "snake_case",
    "a\\b",
    "\0",
    "İx",
    "ΣΑΣ",
    "σας",
    "слово",
    "記憶",
    "😀",
    "\ufffd",
    "%",
    "_",
    "ǅ",
    "ﬁ",
    "\u0345",
    "/",
    "'",
    "\n",
    " ",
]

texts = st.lists(st.sampled_from(WORDS), max_size=4).map("".join) | st.text(max_size=6)
terms = st.sampled_from(WORDS) | st.text(min_size=1, max_size=3)
instants = st.integers(-3, 3).map(lambda seconds: EPOCH + timedelta(microseconds=seconds))


@st.composite
def messages(draw):
    role = draw(st.sampled_from(["user", "assistant", "assistant", "tool", "system"]))
    content = draw(
        texts
        | st.just([{"type": "image_url", "image_url": {"url": "x"}}])
        | texts.map(lambda t: [{"type": "text", "text": t}, {"type": "text", "text": "x"}])
    )
    if role == "assistant":
        return {"role": role, "content": draw(st.none() | st.just(content))}
    if role == "tool":
        return {"role": role, "content": content, "tool_call_id": draw(st.sampled_from(["", "c1", "c2"]))}
    return {"role": role, "content": content}


entries = st.tuples(messages(), instants, st.sampled_from([False, False, False, True]), st.booleans())
logs = st.lists(entries, max_size=14)

usable_terms = terms.filter(lambda term: "\0" not in term)
criteria = {
    "from_": instants,
    "to": instants,
    "types": st.frozensets(st.sampled_from(["user", "assistant", "system", "tool"])),
    "exclude_synthetic": st.just(True),
    "exclude_archived": st.just(True),
    "after_seq": st.integers(0, 14 * 1024),
    "before_seq": st.integers(0, 14 * 1024),
    "keyword": usable_terms,
    "keywords": st.lists(usable_terms, min_size=1, max_size=3).map(tuple),
    "match_mode": st.sampled_from(["any", "all"]),
    "pattern": st.sampled_from([".+", ".*", r"\bspring\b", "(?i)straße", r"\x00", "%|_"]),
}
windows = (
    st.just({})
    | st.integers(1, 6).map(lambda size: {"last_n": size})
    | st.tuples(st.none() | st.integers(0, 3), st.integers(1, 4)).map(
        lambda place: {"page": place[0], "page_size": place[1]}
    )
)


@st.composite
def filters(draw):
    """Few criteria at a time: many of them match nothing."""
    chosen = draw(st.lists(st.sampled_from(sorted(criteria)), max_size=2, unique=True))
    return EventFilter(**{name: draw(criteria[name]) for name in chosen}, **draw(windows))


@given(st.lists(logs, min_size=1, max_size=2), st.lists(filters(), min_size=1, max_size=4))
@settings(max_examples=CASES)
async def test_storage_returns_what_the_reference_says(shared_db, user_logs, some_filters):
    user = f"user-{next(_serial)}"
    everything = [
        event
        for number, log in enumerate(user_logs)
        for event in await _stored(shared_db, user, f"{user}-{number}", log)
    ]
    for event_filter in some_filters:
        for number in range(len(user_logs)):
            session = f"{user}-{number}"
            expected = event_filter.apply([event for event in everything if event.session_id == session])
            assert await _read(shared_db, session, event_filter) == expected, event_filter
            assert await _streamed(scans.stream_session(shared_db, session, event_filter), event_filter, expected)
        expected = event_filter.apply_across(everything)
        assert await _read_user(shared_db, user, event_filter) == expected, event_filter
        assert await _streamed(scans.stream_user(shared_db, user, event_filter), event_filter, expected)


async def _stored(db, user, session_id, log):
    new = NewSession(id=session_id, user_id=user, lifetime=Lifetime(), allow_system_messages=True)
    async with db.autocommit() as connection:
        session = await sessions.create(connection, new)
    if not log:
        return []
    events = [
        NewEvent(id=str(place), message=message, timestamp=instant, synthetic=synthetic, tokens=1)
        for place, (message, instant, synthetic, _) in enumerate(log)
    ]
    appended = await append_events(db, session_id, events, named=False)
    stored = [
        replace(event, archived=archived) for event, (_, _, _, archived) in zip(appended.events, log, strict=True)
    ]
    async with db.autocommit() as connection:
        await connection.execute(
            text("DELETE FROM active_events WHERE session_key = :key AND seq = ANY(:seqs)"),
            {"key": session.key, "seqs": [event.seq for event in stored if event.archived]},
        )
    return stored


async def _read(db, session_id, event_filter):
    if event_filter.pattern is not None:
        return (await scans.search_session(db, session_id, event_filter)).events
    async with db.searching() as connection:
        return (await reads.read_session(connection, session_id, event_filter)).events


async def _read_user(db, user_id, event_filter):
    if event_filter.pattern is not None:
        return (await scans.search_user(db, user_id, event_filter)).events
    async with db.searching() as connection:
        return (await reads.read_user(connection, user_id, event_filter)).events


async def _streamed(batches, event_filter, expected):
    """Whether the stream gives the same; it is not meant for pages."""
    if event_filter.page_size is not None:
        await batches.aclose()
        return True
    return [event async for batch in batches for event in batch] == expected
