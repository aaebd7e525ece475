"""Where a database is, as its URL says: in SQLAlchemy's form, with the parameters that libpq knows."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError
from uuid_utils import uuid7

_CACHE_SIZE = "prepared_statement_cache_size"
_LAST_PORT = 65_535
_UNREADABLE = (
    "TURNKEEPER_DATABASE_URL cannot be read. It is postgresql://user:password@host:5432/database, where characters "
    "that mean something in a URL are percent-encoded (`/` is %2F, `%` is %25)."
)
_ALSO_CALLED = {"ssl": "sslmode"}


class DatabaseUnusable(Exception):
    """The database of the settings cannot be used; the message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """`url` is for SQLAlchemy, `parameters` (TLS, hosts) for the driver, which passes on what it does not know."""

    url: URL
    parameters: dict[str, str]

    @classmethod
    def of(cls, text: str) -> "Address":
        """Raises DatabaseUnusable."""
        try:
            url = make_url(text)
            named = {_ALSO_CALLED.get(name, name): ",".join(values) for name, values in url.normalized_query.items()}
            cache = {_CACHE_SIZE: str(int(named.pop(_CACHE_SIZE)))} if _CACHE_SIZE in named else {}
        except (ArgumentError, ValueError):
            # Not in the error's own words: they may be those of a password.
            raise DatabaseUnusable(_UNREADABLE) from None
        if url.port is not None and not 0 < url.port <= _LAST_PORT:
            raise DatabaseUnusable(_UNREADABLE)
        return cls(url=url.set(drivername="postgresql+asyncpg", query=cache), parameters=named)

    @property
    def has_prepared_statements(self) -> bool:
        """With their cache turned off, nothing may rely on two statements reaching the same server.

        That is PgBouncer in transaction mode: unnamed names would clash there, and asyncpg has a cache of its own.
        """
        return self.url.query.get(_CACHE_SIZE) != "0"

    def connect_arguments(self) -> dict[str, Any]:
        arguments: dict[str, Any] = {"dsn": f"postgresql://?{urlencode(self.parameters)}"} if self.parameters else {}
        if self.has_prepared_statements:
            return arguments
        return arguments | {
            "statement_cache_size": 0,
            "prepared_statement_name_func": lambda: f"turnkeeper_{uuid7()}",
        }
