"""Sessions in PostgreSQL. An expired or deleted session is absent from every statement here."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, RowMapping, func, literal_column, select, text, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from app.domain import json_values
from app.domain.errors import SessionExists, SessionNotFound
from app.domain.sessions import Lifetime, NewSession, Session
from app.storage.tables import sessions

# The latest expiry that a client can read: years end at 9999.
LATEST = "timestamptz '9999-12-30T00:00:00Z'"

LIVE_SQL = "deleted_at IS NULL AND (expires_at IS NULL OR expires_at > now())"

# What a session is made of, in SQL; the expiry is counted by the database's clock, as everywhere.
_EXPIRES_AT = f"""
    COALESCE(CAST(:expires_at AS timestamptz),
             CASE WHEN CAST(:ttl_seconds AS bigint) IS NOT NULL
                  THEN LEAST(now() + CAST(:ttl_seconds AS bigint) * interval '1 second', {LATEST}) END)
"""
_TTL_SECONDS = """
    COALESCE(CAST(:ttl_seconds AS bigint), ceil(extract(epoch FROM CAST(:expires_at AS timestamptz) - now())))
"""

_INSERT = text(f"""
INSERT INTO sessions (id, user_id, created_at, expires_at, ttl_seconds, ttl_sliding, allow_system_messages, metadata)
VALUES (:id, :user_id, now(), {_EXPIRES_AT}, {_TTL_SECONDS}, :ttl_sliding, :allow_system_messages,
        CAST(:metadata AS json))
ON CONFLICT (id) WHERE deleted_at IS NULL DO NOTHING
RETURNING *
""")  # noqa: S608

# An expired session that was not swept yet still has its name: it gives it up to a new one.
_RETIRE = text("""
UPDATE sessions SET deleted_at = now() WHERE id = :id AND deleted_at IS NULL AND expires_at <= now()
""")

_UPDATE = text(f"""
UPDATE sessions SET
    metadata = CAST(:metadata AS json),
    expires_at = CASE WHEN :new_lifetime THEN {_EXPIRES_AT} ELSE expires_at END,
    ttl_seconds = CASE WHEN :new_lifetime THEN {_TTL_SECONDS} ELSE ttl_seconds END
WHERE key = :key
RETURNING *
""")  # noqa: S608

_DELETE = text(f"UPDATE sessions SET deleted_at = now() WHERE id = :id AND {LIVE_SQL} RETURNING key")  # noqa: S608

_DELETE_OF_USER = text(f"""
WITH live AS (
    UPDATE sessions SET deleted_at = now() WHERE user_id = :user_id AND {LIVE_SQL} RETURNING event_count
), expired AS (
    UPDATE sessions SET deleted_at = now()
    WHERE user_id = :user_id AND deleted_at IS NULL AND expires_at <= now()
)
SELECT count(*) AS sessions, coalesce(sum(event_count), 0)::bigint AS events FROM live
""")  # noqa: S608


def live() -> ColumnElement[bool]:
    return sessions.c.deleted_at.is_(None) & (sessions.c.expires_at.is_(None) | (sessions.c.expires_at > func.now()))


async def create(connection: AsyncConnection, new: NewSession) -> Session:
    """Raises SessionExists, and leaves the one that exists untouched."""
    parameters = {
        "id": new.id,
        "user_id": new.user_id,
        **_lifetime(new.lifetime),
        "ttl_sliding": new.ttl_sliding,
        "allow_system_messages": new.allow_system_messages,
        "metadata": json_values.encode(new.metadata),
    }
    row = (await connection.execute(_INSERT, parameters)).mappings().one_or_none()
    if row is None and await retire_expired(connection, new.id):
        row = (await connection.execute(_INSERT, parameters)).mappings().one_or_none()
    if row is None:
        raise SessionExists(new.id)
    return session_of(row)


async def ensure(connection: AsyncConnection, new: NewSession) -> tuple[Session, bool]:
    """The session, its row locked, and whether it was created; the one that exists stays untouched."""
    while True:  # It may be deleted between the two steps.
        with suppress(SessionExists):
            return await create(connection, new), True
        with suppress(SessionNotFound):
            return await lock(connection, new.id), False


async def retire_expired(connection: AsyncConnection, session_id: str) -> bool:
    """Have an expired session give up its id; False when there is none."""
    return bool((await connection.execute(_RETIRE, {"id": session_id})).rowcount)


async def get(connection: AsyncConnection, session_id: str) -> Session:
    """Raises SessionNotFound."""
    return await _get(connection, session_id, lock=False)


async def lock(connection: AsyncConnection, session_id: str) -> Session:
    """The session, whose row stays locked until the transaction ends. Raises SessionNotFound."""
    return await _get(connection, session_id, lock=True)


async def get_by_key(connection: AsyncConnection, session: Session) -> Session:
    """This very session as it stands now. Raises SessionNotFound when it is gone, though its id may be another's."""
    query = select(sessions).where(sessions.c.key == session.key, live())
    row = (await connection.execute(query)).mappings().one_or_none()
    if row is None:
        raise SessionNotFound(session.id)
    return session_of(row)


