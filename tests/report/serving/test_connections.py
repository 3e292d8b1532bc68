"""A connection that sends no whole header, or takes no answer, is closed; any other is answered."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

uvicorn = pytest.importorskip("uvicorn")

from nantrap.report.serving.connections import LimitedConnection  # noqa: E402 - after the check for the extra


async def _answers(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


class Quick(LimitedConnection):
    header_seconds = 0.1
    answer_seconds = 0.1


def test_half_a_header_is_closed_and_a_whole_one_is_answered() -> None:
    async def everything() -> list[bytes]:
        listening = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(_answers, http=Quick, log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        port = listening.getsockname()[1]
        got = []
        held: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        for sent in [b"", b"GET / HTTP/1.1\r\nHost: x\r\n"] * 20:
            held.append(await asyncio.open_connection("127.0.0.1", port))
            held[-1][1].write(sent)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        got.append(await asyncio.wait_for(reader.readuntil(b"ok"), 60))
        writer.write(b"GET / HTTP/1.1\r\n")  # the second header of the same connection is cut, too
        for one, other in (*held, (reader, writer)):
            got.append(await asyncio.wait_for(one.read(), 60))
            other.close()
            await other.wait_closed()
        server.should_exit = True
        await asyncio.wait_for(serving, 60)
        return got

    first, *others = asyncio.run(everything())
    assert first.startswith(b"HTTP/1.1 200")
    assert others == [b""] * 41


def test_an_answer_that_nobody_reads_is_given_up() -> None:
    async def everything() -> None:
        given_up = asyncio.Event()

        async def sends_much(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": bytes(64 << 20), "more_body": True})
                while (await receive())["type"] != "http.disconnect":
                    pass
                given_up.set()

        listening = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(sends_much, http=Quick, log_level="critical", lifespan="off")
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        with socket.create_connection(listening.getsockname()) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await asyncio.wait_for(given_up.wait(), 60)
        server.should_exit = True
        await asyncio.wait_for(serving, 60)

    asyncio.run(everything())
