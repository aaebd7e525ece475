"""Connections whose client does nothing more are closed: each takes a descriptor, of which a process has few."""

import asyncio
from array import array
from contextlib import suppress
from fcntl import ioctl
from termios import TIOCOUTQ
from typing import Self

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# How often in the time that a client has it is looked at.
_LOOKS = 4


class PatientProtocol(HttpToolsProtocol):
    """HTTP/1.1, for clients that move within `patience` seconds.

    The head of a request has to be there within that time. Of a body some byte has to come, and of an answer that is
    ready some byte has to be taken. Between requests uvicorn closes a connection by itself.
    """

    patience: float

    @classmethod
    def of(cls, patience: float) -> type[Self]:
        """uvicorn makes one for each connection, and passes nothing on."""
        return type(cls.__name__, (cls,), {"patience": patience})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expected_since: float | None = self.loop.time()
        self._moved_at = self.loop.time()
        self._left_to_send = 0
        self._look = self.loop.call_later(self.patience / _LOOKS, self._look_at_it)

    def connection_lost(self, exc: Exception | None) -> None:
        self._look.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._moved_at = self.loop.time()
        super().data_received(data)

    def on_message_begin(self) -> None:
        self._expected_since = self.loop.time()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._expected_since = None
        super().on_headers_complete()

    def resume_writing(self) -> None:
        self._moved_at = self.loop.time()
        super().resume_writing()

    def _look_at_it(self) -> None:
        if self._stands_still_for() > self.patience:
            self.transport.abort()
            return
        self._look = self.loop.call_later(self.patience / _LOOKS, self._look_at_it)

    def _stands_still_for(self) -> float:
        now, left = self.loop.time(), self._bytes_left()
        if not left and (self.cycle is None or self.cycle.response_complete):
            return 0 if self._expected_since is None else now - self._expected_since
        if left < self._left_to_send or not (left or self._owes_a_body()):
            self._moved_at = now
        self._left_to_send = left
        return now - self._moved_at

    def _bytes_left(self) -> int:
        """What the client has yet to take, once that is more than the kernel holds."""
        waiting = self.transport.get_write_buffer_size()
        if not waiting:
            return 0
        in_kernel = array("i", [0])
        with suppress(OSError):  # Elsewhere than on Linux.
            ioctl(self.transport.get_extra_info("socket").fileno(), TIOCOUTQ, in_kernel)
        return waiting + in_kernel[0]

    def _owes_a_body(self) -> bool:
        """Not while the service itself does not read on."""
        return self.cycle.more_body and not self.flow.read_paused
