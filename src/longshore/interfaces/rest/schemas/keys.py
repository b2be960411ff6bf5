"""Keys."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from longshore.interfaces.rest.schemas.base import Asked, Moment, Shape


class KeyRequestDocument(Asked):
    """A key to make."""

    name: str = Field(min_length=1, max_length=100, examples=["ci"])
    scopes: list[Literal["submit", "read", "operate", "admin"]] = Field(min_length=1)


class KeyDocument(Shape):
    """A key, without the key."""

    id: str
    name: str
    scopes: list[Literal["submit", "read", "operate", "admin"]]
    created_at: Moment
    revoked_at: Moment | None


class NewKeyDocument(KeyDocument):
    """A key, told once."""

    key: str = Field(description="Keep it: it is not shown again.", examples=["lsk_…"])


class KeyList(Shape):
    """All keys of the tenant."""

    keys: list[KeyDocument]
