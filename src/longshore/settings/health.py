"""Settings of the health check and of alerts.

Tokens, signing secrets and webhook URLs are secrets: each of them is enough to write to the
channel. They are ``SecretStr``, and an error message never quotes one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

from longshore.core.health import HealthPolicy
from longshore.settings.fields import (
    Duration,
    Optionally,
    Section,
    bounded,
    checked,
    lower,
    optional,
    policy_problems,
    split_optional_list,
)

SECRET_MIN_BYTES: Final = 32
_POLICY = HealthPolicy()
_ZERO, _SECOND = timedelta(0), timedelta(seconds=1)
_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)
_VISIBLE = re.compile(r"[\x21-\x7e]+")
_CHANNEL_NAME = checked(
    re.compile(r"#?[^\s#<>&]{1,80}").fullmatch,
    "{value!r} is not a channel: give its id, like C0123456789, or #its-name",
)


def _switch(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    return lower(value)


def _check_token(token: SecretStr | None) -> SecretStr | None:
    # An HTTP header cannot contain other characters, and a library's error would quote the token.
    if token is not None and not _VISIBLE.fullmatch(token.get_secret_value()):
        message = "a token has only visible ASCII characters"
        raise ValueError(message)
    return token


def _url(*schemes: str) -> AfterValidator:
    def check(url: SecretStr | None) -> SecretStr | None:
        if url is not None and not _is_url(url.get_secret_value(), schemes):
            message = f"must be a URL that begins with {' or '.join(schemes)}:// and has a host"
            raise ValueError(message)
        return url

    return AfterValidator(check)


def _is_url(url: str, schemes: tuple[str, ...]) -> bool:
    if not _VISIBLE.fullmatch(url):
        return False
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    plain = "@" not in parts.netloc and not parts.fragment and port != 0
    return parts.scheme in schemes and bool(parts.hostname) and plain


def _check_secret_length(secrets: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
    if any(len(secret.get_secret_value().encode()) < SECRET_MIN_BYTES for secret in secrets):
        message = f"a signing secret must have at least {SECRET_MIN_BYTES} bytes"
        raise ValueError(message)
    return secrets


class HealthSettings(Section):
    """When a running task counts as healthy, and how often that is checked."""

    enabled: Annotated[Literal["auto", "true", "false"], BeforeValidator(_switch)] = Field(
        default="auto",
        description="Whether health is checked; auto: unless the environment is dev.",
    )
    every: Duration = bounded("Time between two checks.", 300 * _SECOND, _SECOND, _DAY)
    longest_run: Duration = bounded(
        "Time an attempt may run before it counts as overtime.",
        *(_POLICY.longest_run, _SECOND, 365 * _DAY),
    )
    healthy_within: Duration = bounded(
        "Time since its last event up to which a task is healthy.",
        *(_POLICY.healthy_within, _SECOND, 365 * _DAY),
    )
    warning_within: Duration = bounded(
        "Time since its last event up to which there is only a warning.",
        *(_POLICY.warning_within, _SECOND, 365 * _DAY),
    )
    cool_down: Duration = bounded(
        "Time before an unchanged problem is reported again.", _HOUR, _ZERO, 365 * _DAY
    )

    @property
    def policy(self) -> HealthPolicy:
        return HealthPolicy(
            longest_run=self.longest_run,
            healthy_within=self.healthy_within,
            warning_within=self.warning_within,
        )

    def contradictions(self) -> Iterator[str]:
        yield from policy_problems("health", lambda: self.policy)


class AlertsSettings(Section):
    """Where alerts about unhealthy tasks are sent; without a channel there are none."""

    slack_token: Annotated[SecretStr | None, Optionally, AfterValidator(_check_token)] = optional(
        "Token of the bot that writes to the Slack channel."
    )
    slack_channel: Annotated[str | None, Optionally, _CHANNEL_NAME] = optional(
        "Slack channel that the bot writes to; its id is best."
    )
    slack_webhook: Annotated[SecretStr | None, Optionally, _url("https")] = optional(
        "Incoming webhook of Slack, instead of a bot."
    )
    webhook_url: Annotated[SecretStr | None, Optionally, _url("https", "http")] = optional(
        "URL that signed JSON is sent to."
    )
    webhook_secrets: Annotated[
        tuple[SecretStr, ...],
        BeforeValidator(split_optional_list),
        AfterValidator(_check_secret_length),
    ] = Field(
        default=(), description="Secrets that sign the JSON; two while one replaces the other."
    )
    timeout: Duration = bounded(
        "Time that all alerts of a check may take together.", 20 * _SECOND, _SECOND, _HOUR
    )

    def contradictions(self) -> Iterator[str]:
        if self.slack_token and not self.slack_channel:
            yield "alerts.slack_token needs alerts.slack_channel, which the bot writes to"
        if self.slack_channel and not self.slack_token:
            yield (
                "alerts.slack_channel needs alerts.slack_token; an incoming webhook has its "
                "own channel"
            )
        if self.slack_token and self.slack_webhook:
            yield "alerts.slack_token and alerts.slack_webhook would both alert: set one of them"
        if self.webhook_url and not self.webhook_secrets:
            yield "alerts.webhook_url needs alerts.webhook_secrets, which sign the JSON"
        if self.webhook_secrets and not self.webhook_url:
            yield "alerts.webhook_secrets needs alerts.webhook_url, where the JSON is sent"
