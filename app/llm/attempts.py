"""One attempt at the upstream, timed, and how it ended."""

import time
from types import TracebackType
from typing import Self

import httpx

from app.domain.errors import UpstreamFailed, UpstreamTimedOut
from app.domain.observer import Observer, UpstreamOperation, UpstreamOutcome
from app.domain.spans import CallSpan


class Attempt:
    """Tells an observer once how it ended. As a context manager it ends by what is raised, and only then."""

    def __init__(self, observer: Observer, operation: UpstreamOperation, span: CallSpan) -> None:
        self.headers = span.headers
        self._observer = observer
        self._span = span
        self._operation: UpstreamOperation = operation
        self._started = time.perf_counter()
        self._has_ended = False

    def answered(self, status: int) -> None:
        """The status and the headers came."""
        self._span.answered(status)
        self._observer.upstream_answered(self._operation, self._seconds())

    def ended(self, outcome: UpstreamOutcome) -> None:
        """Only the first one counts."""
        if not self._has_ended:
            self._has_ended = True
            self._span.ended(outcome)
            self._observer.upstream_ended(self._operation, outcome, self._seconds())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        if error is not None:
            self.ended(_outcome_of(error))

    def _seconds(self) -> float:
        return time.perf_counter() - self._started


def outcome_of_status(status: int) -> UpstreamOutcome:
    return "ok" if 200 <= status < 300 else "refused" if 400 <= status < 500 else "failed"


def _outcome_of(error: BaseException) -> UpstreamOutcome:
    if isinstance(error, UpstreamTimedOut):
        return "timed_out"
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return "unreachable"
    # Cancelled, most of all: nobody waits for it any more.
    return "broke_off" if isinstance(error, httpx.HTTPError | UpstreamFailed) else "abandoned"
