"""How often one credential may ask, in one process: counted before a body is read. Pure ASGI."""

import hashlib
import math
import time
from collections import OrderedDict
from collections.abc import Sequence

from limits import RateLimitItem
from limits.storage import Storage
from limits.strategies import FixedWindowRateLimiter
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.bearer import bearer_of
from app.api.problems import problem_of_status

# What an orchestrator and a scraper ask, also of a service that is busy.
UNLIMITED_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})

# 200 bytes each. Whoever asked longest ago is forgotten first: that lets somebody ask more, and refuses nobody.
_MAX_CREDENTIALS = 50_000


class RateLimit:
    """Refuses whoever asks too often (429), told apart by the credential or, without one, by the address."""

    def __init__(
        self, app: ASGIApp, *, limits: Sequence[RateLimitItem], max_credentials: int = _MAX_CREDENTIALS
    ) -> None:
        self.app = app
        self.limits = limits
        self._limiter = FixedWindowRateLimiter(_Counts(max_credentials))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in UNLIMITED_PATHS and (wait := self._wait(_asker(scope))):
            detail = f"More than {self._described()} requests; try again after {wait} seconds."
            headers = {"Retry-After": str(wait)}
            await problem_of_status(scope, 429, detail, headers)(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _wait(self, asker: str) -> int:
        """Whole seconds until this one may ask again; 0: now."""
        exceeded = [limit for limit in self.limits if not self._limiter.hit(limit, asker)]
        ends = [self._limiter.get_window_stats(limit, asker).reset_time for limit in exceeded]
        return max(1, math.ceil(max(ends) - time.time())) if ends else 0

    def _described(self) -> str:
        return " or ".join(str(limit) for limit in self.limits)


class _Counts(Storage):
    """A bound, and no more work than a lookup: the library's own counts in memory are walked over all the time."""

    STORAGE_SCHEME = None

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self._windows: OrderedDict[str, tuple[int, float]] = OrderedDict()

    @property
    def base_exceptions(self) -> type[Exception]:
        return ValueError

    def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        now = time.time()
        count, ends = self._windows.pop(key, (0, 0.0))
        count, ends = (count + amount, ends) if ends > now else (amount, now + expiry)
        self._windows[key] = (count, ends)
        if len(self._windows) > self._most:
            self._windows.popitem(last=False)
        return count

    def get(self, key: str) -> int:
        count, ends = self._windows.get(key, (0, 0.0))
        return count if ends > time.time() else 0

    def get_expiry(self, key: str) -> float:
        return self._windows.get(key, (0, time.time()))[1]

    def check(self) -> bool:
        return True

    def reset(self) -> int:
        count = len(self._windows)
        self._windows.clear()
        return count

    def clear(self, key: str) -> None:
        self._windows.pop(key, None)


def _asker(scope: Scope) -> str:
    """Exactly what the gate has let in by: else one credential had a share for each way of writing it."""
    if given := bearer_of(Headers(scope=scope)):
        return hashlib.sha256(given.encode("latin-1")).hexdigest()
    client = scope.get("client")
    return f"address {client[0]}" if client else "address unknown"
