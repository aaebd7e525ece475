"""Everything that is held, out and in again without loss, however often and from wherever it is taken up."""

import asyncio
import io
import json
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from app.domain import json_values
from app.domain.errors import SessionGone
from app.domain.events import NewEvent
from app.domain.exports import line_of
from app.domain.filters import EventFilter
from app.domain.sessions import Lifetime, NewSession
from app.domain.tokens import counter
from app.importing.formats import PARSERS, Format, detect
from app.importing.records import Origin
from app.services.append import append_events
from app.services.importing import Tally, import_records
from app.services.sweeping import sweep
from app.storage import reads, scans, sessions, transfer
from tests.storage.test_filter_push_down import entries

LOCOMO = Path(__file__).parents[3] / "shared" / "data" / "locomo"

_serial = count()


async def exported(db, **scope):
    """The lines of an export."""
    batches = transfer.export(db, **scope)
    return [json_values.encode(line_of(record)) async for batch in batches for record in batch]


async def imported(db, data, stem="talk", **origin):
    """What importing a file did, and what was bad: [(place, reason)]."""
    data = "\n".join(data) if isinstance(data, list) else data
    data = data.encode() if isinstance(data, str) else data
    parse = PARSERS[detect(data) or Format.TURNKEEPER]
    tally, bad = Tally(), []
    records = parse(io.BytesIO(data), Origin(stem=stem, count_tokens=counter(1000), **origin))
    await import_records(db, records, tally, lambda record: bad.append((record.place, record.reason)))
    return tally, bad


async def create(db, session_id, user_id, **attributes):
    fields = {"lifetime": Lifetime(), "allow_system_messages": True} | attributes
    async with db.transaction() as connection:
        return await sessions.create(connection, NewSession(id=session_id, user_id=user_id, **fields))


async def say(db, session_id, *messages, first=0):
    events = [
        NewEvent(id=str(place), message=message, tokens=place) for place, message in enumerate(messages, start=first)
    ]
    return await append_events(db, session_id, events, named=True)


async def erase(db, user_id):
    async with db.autocommit() as connection:
        await sessions.delete_of_user(connection, user_id)


async def run(db, statement, **parameters):
    async with db.transaction() as connection:
        return await connection.execute(text(statement), parameters)


async def archive(db, session, seqs):
    """What a compaction does to a log, without what it would write."""
    await run(
        db,
        """
        WITH gone AS (DELETE FROM active_events WHERE session_key = :key AND seq = ANY(:seqs) RETURNING seq),
        events AS (SELECT e.* FROM events e JOIN gone USING (seq) WHERE e.session_key = :key)
        UPDATE sessions SET
            event_version = event_version + 1,
            compaction_generation = compaction_generation + 1,
            active_event_count = active_event_count - (SELECT count(*) FROM events),
            active_token_count = active_token_count - (SELECT coalesce(sum(tokens), 0) FROM events),
            active_turn_count = active_turn_count
                - (SELECT count(*) FROM events WHERE type = 'user' AND NOT synthetic)
        WHERE key = :key
        """,
        key=session.key,
        seqs=list(seqs),
    )


async def insert_before_first(db, session, message):
    """What a compaction writes: a summary before everything, which the version does not count."""
    await run(
        db,
        """
        INSERT INTO events SELECT session_key, min(seq) - 7, 'summary', min(user_id), 'assistant', now(),
            CAST(:message AS json), :digest, 'summary', 3, true, false, null, '{"by":"summarize"}'
        FROM events WHERE session_key = :key GROUP BY session_key
        """,
        key=session.key,
        message=json_values.encode(message),
        digest=json_values.digest(message),
    )
    await run(
        db,
        """
        INSERT INTO active_events SELECT session_key, seq, type FROM events
        WHERE session_key = :key AND id = 'summary'
        """,
        key=session.key,
    )
    await run(
        db,
        """
        UPDATE sessions SET event_count = event_count + 1, active_event_count = active_event_count + 1,
            active_token_count = active_token_count + 3
        WHERE key = :key AND EXISTS (SELECT FROM events WHERE session_key = :key)
        """,
        key=session.key,
    )


json_objects = st.dictionaries(
    st.sampled_from(["a", "ä", '"', "\U0001f600"]),
    st.none()
    | st.booleans()
    | st.integers()
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.text("a\n\\é"),
    max_size=3,
)
lifetimes = (
    st.just(Lifetime())
    | st.integers(60, 10**9).map(lambda seconds: Lifetime(ttl_seconds=seconds))
    | st.integers(1, 900).map(
        lambda days: Lifetime(expires_at=datetime(2100, 1, 1, tzinfo=UTC) + timedelta(days=days))
    )
)
logs = st.lists(st.tuples(entries, json_objects, st.integers(0, 2**31 - 1)), max_size=10)
kept = st.tuples(logs, lifetimes, st.booleans(), json_objects, st.booleans())


