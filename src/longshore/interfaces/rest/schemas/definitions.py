"""Definitions."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from longshore.interfaces.rest.schemas.base import Shape


class RetryDocument(Shape):
    """How often and how soon an attempt is made again."""

    max_attempts: int | None = Field(default=None, ge=1)
    base: str | None = Field(default=None, examples=["1s"])
    cap: str | None = Field(default=None, examples=["5m"])


class LimitsDocument(Shape):
    """What an attempt may use."""

    cpu: str | None = Field(default=None, examples=["10m"])
    memory_bytes: int | None = None
    open_files: int | None = None
    file_bytes: int | None = None


class HealthDocument(Shape):
    """When a running task counts as unhealthy."""

    longest_run: str | None = None
    healthy_within: str | None = None
    warning_within: str | None = None


class DefinitionRequestDocument(Shape):
    """A recipe for a kind of task."""

    name: str | None = Field(default=None, description="As in the path.")
    runner: Literal["command", "python", "agent"]
    options: dict[str, Any] | None = Field(default=None, examples=[{"argv": ["./import.sh"]}])
    description: str | None = None
    queue: str | None = None
    priority: Literal["high", "normal", "low"] | None = None
    timeout: str | None = Field(default=None, examples=["15m"])
    retry: RetryDocument | None = None
    retry_on_timeout: bool | None = None
    retryable_exit_codes: list[int] | None = None
    requires_review: bool | None = None
    isolation: Literal["fork", "pool", "spawn"] | None = None
    limits: LimitsDocument | None = None
    pty: bool | None = None
    health: HealthDocument | None = None


class DefinitionDocument(DefinitionRequestDocument):
    """A version of a definition."""

    version: int = Field(description="0: built in.")


class DefinitionList(Shape):
    """Definitions."""

    definitions: list[DefinitionDocument]
