"""Connections of the live page: one that sends no whole request in time is closed.

uvicorn has a limit for idle connections that were served once, and none for the header of a request. A few hundred
connections that send half a header would otherwise stay until their owner goes away.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol


class HeaderTimeout(H11Protocol):
    """HTTP/1.1 with at most `header_seconds` from the first byte, or from the connection, to the end of the header."""

    header_seconds: ClassVar[float] = 10.0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Take the bytes, and wait on if the header is not whole yet."""
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._wait()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timer with the connection."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        """Start the timer, unless it runs: more bytes of the same header do not give more time."""
        if self._timer is None:
            self._timer = self.loop.call_later(self.header_seconds, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
