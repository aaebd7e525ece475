"""Who is let in, before anything of a request is read: pure ASGI."""

from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.bearer import bearer_of
from app.api.problems import problem_of_error, problem_of_status
from app.config import is_loopback
from app.domain.credentials import SERVICE_KEY, Credential
from app.domain.errors import DomainError, Unauthorized
from app.services.access_tokens import AccessTokens
from app.services.service_keys import KeyRing

# What answers without a credential.
OPEN_PATHS = frozenset({"/healthz", "/readyz", "/openapi.json", "/docs"})


class Gate:
    """Finds out whose request it is: a service key's, or a token's; without keys, this machine's alone.

    What a credential may do is declared by the routes (`app.api.access`). Another web page in a browser on this
    machine could reach a service without keys: hence the checks of `Host` (DNS rebinding) and `Origin`. `is_public`:
    the service listens beyond this machine, and is never open.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: KeyRing,
        tokens: AccessTokens,
        allowed_hosts: Sequence[str] | None,
        is_public: bool,
        open_paths: frozenset[str] = OPEN_PATHS,
    ) -> None:
        self.app = app
        self.keys = keys
        self.tokens = tokens
        self.allowed_hosts = None if allowed_hosts is None else {host.lower() for host in allowed_hosts}
        self.is_public = is_public
        self.open_paths = open_paths

    @property
    def is_open(self) -> bool:
        return self.keys.is_open and not self.is_public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if refusal := self._refusal(headers):
            await problem_of_status(scope, *refusal)(scope, receive, send)
            return
        try:
            given = bearer_of(headers)
            is_open = scope["path"] in self.open_paths
            scope["state"]["credential"] = SERVICE_KEY if is_open else await self._credential(given)
        except DomainError as error:
            await problem_of_error(scope, error)(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _refusal(self, headers: Headers) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if not self._is_allowed(_host_name(host)):
            return 421, f"This service does not answer for the host {host!r}; TURNKEEPER_ALLOWED_HOSTS names which."
        origin = headers.get("origin")
        if not self.is_open or origin is None or _host_and_port(origin) == host.lower():
            return None
        return 403, f"A service without keys is not open to web pages of another origin ({origin!r})."

    def _is_allowed(self, host: str) -> bool:
        if self.allowed_hosts is not None:
            return "*" in self.allowed_hosts or host in self.allowed_hosts
        return not self.is_open or is_loopback(host)

    async def _credential(self, given: str) -> Credential:
        if given and await self.keys.knows(given):
            return SERVICE_KEY
        if given and self.tokens.might_be(given):
            return await self.tokens.read(given)
        if self.is_open:
            await self.keys.refresh()
        if self.is_open:
            return SERVICE_KEY
        raise Unauthorized("Send a service key or a token: Authorization: Bearer KEY.")


def _host_and_port(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _host_name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""
