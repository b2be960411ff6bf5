"""Playing a step: from the script's value to bytes on the connection, or to their absence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from verification.messages_api.http import ClientDisconnected, Connection
from verification.messages_api.requests import Request, RequestState
from verification.messages_api.script import (
    ERROR_TYPES,
    Answer,
    AnswerFault,
    BrokenAnswer,
    HttpError,
    Raw,
    ReadyStep,
)
from verification.messages_api.stream import encode_event, error_document, events, message_document

# The lowest status of each.
_STATUSES = {ERROR_TYPES[status]: status for status in sorted(ERROR_TYPES, reverse=True)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Responder:
    """One request that is being answered; what became of it is noted on the request."""

    request: Request
    connection: Connection
    # Called when the request comes to a stage in which it may stay for long.
    on_state_change: Callable[[], None]

    async def respond(self, step: ReadyStep) -> None:
        """Answer as the step says.

        Raises:
            ClientLeft: the connection is of no more use.
        """
        headers = {"request-id": f"req_scripted_{self.request.number}", **step.headers}
        match step:
            case HttpError(status=status, error_type=kind, message=message):
                await self.connection.send_json(status, error_document(kind, message), headers)
                self.request.state = RequestState.REFUSED
            case Raw(status=status, body=body, content_type=kind):
                data = body.encode()
                await self.connection.send(status, data, content_type=kind, headers=headers)
                self.request.state = RequestState.REFUSED
            case Answer():
                await self._answer(step, headers)
            case BrokenAnswer():
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
        if await self.connection.is_disconnected():
            raise ClientDisconnected
        self.request.answer, self.request.usage = message, step.usage
        self.request.state = RequestState.ANSWERED

    async def _break(self, step: BrokenAnswer, headers: dict[str, str]) -> None:
        if step.after is not None:
            # A client whose stream broke asks again without one; the fault must meet it there too.
            await (self._part_of_stream if self._streams else self._part_of_body)(step, headers)
        if step.fault is AnswerFault.SILENCE:
            self.request.state = RequestState.SILENT
            self.on_state_change()
            await self.connection.stay_silent()
        self.request.state = RequestState.BROKEN
        if step.fault is AnswerFault.RESET:
            await self.connection.reset()
            raise ClientDisconnected

    async def _part_of_stream(self, step: BrokenAnswer, headers: dict[str, str]) -> None:
        message = message_document(step.answer, model=self.request.model)
        await self.connection.begin_stream(headers)
        for event in events(message)[: step.after]:
            await self.connection.send_chunk(encode_event(event))
        if step.fault is AnswerFault.ERROR_EVENT:
            event = error_document(step.error_type, step.message)
            await self.connection.send_chunk(encode_event(event))
        if step.fault in (AnswerFault.ERROR_EVENT, AnswerFault.END):
            await self.connection.send_chunk(b"")

    async def _part_of_body(self, step: BrokenAnswer, headers: dict[str, str]) -> None:
        if step.fault is AnswerFault.ERROR_EVENT:
            status = _STATUSES.get(step.error_type, 500)
            body = error_document(step.error_type, step.message)
            await self.connection.send_json(status, body, headers)
        elif step.fault is AnswerFault.END:
            await self.connection.send_part(b'{"id": "msg_', headers)
            self.request.state = RequestState.BROKEN
            raise ClientDisconnected
