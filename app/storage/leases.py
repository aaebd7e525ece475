"""Turn leases in PostgreSQL: one row for a session whose turn is taken, kept alive while its holder works."""

from typing import Any

from sqlalchemy import text

from app.domain.leases import Attempt, Holder, Lease
from app.storage.database import Connection, fetch
from app.storage.sessions import LIVE_SQL, session_of

# One statement finds the session and takes its turn, unless another has it that has not run out.
_ACQUIRE = text(f"""
WITH target AS MATERIALIZED (
    SELECT * FROM sessions WHERE id = :session_id AND {LIVE_SQL}
), taken AS (
    INSERT INTO turn_leases AS l (session_key, token, holder, acquired_at, expires_at)
    SELECT key, CAST(:token AS uuid), :holder, clock_timestamp(),
           clock_timestamp() + CAST(:seconds AS float8) * interval '1 second'
    FROM target WHERE CAST(:owner AS text) IS NULL OR user_id = CAST(:owner AS text)
    ON CONFLICT (session_key) DO UPDATE SET
        token = EXCLUDED.token, holder = EXCLUDED.holder,
        acquired_at = EXCLUDED.acquired_at, expires_at = EXCLUDED.expires_at
    WHERE l.expires_at <= clock_timestamp()
    RETURNING session_key
)
SELECT t.*, EXISTS (SELECT FROM taken) AS taken, l.holder AS other, l.acquired_at AS other_since
FROM target t LEFT JOIN turn_leases l ON l.session_key = t.key
""")  # noqa: S608

_RENEW = text("""
UPDATE turn_leases SET expires_at = clock_timestamp() + CAST(:seconds AS float8) * interval '1 second'
WHERE session_key = :session_key AND token = CAST(:token AS uuid)
RETURNING session_key
""")

_RELEASE = text("""
DELETE FROM turn_leases WHERE session_key = :session_key AND token = CAST(:token AS uuid)
RETURNING session_key
""")

# The reply was delivered although the message filter did not let it be stored.
_ANSWERED = text("""
WITH held AS (
    DELETE FROM turn_leases WHERE session_key = :session_key AND token = CAST(:token AS uuid) RETURNING session_key
)
UPDATE sessions SET answered_seq = last_seq
WHERE key = :session_key AND (CAST(:token AS uuid) IS NULL OR EXISTS (SELECT FROM held))
RETURNING key
""")


async def acquire(
    connection: Connection, session_id: str, *, token: str, holder: str, seconds: float, owner: str | None
) -> Attempt | None:
    """Take the turn of a session. None when there is no such session; nothing is taken of another owner's."""
    parameters = {"session_id": session_id, "token": token, "holder": holder, "seconds": seconds, "owner": owner}
    rows = await fetch(connection, _ACQUIRE, parameters)
    if not rows:
        return None
    row = rows[0]
    session = session_of(row)
    if row["taken"]:
        return Attempt(session=session, lease=Lease(session_key=session.key, token=token, seconds=seconds))
    other = None if row["other"] is None else Holder(request_id=row["other"], since=row["other_since"])
    return Attempt(session=session, lease=None, holder=other)


async def renew(connection: Connection, lease: Lease) -> bool:
    """Hold on for another while; False when the turn is another's by now, or the session is gone."""
    return bool(await fetch(connection, _RENEW, _named(lease) | {"seconds": lease.seconds}))


async def release(connection: Connection, lease: Lease) -> None:
    """Give up the turn, if it is still this one's."""
    await fetch(connection, _RELEASE, _named(lease))


async def answered(connection: Connection, session_key: int, lease: Lease | None) -> None:
    """Note that what the log holds was answered, and give up the turn."""
    token = None if lease is None else lease.token
    await fetch(connection, _ANSWERED, {"session_key": session_key, "token": token})


def _named(lease: Lease) -> dict[str, Any]:
    return {"session_key": lease.session_key, "token": lease.token}
