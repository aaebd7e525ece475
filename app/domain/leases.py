"""Turn leases: which request has a session's turn, and until when."""

from dataclasses import dataclass
from datetime import datetime

from app.domain.sessions import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A turn that a request holds; `token` is its own, so that a slow holder cannot pass for its successor."""

    session_key: int
    token: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnWrite:
    """How a chat's write goes with its turn, which `lease` is None of where turns may interleave.

    `required`: nothing is written when the turn was lost; else what is written then is marked `late`. `releases`
    gives the turn up. `answers`: what is written completes the answer to all that the log holds.
    """

    lease: Lease | None
    required: bool = False
    releases: bool = False
    answers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Another request that has the turn."""

    request_id: str
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A session, and its lease if that could be taken; else who has it."""

    session: Session
    lease: Lease | None
    holder: Holder | None = None