async def hold(db, user_id, session_id, log, lifetime, is_sliding, metadata, is_compacted):
    session = await create(db, session_id, user_id, lifetime=lifetime, ttl_sliding=is_sliding, metadata=metadata)
    events = [
        NewEvent(id=f"é{place}", message=message, timestamp=at, synthetic=synthetic, tokens=tokens, metadata=about)
        for place, ((message, at, synthetic, _), about, tokens) in enumerate(log)
    ]
    if not events:
        return
    appended = await append_events(db, session_id, events, named=False)
    if is_compacted:
        archived = [event.seq for event, ((*_, gone), *_) in zip(appended.events, log, strict=True) if gone]
        await archive(db, session, archived)
        await insert_before_first(db, session, {"role": "assistant", "content": "summary"})


@given(st.lists(kept, min_size=1, max_size=3), st.data())
@settings(max_examples=60)
async def test_what_is_restored_is_exported_line_for_line(shared_db, held, data):
    db, user = shared_db, f"round-{next(_serial)}"
    for number, attributes in enumerate(held):
        await hold(db, user, f"{user}-{number}", *attributes)
    lines = await exported(db, user_id=user)
    log_before = await whole_log(db, user)
    await erase(db, user)
    assert await exported(db, user_id=user) == []

    # A crash after any line, and a second run.
    part = data.draw(st.integers(0, len(lines)))
    await imported(db, lines[:part])
    tally, bad = await imported(db, lines)
    assert bad == []
    assert tally.sessions == len(held)
    assert tally.added + tally.known == len(lines) - len(held)
    assert await exported(db, user_id=user) == lines
    assert await whole_log(db, user) == log_before

    tally, bad = await imported(db, lines)
    assert (tally.added, bad) == (0, [])
    assert await exported(db, user_id=user) == lines


async def whole_log(db, user):
    """The rows as they are, but for the key: with digests, texts to search and calls to answer."""
    rows = await run(
        db,
        """
        SELECT e.seq, e.id, e.user_id, e.type, e.timestamp, e.message::text, e.digest, e.search_text, e.tokens,
               e.synthetic, e.recall_result, e.tool_calls::text, e.metadata::text, a.type AS active
        FROM sessions s JOIN events e ON e.session_key = s.key
        LEFT JOIN active_events a ON a.session_key = e.session_key AND a.seq = e.seq
        WHERE s.user_id = :user AND s.deleted_at IS NULL ORDER BY s.id, e.seq
        """,
        user=user,
    )
    return [tuple(row) for row in rows]


async def test_results_of_recall_tools_stay_what_they_are(db):
    call = {"id": "c", "type": "function", "function": {"name": "conversation_search", "arguments": "{}"}}
    await create(db, "s", "alice")
    await say(db, "s", {"role": "assistant", "content": None, "tool_calls": [call]})
    await say(db, "s", {"role": "tool", "tool_call_id": "c", "content": "found"}, first=1)
    lines = await exported(db)
    assert [json.loads(line)["recall_result"] for line in lines[1:]] == [False, True]
    await erase(db, "alice")
    await imported(db, lines)
    async with db.searching() as connection:
        found = await reads.read_session(connection, "s", EventFilter(keyword="found"), recall=True)
    assert found.events == []


async def test_what_is_appended_after_a_restore_goes_on_from_it(db):
    await create(db, "s", "alice")
    await say(db, "s", {"role": "user", "content": "one"}, {"role": "assistant", "content": "two"})
    lines = await exported(db)
    await erase(db, "alice")
    await imported(db, lines[:2])
    appended = await say(db, "s", {"role": "user", "content": "three"}, first=2)
    assert appended.events[0].seq > json.loads(lines[2])["seq"]
    await imported(db, lines)
    async with db.searching() as connection:
        reading = await reads.read_session(connection, "s", EventFilter())
    assert [event.text for event in reading.events] == ["one", "two", "three"]
    assert reading.event_version == 3


async def test_a_session_of_somebody_else_is_refused_and_not_touched(db):
    await create(db, "s", "alice")
    await say(db, "s", {"role": "user", "content": "mine"})
    lines = await exported(db)
    await erase(db, "alice")
    await create(db, "s", "bob")
    before = await exported(db)
    tally, bad = await imported(db, lines)
    assert [place for place, _ in bad] == ["1"]
    assert "does not belong to user 'alice'" in bad[0][1]
    assert (tally.sessions, tally.added, tally.left_out) == (0, 0, 1)
    assert await exported(db) == before


