"""Parameters that many routes take."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Header, Query
from pydantic import AwareDatetime

from longshore.interfaces.rest.bodies import json_body, optional_json_body

MOST_A_PAGE = 100
MOST_PIECES = 1_000
"""Of what is small and comes in numbers: output, events, ids."""

_HOW_MANY = "How many at most."
_LAST_SEEN = "What a reader that was cut off saw last; it goes on behind that."

Body = Annotated[Any, Depends(json_body)]
OptionalBody = Annotated[Any, Depends(optional_json_body)]
Limit = Annotated[int, Query(ge=1, le=MOST_A_PAGE, description=_HOW_MANY)]
LongLimit = Annotated[int, Query(ge=1, le=MOST_PIECES, description=_HOW_MANY)]
Cursor = Annotated[str | None, Query(max_length=1_000, description="`cursor` of the page before.")]
Moment = AwareDatetime
RequestId = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=256,
        description="The same key gives the same answer, however often it is sent.",
    ),
]


def last_event_id(pattern: str) -> Any:
    """The header with which a stream is taken up again."""
    return Header(alias="Last-Event-ID", pattern=pattern, description=_LAST_SEEN)
