"""Service keys: those of the settings, and those that `turnkeeper keys` makes and revokes while the service runs."""

import hashlib
import hmac
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress

from uuid_utils import uuid7

from app.domain.errors import DomainError
from app.storage import credentials
from app.storage.credentials import ServiceKey
from app.storage.database import Database

# How long a revoked key may still be let in, and a service without keys stay open once one is made.
CACHE_SECONDS = 10
# A key that was made a moment ago works at once; wrong ones do not have the database asked for each.
_SOONEST_SECONDS = 1
_USE_NOTED_SECONDS = 60

_MARK = "tk_"
_PREFIX_LENGTH = len(_MARK) + 6


class KeyRing:
    """The keys that are let in. `is_open`: no key was ever set or made, so that none can be asked for."""

    def __init__(self, db: Database, configured: Sequence[str]) -> None:
        self._db = db
        self._configured = [digest_of(key) for key in configured]
        self._made: list[ServiceKey] = []
        self._read_at = -float("inf")
        self._noted: dict[str, float] = {}

    @property
    def is_open(self) -> bool:
        # A revoked key counts: revoking the last one must not open the service.
        return not self._configured and not self._made

    async def refresh(self, *, older_than: float = CACHE_SECONDS) -> None:
        """Read what keys were made, if that is so many seconds ago. Raises DatabaseUnavailable, Overloaded."""
        if time.monotonic() - self._read_at < older_than:
            return
        self._read_at = time.monotonic()  # First: while one request reads, or waits to, the others go on.
        async with self._db.autocommit() as connection:
            self._made = await credentials.keys(connection)

    async def knows(self, key: str) -> bool:
        """Whether this is a service key. What the database cannot tell now stays as it was told last."""
        given = digest_of(key)
        # Every key is compared, each in constant time: how long it takes tells nothing of them.
        if sum(hmac.compare_digest(given, known) for known in self._configured):
            return True
        with suppress(DomainError):
            await self.refresh()
        if not self._find(given) and key.startswith(_MARK):
            with suppress(DomainError):
                await self.refresh(older_than=_SOONEST_SECONDS)
        if (made := self._find(given)) is None:
            return False
        await self._note_use(made.id)
        return True

    def _find(self, given: bytes) -> ServiceKey | None:
        found = [key for key in self._made if hmac.compare_digest(given, key.digest) and key.revoked_at is None]
        return next(iter(found), None)

    async def _note_use(self, key_id: str) -> None:
        if time.monotonic() - self._noted.get(key_id, -float("inf")) < _USE_NOTED_SECONDS:
            return
        self._noted[key_id] = time.monotonic()
        with suppress(DomainError):
            async with self._db.autocommit() as connection:
                await credentials.note_use(connection, key_id)


async def make_key(db: Database, name: str) -> tuple[str, str]:
    """A new service key: its id and itself, which is kept nowhere."""
    key_id, key = str(uuid7()), _MARK + secrets.token_urlsafe(32)
    async with db.transaction() as connection:
        await credentials.add_key(
            connection, key_id=key_id, name=name, prefix=key[:_PREFIX_LENGTH], digest=digest_of(key)
        )
    return key_id, key


def digest_of(key: str) -> bytes:
    """Keys are random and long: a plain hash of one tells nothing."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
