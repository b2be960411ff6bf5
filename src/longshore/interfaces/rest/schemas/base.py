"""What all shapes share, and the shape of problems."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer
from pydantic.alias_generators import to_camel

JobStatus = Literal["running", "completed", "failed", "cancelled"]
TaskStatus = Literal[
    "waiting", "pending", "processing", "in_review", "parked", "completed", "failed", "cancelled"
]


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


Moment = Annotated[
    datetime, PlainSerializer(_iso, when_used="json"), Field(examples=["2030-01-31T12:00:00.000Z"])
]


class Shape(BaseModel):
    """What all of them share."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class Asked(Shape):
    """What a client asks for: a field that nobody knows is an error."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", strict=True
    )


NEXT = "As `cursor` for the next page; null: this was all."


class ProblemError(Shape):
    """One thing that is wrong with a request, and where."""

    path: str = Field(examples=["tasks[0].dependsOn[1]"])
    message: str = Field(examples=["there is no task 'fetsh'; did you mean 'fetch'?"])


class ProblemDocument(Shape):
    """What went wrong, after RFC 9457."""

    type: str = Field(examples=["urn:longshore:problem:invalid"])
    title: str = Field(examples=["Unprocessable Content"])
    status: int = Field(examples=[422])
    detail: str = Field(examples=["the request has problems"])
    request_id: str = Field(description="What to look for in the server's log.")
    errors: list[ProblemError] | None = None


class Alive(Shape):
    """The server runs."""

    status: Literal["ok"]
