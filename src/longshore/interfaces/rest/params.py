"""Parameters that many routes take."""

from __future__ import annotations

import base64
import json
from typing import Annotated, Any

from fastapi import Depends, Header, Query
from pydantic import AfterValidator, AwareDatetime

from longshore.errors import UsageError
from longshore.interfaces.rest.bodies import json_body, optional_json_body

MOST_A_PAGE = 100
MOST_PIECES = 1_000
"""Of what is small and comes in numbers: output, events, ids."""

_HOW_MANY = "How many at most."
_LAST_SEEN = "What a reader that was cut off saw last; it goes on behind that."
_INT64 = 2**63


def storable(cursor: str | None) -> str | None:
    """The cursor, unless somebody made it up of what no store can be asked for.

    What else may be wrong with it is for its listing to say.

    Raises:
        UsageError: it has a number beyond 64 bits, or a text that is no id.
    """
    if cursor is None:
        return None
    try:
        parts = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, RecursionError):
        return cursor
    for part in parts if isinstance(parts, list) else ():
        too_long = isinstance(part, int) and not -_INT64 <= part < _INT64
        if too_long or (isinstance(part, str) and not part.isascii()):
            message = "the cursor is not valid; leave it out to begin at the first page"
            raise UsageError(message)
    return cursor


Body = Annotated[Any, Depends(json_body)]
OptionalBody = Annotated[Any, Depends(optional_json_body)]
Limit = Annotated[int, Query(ge=1, le=MOST_A_PAGE, description=_HOW_MANY)]
LongLimit = Annotated[int, Query(ge=1, le=MOST_PIECES, description=_HOW_MANY)]
Cursor = Annotated[
    str | None,
    Query(max_length=1_000, description="`cursor` of the page before."),
    AfterValidator(storable),
]
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
