"""Connections of the live page: one that sends no whole request in time, or takes no answer, is closed.

uvicorn has a limit for idle connections that were served once. It has none for the header of a request, nor for an
answer that nobody reads. A few hundred such connections would otherwise stay until their owner goes away.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol


class LimitedConnection(H11Protocol):
    """HTTP/1.1 with at most `header_seconds` from the first byte, or from the connection, to the end of the header.

    What was sent has to be taken within `answer_seconds`.
    """

    header_seconds: ClassVar[float] = 10.0
    answer_seconds: ClassVar[float] = 30.0
    _timer: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request."""
        transport.set_write_buffer_limits(high=0)  # `pause_writing` is called for whatever the client does not take
        super().connection_made(transport)
        self._wait()

    def pause_writing(self) -> None:
        """The client does not read: wait for it."""
        super().pause_writing()
        self._unread = self.loop.call_later(self.answer_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has read everything."""
        self._stop_waiting_for_reader()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        """Take the bytes, and wait on if the header is not whole yet."""
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._wait()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timers with the connection."""
        self._stop_waiting()
        self._stop_waiting_for_reader()
        super().connection_lost(exc)

    def _wait(self) -> None:
        """Start the timer, unless it runs: more bytes of the same header do not give more time."""
        if self._timer is None:
            self._timer = self.loop.call_later(self.header_seconds, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_waiting_for_reader(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
