"""Playing a step: from the script's value to bytes on the connection, or to their absence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from longshore.testing.messages_api.http import ClientLeft, Connection
from longshore.testing.messages_api.requests import Request, Stage
from longshore.testing.messages_api.script import (
    ERROR_TYPES,
    Answer,
    Broken,
    Fault,
    HttpError,
    Raw,
    ReadyStep,
)
from longshore.testing.messages_api.stream import (
    encode_event,
    error_document,
    events,
    message_document,
)

# The lowest status of each.
_STATUSES = {ERROR_TYPES[status]: status for status in sorted(ERROR_TYPES, reverse=True)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """One request that is being answered; what became of it is noted on the request."""

    request: Request
    connection: Connection
    # Called when the request comes to a stage in which it may stay for long.
    tell: Callable[[], None]

    async def step(self, step: ReadyStep) -> None:
        """Answer as the step says.

        Raises:
            ClientLeft: the connection is of no more use.
        """
        headers = {"request-id": f"req_scripted_{self.request.number}", **step.headers}
        match step:
            case HttpError(status=status, error_type=kind, message=message):
                await self.connection.send_json(status, error_document(kind, message), headers)
                self.request.stage = Stage.REFUSED
            case Raw(status=status, body=body, content_type=kind):
                data = body.encode()
                await self.connection.send(status, data, content_type=kind, headers=headers)
                self.request.stage = Stage.REFUSED
            case Answer():
                await self._answer(step, headers)
            case Broken():
                await self._break(step, headers)

    @property
    def _streams(self) -> bool:
        return bool(self.request.body.get("stream"))

    async def _answer(self, step: Answer, headers: dict[str, str]) -> None:
        message = message_document(step, model=self.request.model)
        if self._streams:
            await self.connection.begin_stream(headers)
            for event in events(message):
                await self.connection.send_chunk(encode_event(event))
                if step.event_delay_s:
                    await self.connection.wait_for(asyncio.sleep(step.event_delay_s))
            await self.connection.send_chunk(b"")
        else:
            await self.connection.send_json(200, message, headers)
        if await self.connection.has_left():
            raise ClientLeft
        self.request.answer, self.request.usage = message, step.usage
        self.request.stage = Stage.ANSWERED

    async def _break(self, step: Broken, headers: dict[str, str]) -> None:
        if step.after is not None:
            # A client whose stream broke asks again without one; the fault must meet it there too.
            await (self._part_of_stream if self._streams else self._part_of_body)(step, headers)
        if step.fault is Fault.SILENCE:
            self.request.stage = Stage.SILENT
            self.tell()
            await self.connection.stay_silent()
        self.request.stage = Stage.BROKEN
        if step.fault is Fault.RESET:
            await self.connection.reset()
            raise ClientLeft

    async def _part_of_stream(self, step: Broken, headers: dict[str, str]) -> None:
        message = message_document(step.answer, model=self.request.model)
        await self.connection.begin_stream(headers)
        for event in events(message)[: step.after]:
            await self.connection.send_chunk(encode_event(event))
        if step.fault is Fault.ERROR_EVENT:
            event = error_document(step.error_type, step.message)
            await self.connection.send_chunk(encode_event(event))
        if step.fault in (Fault.ERROR_EVENT, Fault.END):
            await self.connection.send_chunk(b"")

    async def _part_of_body(self, step: Broken, headers: dict[str, str]) -> None:
        if step.fault is Fault.ERROR_EVENT:
            status = _STATUSES.get(step.error_type, 500)
            body = error_document(step.error_type, step.message)
            await self.connection.send_json(status, body, headers)
        elif step.fault is Fault.END:
            await self.connection.send_part(b'{"id": "msg_', headers)
            self.request.stage = Stage.BROKEN
            raise ClientLeft
