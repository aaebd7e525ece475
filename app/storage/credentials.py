"""Service keys as digests, and which users were erased, in PostgreSQL."""

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import text

from app.storage.database import Connection
from app.storage.sessions import LIVE_SQL

_ADD_KEY = text("""
INSERT INTO service_keys (id, name, prefix, digest, created_at) VALUES (:id, :name, :prefix, :digest, now())
""")
_KEYS = text(
    "SELECT id, name, prefix, digest, created_at, last_used_at, revoked_at FROM service_keys ORDER BY created_at"
)
_REVOKE_KEY = text("UPDATE service_keys SET revoked_at = now() WHERE id = :id AND revoked_at IS NULL")
_KEY_USED = text("""
UPDATE service_keys SET last_used_at = now()
WHERE id = :id AND (last_used_at IS NULL OR last_used_at < now() - interval '1 minute')
""")
# clock_timestamp(): a token that is made while the user is being erased is older than the end of it.
_ERASED = text("""
INSERT INTO erased_users (user_digest, erased_at) VALUES (:digest, clock_timestamp())
ON CONFLICT (user_digest) DO UPDATE SET erased_at = EXCLUDED.erased_at
""")
_ERASED_AT = text("SELECT erased_at FROM erased_users WHERE user_digest = :digest")
_SESSION = text(f"SELECT key, user_id FROM sessions WHERE id = :id AND {LIVE_SQL}")  # noqa: S608


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceKey:
    """`prefix` is how the key begins, which tells its holder which one it is."""

    id: str
    name: str
    prefix: str
    digest: bytes
    created_at: datetime
    last_used_at: datetime | None = None
    revoked_at: datetime | None = None


async def add_key(connection: Connection, *, key_id: str, name: str, prefix: str, digest: bytes) -> None:
    await connection.execute(_ADD_KEY, {"id": key_id, "name": name, "prefix": prefix, "digest": digest})


async def keys(connection: Connection) -> list[ServiceKey]:
    """All that were ever made, the revoked ones as well, oldest first."""
    return [ServiceKey(**row) for row in (await connection.execute(_KEYS)).mappings()]


async def revoke_key(connection: Connection, key_id: str) -> bool:
    """Whether there was such a key, not revoked yet."""
    return bool((await connection.execute(_REVOKE_KEY, {"id": key_id})).rowcount)


async def note_use(connection: Connection, key_id: str) -> None:
    await connection.execute(_KEY_USED, {"id": key_id})


async def note_erasure(connection: Connection, user_id: str) -> None:
    """From now on the tokens are void that a user had."""
    await connection.execute(_ERASED, {"digest": _digest(user_id)})


async def erased_at(connection: Connection, user_id: str) -> datetime | None:
    """When a user was erased last; None for never, or longer ago than a token lives."""
    instant: datetime | None = await connection.scalar(_ERASED_AT, {"digest": _digest(user_id)})
    return instant


async def now(connection: Connection) -> datetime:
    """By the one clock that all replicas share."""
    instant: datetime = await connection.scalar(text("SELECT clock_timestamp()"))
    return instant


async def find_session(connection: Connection, session_id: str) -> tuple[int, str] | None:
    """The inner key and the owner of a session that lives."""
    row: Any = (await connection.execute(_SESSION, {"id": session_id})).one_or_none()
    return None if row is None else (row.key, row.user_id)


def _digest(user_id: str) -> bytes:
    """Whoever is erased is not remembered by name."""
    return hashlib.sha256(user_id.encode()).digest()
