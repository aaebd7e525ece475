"""What a trace is told of calls to the upstream; without tracing nothing."""

from collections.abc import Mapping


class CallSpan:
    """One attempt. `headers` go with its request, so that the upstream's spans find their parent."""

    headers: Mapping[str, str] = {}

    def answered(self, status: int) -> None:
        """The status came."""

    def ended(self, outcome: str) -> None:
        """It is over."""


class Tracer:
    """Begins spans."""

    def upstream_call(self, method: str, url: str) -> CallSpan:  # noqa: ARG002
        return CallSpan()


UNTRACED = Tracer()
