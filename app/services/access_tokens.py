"""Tokens for users and sessions: JWTs (RFC 7519), signed with HS256 and checked against what became of both since."""

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import jwt

from app.domain import ids
from app.domain.credentials import SCOPES, Credential, Scope
from app.domain.errors import SessionNotFound, TokensNotConfigured, Unauthorized
from app.storage import credentials
from app.storage.database import Database

ISSUER = AUDIENCE = "turnkeeper"
DEFAULT_TTL_SECONDS = 3_600
MAX_TTL_SECONDS = 30 * 24 * 3_600

_ALGORITHM = "HS256"
# The one spelling of a token: decoders also take padding, and any of the two bits at the end that say nothing, and
# by each spelling a token would have a share of its own of the rate limit.
_SPELLING = re.compile(r"[\w-]+\.[\w-]+\.[\w-]{42}[AEIMQUYcgkosw048]", re.ASCII)
_REQUIRED = ["exp", "iat", "iss", "aud", "sub", "scopes"]


class AccessTokens:
    """The first of the secrets signs, each of them is accepted: so one takes the place of another without a break."""

    def __init__(self, db: Database, secrets: Sequence[str]) -> None:
        self._db = db
        self._secrets = secrets

    def might_be(self, credential: str) -> bool:
        """Whether a credential is to be read as a token."""
        return bool(self._secrets) and credential.count(".") == 2

    async def for_user(self, user_id: str, scopes: Sequence[Scope], ttl_seconds: int) -> tuple[str, datetime]:
        """A token and when it expires. Raises TokensNotConfigured."""
        secret = self._signing()
        async with self._db.autocommit() as connection:
            now = await credentials.now(connection)
        return _signed({"sub": user_id, "scopes": list(scopes)}, secret, now, ttl_seconds)

    async def for_session(self, session_id: str, scopes: Sequence[Scope], ttl_seconds: int) -> tuple[str, datetime]:
        """A token for a session, void with it. Raises SessionNotFound, TokensNotConfigured."""
        secret = self._signing()
        async with self._db.autocommit() as connection:
            found = await credentials.find_session(connection, session_id)
            now = await credentials.now(connection)
        if found is None:
            raise SessionNotFound(session_id)
        key, owner = found
        claims = {"sub": owner, "sid": session_id, "mark": _mark(secret, key), "scopes": list(scopes)}
        return _signed(claims, secret, now, ttl_seconds)

    async def read(self, token: str) -> Credential:
        """Raises Unauthorized, which says why."""
        claims, secret = self._verified(token)
        if "sid" in claims:
            return await self._of_session(claims, secret)
        async with self._db.autocommit() as connection:
            erased_at = await credentials.erased_at(connection, claims["sub"])
        if erased_at is not None and erased_at.timestamp() >= claims["iat"]:
            raise Unauthorized("This token was made for a user who was erased since.")
        return Credential(user_id=claims["sub"], scopes=_scopes(claims))

    async def _of_session(self, claims: Mapping[str, Any], secret: str) -> Credential:
        session_id = claims["sid"]
        async with self._db.autocommit() as connection:
            found = await credentials.find_session(connection, session_id)
        if found is None or not hmac.compare_digest(_mark(secret, found[0]), claims["mark"]):
            raise Unauthorized("The session is gone that this token was made for.")
        return Credential(user_id=found[1], session_id=session_id, session_key=found[0], scopes=_scopes(claims))

    def _signing(self) -> str:
        if not self._secrets:
            raise TokensNotConfigured
        return self._secrets[0]

    def _verified(self, token: str) -> tuple[Mapping[str, Any], str]:
        if not _SPELLING.fullmatch(token):
            raise Unauthorized("This token is not accepted: it is none of this service.")
        reason = "it is not signed by this service"
        for secret in self._secrets:
            try:
                return _claims(token, secret), secret
            except jwt.InvalidSignatureError:
                continue
            except jwt.ExpiredSignatureError:
                reason = "it has expired"
            except (jwt.InvalidTokenError, ValueError, RecursionError):
                reason = "it is none of this service"
        raise Unauthorized(f"This token is not accepted: {reason}.")


def _claims(token: str, secret: str) -> Mapping[str, Any]:
    # `iat` is by the database's clock, which may be ahead of this machine's.
    options: Any = {"require": _REQUIRED, "verify_iat": False}
    claims: Mapping[str, Any] = jwt.decode(
        token, secret, algorithms=[_ALGORITHM], issuer=ISSUER, audience=AUDIENCE, options=options
    )
    if not _are_ours(claims):
        raise jwt.InvalidTokenError
    return claims


def _are_ours(claims: Mapping[str, Any]) -> bool:
    """Whether the service could have made them: others may sign with the secret too."""
    scopes = claims["scopes"]
    return (
        ids.fault_of_user_id(claims["sub"]) is None
        and ("sid" not in claims or _is_of_a_session(claims["sid"], claims.get("mark")))
        and isinstance(scopes, list)
        and all(isinstance(scope, str) for scope in scopes)
        and _lives_as_long_as_ours(claims["iat"], claims["exp"])
    )


def _is_of_a_session(session_id: Any, mark: Any) -> bool:
    return (
        isinstance(session_id, str)
        and ids.fault_of_id(session_id) is None
        and isinstance(mark, str)
        and mark.isascii()
    )


def _lives_as_long_as_ours(made: Any, expires: Any) -> bool:
    """Erasures are remembered for as long as a token may live, and no longer."""
    # Exactly these types: True is an int. Whatever is compared with NaN is False.
    return {type(made), type(expires)} <= {int, float} and -1 <= expires - made <= MAX_TTL_SECONDS + 1


def _signed(claims: Mapping[str, Any], secret: str, now: datetime, ttl_seconds: int) -> tuple[str, datetime]:
    expires = int(now.timestamp()) + ttl_seconds
    # With its microseconds: a user may be erased and come back within one second.
    standard = {"iss": ISSUER, "aud": AUDIENCE, "iat": now.timestamp(), "exp": expires}
    return jwt.encode({**claims, **standard}, secret, _ALGORITHM), datetime.fromtimestamp(expires, UTC)


def _scopes(claims: Mapping[str, Any]) -> frozenset[Scope]:
    return frozenset(scope for scope in SCOPES if scope in claims["scopes"])


def _mark(secret: str, session_key: int) -> str:
    """Tells a session from the next of the same id, without showing its inner key."""
    return hmac.new(secret.encode(), f"session:{session_key}".encode(), hashlib.sha256).hexdigest()[:32]