async def test_another_session_that_took_the_id_is_refused_and_not_touched(db):
    await create(db, "s", "alice")
    await say(db, "s", {"role": "user", "content": "old"})
    lines = await exported(db)
    await erase(db, "alice")
    await create(db, "s", "alice")
    before = await exported(db)
    tally, bad = await imported(db, lines)
    assert "exists already" in bad[0][1]
    assert tally.left_out == 1
    assert await exported(db) == before


async def test_events_in_conflict_with_the_log_are_told_and_the_rest_is_restored(db):
    await create(db, "s", "alice")
    await say(db, "s", *({"role": "user", "content": str(number)} for number in range(4)))
    lines = [json.loads(line) for line in await exported(db)]
    changed = [
        lines[0],
        lines[1] | {"message": {"role": "user", "content": "never said"}},
        lines[2] | {"id": "another"},
        lines[3],
        lines[4] | {"id": "new", "seq": lines[4]["seq"] - 1},
        lines[4] | {"id": "new", "seq": lines[4]["seq"] - 2},
    ]
    tally, bad = await imported(db, [json.dumps(line) for line in changed])
    assert [place for place, _ in bad] == ["2", "3", "6"]
    assert (tally.added, tally.known) == (1, 1)


async def test_expired_sessions_are_neither_exported_nor_restored(db):
    await create(db, "s", "alice", lifetime=Lifetime(ttl_seconds=1000))
    await create(db, "t", "alice")
    await say(db, "s", {"role": "user", "content": "gone soon"})
    lines = await exported(db, session_id="s")
    await run(db, "UPDATE sessions SET expires_at = now() - interval '1 second' WHERE id = 's'")
    assert [json.loads(line)["id"] for line in await exported(db)] == ["t"]
    lines[0] = json.dumps(json.loads(lines[0]) | {"expires_at": "2026-01-01T00:00:00Z"})
    tally, bad = await imported(db, lines)
    assert (tally.expired, tally.left_out, tally.sessions, bad) == (1, 1, 0, [])


async def test_the_name_of_an_expired_session_is_free_for_a_restored_one(db):
    await create(db, "s", "alice")
    lines = await exported(db)
    await erase(db, "alice")
    await create(db, "s", "bob", lifetime=Lifetime(ttl_seconds=1000))
    await run(db, "UPDATE sessions SET expires_at = now() WHERE id = 's'")
    assert (await imported(db, lines))[1] == []
    assert await exported(db) == lines


async def test_an_export_covers_a_user_a_session_or_everything_in_order_of_creation(db):
    for session_id, user_id in (("z", "alice"), ("y", "bob"), ("x", "alice")):
        await create(db, session_id, user_id)
        await say(db, session_id, {"role": "user", "content": session_id})

    async def ids(**scope):
        return [json.loads(line)["id"] for line in await exported(db, **scope) if '"kind":"session"' in line]

    assert await ids() == ["z", "y", "x"]
    assert await ids(user_id="alice") == ["z", "x"]
    assert await ids(session_id="y") == ["y"]
    assert await ids(user_id="alice", session_id="y") == await ids(user_id="nobody") == []


async def test_long_logs_and_many_sessions_are_read_in_batches(db):
    long = [json.dumps({"role": "user", "content": "x" * 20_000 + str(number)}) for number in range(1_300)]
    await imported(db, long, user_id="alice")
    many = [
        json.dumps({"messages": [{"role": "user", "content": "short"}]}) for _ in range(transfer.BATCH_SESSIONS + 1)
    ]
    await imported(db, many, stem="many", user_id="bob")
    sizes = [len(batch) async for batch in transfer.export(db)]
    assert max(sizes) <= scans.BATCH_EVENTS + 1
    assert sum(sizes) == 1_301 + 2 * len(many)


async def test_an_export_tells_of_a_session_what_it_held_when_it_was_read(db):
    await imported(db, [json.dumps({"role": "user", "content": str(n)}) for n in range(600)], user_id="alice")
    batches = transfer.export(db)
    first = await anext(batches)
    assert {pool.in_use for pool in db.pools().values()} == {0}, "no connection is held between batches"
    await say(db, "talk", {"role": "user", "content": "meanwhile"})
    rest = [record async for batch in batches for record in batch]
    assert len(first) + len(rest) == 601
    assert await imported(db, [json_values.encode(line_of(record)) for record in [*first, *rest]]) == (
        Tally(sessions=1, known=600),
        [],
    )


