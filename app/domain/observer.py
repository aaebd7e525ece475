"""What the service notices of its own work, in numbers and a few fixed words: never ids, never content."""

from typing import Literal

UpstreamOperation = Literal["chat", "models"]
UpstreamOutcome = Literal["ok", "refused", "failed", "unreachable", "timed_out", "broke_off", "abandoned"]
TokenPurpose = Literal["chat", "summary"]


class Observer:
    """Is told what happens and does nothing about it; who counts overrides. Durations are in seconds."""

    def request_began(self) -> None:
        """A request came; `request_ended` follows whatever becomes of it."""

    def request_ended(self, method: str, route: str, status: int, seconds: float) -> None:
        """`route` is a template of the service's own; `status` is 0 where nothing was answered."""

    def upstream_answered(self, operation: UpstreamOperation, seconds: float) -> None:
        """The headers of an answer came, whatever they say."""

    def upstream_ended(self, operation: UpstreamOperation, outcome: UpstreamOutcome, seconds: float) -> None:
        """One attempt is over."""

    def tokens_used(self, purpose: TokenPurpose, prompt: int, completion: int, *, reported: bool) -> None:
        """Of one completion: as the upstream reported them, or as they were counted here."""

    def compaction_ended(self, outcome: str) -> None:
        """`compacted`, `failed`, or the reason why nothing was archived."""

    def orphans_left_out(self, messages: int) -> None:
        """Messages of a log that a prompt cannot hold: calls without their results, results without their call."""

    def pool_sized(self, pool: str, size: int) -> None:
        """How many connections a pool may open."""

    def pool_waiting(self, pool: str, more: int) -> None:
        """So many more, or fewer, want a connection and have none."""

    def pool_in_use(self, pool: str, more: int) -> None:
        """So many more, or fewer, connections are in use."""

    def pool_timed_out(self, pool: str) -> None:
        """Somebody waited for a connection in vain."""

    def swept(self, rows: int | None) -> None:
        """A round of the sweeper removed so many rows; None: it failed."""


UNOBSERVED = Observer()