async def lock_key(connection: AsyncConnection, session: Session) -> None:
    """Lock the row of this very session. Raises SessionNotFound when it is gone, though its id may be another's."""
    query = select(sessions.c.key).where(sessions.c.key == session.key, live()).with_for_update()
    if (await connection.execute(query)).one_or_none() is None:
        raise SessionNotFound(session.id)


async def newest(
    connection: AsyncConnection, *, user_id: str | None, limit: int, before: tuple[datetime, str] | None
) -> list[Session]:
    """Sessions by (created_at, id) descending, those that come after `before` in that order."""
    query = select(sessions).where(live())
    if user_id is not None:
        query = query.where(sessions.c.user_id == user_id)
    if before is not None:
        query = query.where(tuple_(sessions.c.created_at, sessions.c.id) < tuple_(*before))
    # A literal: a generic plan has to see that few are wanted.
    few = literal_column(str(limit), BigInteger)
    query = query.order_by(sessions.c.created_at.desc(), sessions.c.id.desc()).limit(few)
    return [session_of(row) for row in (await connection.execute(query)).mappings()]


async def update(
    connection: AsyncConnection, session: Session, *, metadata: dict[str, Any], lifetime: Lifetime | None
) -> Session:
    """Give a locked session these metadata, and a new lifetime when there is one."""
    parameters = {
        "key": session.key,
        "metadata": json_values.encode(metadata),
        "new_lifetime": lifetime is not None,
        **_lifetime(lifetime or Lifetime()),
    }
    return session_of((await connection.execute(_UPDATE, parameters)).mappings().one())


async def delete(connection: AsyncConnection, session_id: str) -> None:
    """Hide the session with its log, at once; `app.storage.sweeper` removes the rows. Raises SessionNotFound."""
    if not (await connection.execute(_DELETE, {"id": session_id})).rowcount:
        raise SessionNotFound(session_id)


async def delete_of_user(connection: AsyncConnection, user_id: str) -> tuple[int, int]:
    """Hide every session of a user; returns how many sessions and events these were."""
    row = (await connection.execute(_DELETE_OF_USER, {"user_id": user_id})).mappings().one()
    return row["sessions"], row["events"]


def session_of(row: RowMapping | Mapping[str, Any]) -> Session:
    return Session(
        key=row["key"],
        id=row["id"],
        user_id=row["user_id"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        ttl_sliding=row["ttl_sliding"],
        allow_system_messages=row["allow_system_messages"],
        metadata_json=row["metadata"],
        event_version=row["event_version"],
        compaction_generation=row["compaction_generation"],
        event_count=row["event_count"],
        active_event_count=row["active_event_count"],
        active_turn_count=row["active_turn_count"],
        active_token_count=row["active_token_count"],
        superseded_token_count=row["superseded_token_count"],
        last_event_at=row["last_event_at"],
    )


async def _get(connection: AsyncConnection, session_id: str, *, lock: bool) -> Session:
    query = select(sessions).where(sessions.c.id == session_id, live())
    if lock:
        query = query.with_for_update()
    row = (await connection.execute(query)).mappings().one_or_none()
    if row is None:
        raise SessionNotFound(session_id)
    return session_of(row)


def _lifetime(lifetime: Lifetime) -> dict[str, object]:
    return {"ttl_seconds": lifetime.ttl_seconds, "expires_at": lifetime.expires_at}
