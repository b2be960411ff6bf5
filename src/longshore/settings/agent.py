"""How tasks that an agent does reach their model, and what they may do here."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field, SecretStr

from longshore.core.budgets import Budget
from longshore.settings.fields import GIB, MIB, Duration, Section, bounded, optional_value

_SECOND, _MINUTE = timedelta(seconds=1), timedelta(minutes=1)


def _check_address(text: str | None) -> str | None:
    if text is not None and not text.startswith(("http://", "https://")):
        message = f"{text!r} is not an address: write it like https://api.example.com"
        raise ValueError(message)
    return text


OptionalValue = BeforeValidator(optional_value)


class AgentSettings(Section):
    """How tasks that an agent does reach their model, and what they may do here."""

    api_key: Annotated[SecretStr | None, OptionalValue] = Field(
        default=None, description="Key for the model's API; also read from ANTHROPIC_API_KEY."
    )
    auth_token: Annotated[SecretStr | None, OptionalValue] = Field(
        default=None, description="Bearer token instead; also read from ANTHROPIC_AUTH_TOKEN."
    )
    oauth_token: Annotated[SecretStr | None, OptionalValue] = Field(
        default=None,
        description="Subscription's token instead; also read from CLAUDE_CODE_OAUTH_TOKEN.",
    )
    base_url: Annotated[str | None, OptionalValue, AfterValidator(_check_address)] = Field(
        default=None, description="Address of the model's API, if it is not the public one."
    )
    model: Annotated[str | None, OptionalValue] = Field(
        default=None, description="Model of agents whose definition names none."
    )
    cli_path: Annotated[Path | None, OptionalValue] = Field(
        default=None, description="Agent's command line, if it is not the one of the SDK."
    )
    retries: int = bounded(
        "How often a request to the model is repeated before the attempt counts as failed.",
        *(2, 0, 10),
    )
    response_timeout: Duration = bounded(
        "Time in which the model's API must begin to answer.",
        *(2 * _MINUTE, _SECOND, 60 * _MINUTE),
    )
    stall_timeout: Duration = bounded(
        "Time without a word after which an answer that has begun is given up.",
        *(_MINUTE, 10 * _SECOND, 60 * _MINUTE),
    )
    longest_hold: Duration = bounded(
        "Time for which a queue is held at most when the model's API asks to be left alone."
        " 0: not at all.",
        *(15 * _MINUTE, timedelta(0), 60 * _MINUTE),
    )
    memory_per_agent: ByteSize = bounded(
        "Bytes of memory that one agent is expected to take.", 400 * MIB, MIB, 1024 * GIB
    )
    memory_ceiling: ByteSize = bounded(
        "Bytes that the agents of a worker may take together; more of them wait."
        " 0: half of what the machine, or its container, has.",
        *(ByteSize(0), ByteSize(0), 1024 * GIB),
    )
    usd_per_day: Annotated[float | None, OptionalValue] = Field(
        default=None, gt=0, description="Dollars that a tenant's agents may spend in a day (UTC)."
    )
    tokens_per_day: Annotated[int | None, OptionalValue] = Field(
        default=None, gt=0, description="Tokens that a tenant's agents may use in a day (UTC)."
    )
    minutes_per_day: Annotated[float | None, OptionalValue] = Field(
        default=None, gt=0, description="Minutes that a tenant's agents may run in a day (UTC)."
    )
    allow_bypass: bool = Field(
        default=False,
        description="Whether a definition may say bypassPermissions: any tool, unasked.",
    )
    local_repositories: bool = Field(
        default=False, description="Whether a definition may name a repository on this machine."
    )
    preload: bool = Field(
        default=False,
        description="Whether workers load the agent SDK at once, and not with their first agent.",
    )

    @property
    def day_budget(self) -> Budget:
        """What a tenant's agents may spend in a day."""
        return Budget(
            usd=self.usd_per_day, tokens=self.tokens_per_day, minutes=self.minutes_per_day
        )

    def max_concurrent(self, memory_bytes: int | None) -> int | None:
        """How many agents a worker has room for; None: as many as it runs tasks.

        Args:
            memory_bytes: What the machine has; None: nobody knows.
        """
        ceiling = self.memory_ceiling or (memory_bytes or 0) // 2
        return ceiling // self.memory_per_agent if ceiling else None

    @property
    def credential(self) -> tuple[str, str] | None:
        """What to show the API, and how: by what the agent's command line would prefer."""
        for kind, secret in (
            ("api_key", self.api_key),
            ("auth_token", self.auth_token),
            ("oauth_token", self.oauth_token),
        ):
            if secret is not None and secret.get_secret_value():
                return kind, secret.get_secret_value()
        return None