async def test_a_session_deleted_while_it_is_read_breaks_the_export_off(db):
    await imported(db, [json.dumps({"role": "user", "content": str(n)}) for n in range(600)], user_id="alice")
    batches = transfer.export(db)
    await anext(batches)
    await erase(db, "alice")
    await sweep(db, batch=1000)
    with pytest.raises(SessionGone):
        await anext(batches)


async def test_restoring_the_same_twice_at_once_is_restoring_it_once(db):
    await imported(db, [json.dumps({"role": "user", "content": str(n)}) for n in range(40)], user_id="alice")
    lines = await exported(db)
    await erase(db, "alice")
    done = await asyncio.gather(*(imported(db, lines) for _ in range(4)))
    assert sum(tally.added for tally, _ in done) == 40
    assert all(bad == [] for _, bad in done)
    assert await exported(db) == lines


async def test_appending_while_a_session_is_restored_loses_nothing(db):
    await imported(db, [json.dumps({"role": "user", "content": str(n)}) for n in range(1_200)], user_id="alice")
    lines = await exported(db)
    await erase(db, "alice")
    await imported(db, lines[:1])

    async def append(number):
        return await say(db, "talk", {"role": "user", "content": "new"}, first=number)

    await asyncio.gather(imported(db, lines), *(append(5_000 + number) for number in range(20)))
    session = json.loads((await exported(db))[0])
    assert session["event_version"] == session["event_count"] == session["active_event_count"] == 1_220
    assert session["active_turn_count"] == 1_220


async def test_an_import_of_another_format_adds_each_message_once(db):
    talk = [json.dumps({"role": role, "content": role}) for role in ("system", "user", "assistant")]
    assert (await imported(db, talk))[0] == Tally(sessions=1, added=3)
    assert (await imported(db, [*talk, talk[1]]))[0] == Tally(sessions=1, added=1, known=3)
    session = json.loads((await exported(db))[0])
    assert (session["user_id"], session["expires_at"], session["event_count"]) == ("talk", None, 4)


async def test_messages_in_conflict_with_the_log_are_told_and_the_rest_is_imported(db):
    talk = [json.dumps({"role": "user", "content": str(number)}) for number in range(3)]
    await imported(db, talk[:2])
    tally, bad = await imported(db, [talk[0], talk[2], talk[2]])
    assert [place for place, _ in bad] == ["2"]
    assert (tally.known, tally.added) == (1, 1)


async def test_system_messages_are_told_where_the_session_takes_none(db):
    await create(db, "talk", "talk", allow_system_messages=False)
    talk = [json.dumps({"role": role, "content": role}) for role in ("system", "user", "developer")]
    tally, bad = await imported(db, talk)
    assert [place for place, _ in bad] == ["1", "3"]
    assert tally.added == 1


async def test_a_conversation_for_a_session_of_somebody_else_is_refused(db):
    await create(db, "talk", "bob")
    talk = [json.dumps({"role": "user", "content": str(number)}) for number in range(700)]
    tally, bad = await imported(db, talk, user_id="alice")
    assert [place for place, _ in bad] == ["1"]
    assert tally == Tally(bad=1, left_out=700)


async def test_a_session_without_usable_messages_is_not_created(db):
    assert (await imported(db, '{"messages": []}\n{"messages": [7]}'))[0] == Tally(bad=1)
    assert await exported(db) == []


async def test_a_lifetime_can_be_given(db):
    await imported(db, '{"role": "user", "content": "x"}', lifetime=Lifetime(ttl_seconds=60))
    session = json.loads((await exported(db))[0])
    assert session["ttl_seconds"] == 60
    assert session["expires_at"] is not None


@pytest.mark.skipif(not LOCOMO.is_dir(), reason=f"the LoCoMo data is for research use and not at {LOCOMO}")
async def test_the_real_conversations_are_imported_once_however_often(db):
    first, second = Tally(), Tally()
    for tally in (first, second):
        for file in sorted(LOCOMO.glob("*.json")):
            with file.open("rb") as source:
                records = PARSERS[Format.LOCOMO](source, Origin(stem=file.stem, count_tokens=counter(1000)))
                await import_records(db, records, tally, pytest.fail)
    assert first == Tally(sessions=78, added=1_729)
    assert second == Tally(sessions=78, known=1_729)
    lines = await exported(db)
    assert len(lines) == 78 + 1_729
    await erase(db, "locomo-26")
    assert (await imported(db, lines))[0] == Tally(sessions=78, added=419, known=1_310)
    assert sorted(await exported(db)) == sorted(lines)
