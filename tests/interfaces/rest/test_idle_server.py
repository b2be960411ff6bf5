"""The HTTP server between requests: it has no timer, and its answers have the date anyway."""

import asyncio
import contextlib
from datetime import timedelta
from email.utils import parsedate_to_datetime

from fastapi import FastAPI

from longshore.adapters.system import SystemClock
from longshore.interfaces.rest.server import bind_socket, serve


def test_a_server_without_requests_has_no_timer_and_answers_have_the_date() -> None:
    async def scenario() -> str:
        with contextlib.closing(bind_socket("127.0.0.1", 0)) as listening:
            port = listening.getsockname()[1]
            async with serve(FastAPI(), listening):
                answer = await _request(port)  # so it has started
                timers = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
                assert [timer for timer in timers if not timer.cancelled()] == []
                return answer

    began = SystemClock().now() - timedelta(seconds=1)  # the header has whole seconds
    lines = asyncio.run(scenario()).splitlines()

    (date,) = [line for line in lines if line.startswith("date: ")]
    assert began <= parsedate_to_datetime(date.removeprefix("date: ")) <= SystemClock().now()


async def _request(port: int) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer.decode()
