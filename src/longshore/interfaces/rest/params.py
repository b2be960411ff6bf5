"""Parameters and streams that several routes have."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import Depends, Header, Query
from fastapi.sse import ServerSentEvent
from pydantic import AwareDatetime

from longshore.interfaces.rest.parsing import read_json_body, read_optional_json_body
from longshore.services import documents as d

MAX_PAGE_SIZE = 100
MAX_LONG_PAGE_SIZE = 1_000
"""For small items: output chunks, events, ids."""

_LIMIT_DESCRIPTION = "The largest number of items."
_LAST_EVENT_ID_DESCRIPTION = "The last id that the client received; the stream continues after it."

Body = Annotated[Any, Depends(read_json_body)]
OptionalBody = Annotated[Any, Depends(read_optional_json_body)]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE_SIZE, description=_LIMIT_DESCRIPTION)]
LongLimit = Annotated[int, Query(ge=1, le=MAX_LONG_PAGE_SIZE, description=_LIMIT_DESCRIPTION)]
Cursor = Annotated[
    str | None, Query(max_length=1_000, description="`cursor` of the previous page.")
]
Moment = AwareDatetime
RequestId = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=256,
        description="A request that is sent again with the same key is carried out once.",
    ),
]


def last_event_id(pattern: str) -> Any:
    """The header by which a client continues a stream."""
    return Header(alias="Last-Event-ID", pattern=pattern, description=_LAST_EVENT_ID_DESCRIPTION)


async def server_sent_events(
    stream: AsyncIterator[d.StreamItem],
) -> AsyncIterator[ServerSentEvent]:
    """The items of a stream as server-sent events."""
    async for item in stream:
        data = d.encode(item.data).decode()
        yield ServerSentEvent(event=item.kind, id=item.id, raw_data=data)
