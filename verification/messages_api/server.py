"""The server: a stand-in of the Messages API, for the real CLI, on this machine only.

    async with MessagesApi([tool_use("Bash", {"command": "ls"}), text("done")]) as api:
        ...  # ANTHROPIC_BASE_URL=api.url, any ANTHROPIC_API_KEY
        await api.wait_for_requests(2)
        assert "ok" in api.requests[1].tool_results[0].text

It answers ``POST /v1/messages`` (streamed or not) from scripts, keeps every request, and lets a
test wait for what it needs to see instead of sleeping. ``url_for("job1")`` is a place of its own on
the same server.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from verification.messages_api.control import CONTROL, answer_control
from verification.messages_api.http import (
    HEAD_LIMIT_BYTES,
    ClientDisconnected,
    Connection,
    IncomingRequest,
)
from verification.messages_api.requests import Request, RequestState, repeated_requests
from verification.messages_api.responder import Responder
from verification.messages_api.scenarios import KEY, NoScript, Scenario
from verification.messages_api.script import (
    NO_USAGE,
    ReadyStep,
    ScriptSource,
    Usage,
    as_scripts,
    error,
)
from verification.messages_api.stream import error_document

LOOPBACK = "127.0.0.1"
WAIT_TIMEOUT_S = 60.0
"""How long a test waits for something before it gives up."""

_SCENARIO_PREFIX = "/s/"
# Roughly the size of a token; no test relies on it.
_BYTES_A_TOKEN = 4


class MessagesApi:
    """The stand-in, inside the event loop of the test."""

    def __init__(
        self, source: ScriptSource = (), *, agents: ScriptSource = (), port: int = 0
    ) -> None:
        self.port = port
        self.other_requests: list[IncomingRequest] = []
        """What came besides questions to a model."""
        self._scenarios = {"": Scenario(as_scripts(source, agents=agents))}
        self._gates: dict[str, asyncio.Event] = {}
        self._count = 0
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._script_error: Exception | None = None

    @property
    def url(self) -> str:
        """What ``ANTHROPIC_BASE_URL`` must be."""
        return f"http://{LOOPBACK}:{self.port}"

    def url_for(self, key: str) -> str:
        """The base URL of a scenario of its own."""
        return f"{self.url}{_SCENARIO_PREFIX}{_checked_key(key)}" if key else self.url

    def set_script(self, source: ScriptSource, *, key: str = "", agents: ScriptSource = ()) -> str:
        """Answer a scenario from this script from now on; its base URL."""
        url, scripts = self.url_for(key), as_scripts(source, agents=agents)
        self._scenarios.setdefault(key, Scenario(())).set_scripts(scripts)
        return url

    def release(self, gate: str) -> None:
        """Let every answer go that waits, or will wait, at this gate."""
        self._gate(gate).set()

    @property
    def requests(self) -> list[Request]:
        """The questions to a model in the nameless scenario, in order."""
        return self.requests_of("")

    def requests_of(self, key: str) -> list[Request]:
        """The questions to a model in a scenario, in order."""
        scenario = self._scenarios.get(key)
        return list(scenario.requests) if scenario else []

    @property
    def all_requests(self) -> list[Request]:
        """The questions to a model in all scenarios, in order."""
        result = (request for item in self._scenarios.values() for request in item.requests)
        return sorted(result, key=lambda request: request.number)

    def repeated_requests(self, key: str = "") -> list[tuple[Request, Request]]:
        """Returns each request for an answer that had arrived, with the request that got it."""
        return repeated_requests(self.requests_of(key))

    def usage_of(self, key: str = "") -> Usage:
        """All tokens that whole answers of a scenario have cost."""
        spent = [request.usage for request in self.requests_of(key) if request.usage]
        return sum(spent, start=NO_USAGE)

    async def wait_for_requests(
        self, count: int, key: str = "", *, timeout_s: float = WAIT_TIMEOUT_S
    ) -> list[Request]:
        """The requests of a scenario, as soon as there are so many.

        Raises:
            TimeoutError: there are fewer; its text says how many.
        """
        try:
            await self.wait_until(lambda: len(self.requests_of(key)) >= count, timeout_s=timeout_s)
        except TimeoutError as late:
            came = len(self.requests_of(key))
            message = f"of {count} requests in scenario {key!r}, {came} came in {timeout_s:g} s"
            raise TimeoutError(message) from late
        return self.requests_of(key)

    async def wait_for_state(
        self,
        state: RequestState,
        count: int = 1,
        key: str = "",
        *,
        timeout_s: float = WAIT_TIMEOUT_S,
    ) -> list[Request]:
        """The requests that have come to a stage, as soon as there are so many.

        Raises:
            TimeoutError: there are fewer.
        """

        def there() -> list[Request]:
            return [request for request in self.requests_of(key) if request.state is state]

        await self.wait_until(lambda: len(there()) >= count, timeout_s=timeout_s)
        return there()

    async def wait_until(
        self, condition: Callable[[], bool], *, timeout_s: float = WAIT_TIMEOUT_S
    ) -> None:
        """Wait until something holds of what was asked and answered.

        Raises:
            TimeoutError: it does not.
        """
        async with asyncio.timeout(timeout_s):
            while not condition():
                await self._changed.wait()

    async def start(self) -> None:
        """Listen, on loopback only."""
        self._server = await asyncio.start_server(
            self._serve_connection, LOOPBACK, self.port, limit=HEAD_LIMIT_BYTES
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Listen no more, and end what is open."""
        if self._server is None:
            return
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()
        if raised is None and self._script_error is not None:
            # An assertion in a script must fail the test, not only the request.
            raise self._script_error

    async def _serve_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None, "called by the server, which makes a task of it"
        self._connections.add(task)
        connection = Connection(reader, writer)
        try:
            while True:
                await self._answer(connection, await connection.receive())
        except (ClientDisconnected, asyncio.CancelledError):
            # Cancelled only by `stop`, which has no use for hearing of it again.
            pass
        finally:
            self._connections.discard(task)
            await connection.close()

    async def _answer(self, connection: Connection, incoming: IncomingRequest) -> None:
        if incoming.path.startswith(CONTROL):
            await answer_control(self, connection, incoming)
            return
        key, path = _split_path(incoming.path)
        if (incoming.method, path) == ("POST", "/v1/messages"):
            await self._answer_messages(connection, incoming, key)
            return
        self.other_requests.append(incoming)
        self._notify()
        if (incoming.method, path) == ("POST", "/v1/messages/count_tokens"):
            count = max(1, len(incoming.body) // _BYTES_A_TOKEN)
            await connection.send_json(200, {"input_tokens": count}, {})
        elif incoming.method == "HEAD":
            # The CLI looks whether anybody is there.
            await connection.send(200, b"", content_type="text/plain", headers={})
        else:
            await connection.send_json(404, error_document("not_found_error", incoming.path), {})

    async def _answer_messages(
        self, connection: Connection, incoming: IncomingRequest, key: str
    ) -> None:
        request, scenario = self._record(incoming, key), self._scenarios[key]
        try:
            step = self._step_for(request, scenario)
            if step.delay_s:
                await connection.wait_for(asyncio.sleep(step.delay_s))
            if step.gate is not None:
                await connection.wait_for(self._gate(step.gate).wait())
            await Responder(
                request=request, connection=connection, on_state_change=self._notify
            ).respond(step)
        except ClientDisconnected:
            if request.state is not RequestState.BROKEN:
                request.state = RequestState.ABANDONED
            raise
        finally:
            self._notify()

    def _step_for(self, request: Request, scenario: Scenario) -> ReadyStep:
        try:
            step = scenario.next_step(request)
            return step(request) if callable(step) else step
        except NoScript as missing:
            return error(400, str(missing))
        # The test's function: its exception goes to the test, and the client needs a response.
        except Exception as failed:  # noqa: BLE001
            self._script_error = self._script_error or failed
            return error(500, f"the script failed: {failed!r}", headers={"x-should-retry": "false"})

    def _record(self, incoming: IncomingRequest, key: str) -> Request:
        self._count += 1
        request = Request(
            number=self._count,
            scenario=key,
            method=incoming.method,
            path=incoming.path,
            query=incoming.query,
            headers=incoming.headers,
            body=_document(incoming.body),
            received_at_s=time.monotonic(),
        )
        self._scenarios.setdefault(key, Scenario(())).requests.append(request)
        self._notify()
        return request

    def _gate(self, name: str) -> asyncio.Event:
        return self._gates.setdefault(name, asyncio.Event())

    def _notify(self) -> None:
        """Wake all waiters; each checks its own condition."""
        self._changed.set()
        self._changed = asyncio.Event()


def _split_path(path: str) -> tuple[str, str]:
    """The scenario that a path speaks of, and the path within it."""
    if not path.startswith(_SCENARIO_PREFIX):
        return "", path
    key, _, rest = path.removeprefix(_SCENARIO_PREFIX).partition("/")
    return key, f"/{rest}"


def _checked_key(key: str) -> str:
    if not KEY.match(key):
        message = f"a scenario's key is letters, digits, '_', '.' and '-', and not {key!r}"
        raise ValueError(message)
    return key


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
