"""Names that other systems use for the same things: understood in the environment, in their units.

A name that is in common use may well be there for another program. So one that says nothing by
itself, half of a pair, or a queue's address where there is no SQS, is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

ENVIRONMENT_ALIASES: Final[Mapping[str, tuple[str, str]]] = {
    "ALERT_CHANNEL": ("alerts.slack_channel", ""),
    "ANTHROPIC_API_KEY": ("agent.api_key", ""),
    "ANTHROPIC_AUTH_TOKEN": ("agent.auth_token", ""),
    "ANTHROPIC_BASE_URL": ("agent.base_url", ""),
    "APP_NAME": ("app", ""),
    "AWS_REGION": ("aws.region", ""),
    "CLAUDE_CODE_OAUTH_TOKEN": ("agent.oauth_token", ""),
    "CLAUDE_CODE_PATH": ("agent.cli_path", ""),
    "CLAUDE_MODEL": ("agent.model", ""),
    "CLAUDE_SKIP_PERMISSIONS": ("agent.allow_bypass", ""),
    "CLAUDE_TIMEOUT": ("worker.task_timeout", "ms"),
    "DELETE_FILES_AFTER_UPLOAD": ("worker.keep_work_dirs", "opposite"),
    "MAX_CONCURRENT_CLAUDE": ("worker.concurrency", ""),
    "MAX_MESSAGE_RETRIES": ("retry.max_attempts", ""),
    "S3_BUCKET": ("aws.bucket", ""),
    "SLACK_BOT_TOKEN": ("alerts.slack_token", ""),
    "SLACK_WEBHOOK_URL": ("alerts.slack_webhook", ""),
    "SQS_HEARTBEAT_INTERVAL_MS": ("aws.heartbeat_every", "ms"),
    "SQS_QUEUE_URL": ("worker.queues", "url"),
    "TENANT_ID": ("tenant", ""),
    "VISIBILITY_EXTENSION_AMOUNT": ("worker.extend_by", "s"),
    "VISIBILITY_EXTENSION_INTERVAL": ("worker.renew_every", "ms"),
    "WAIT_TIME_SECONDS": ("worker.poll_wait", "s"),
}
"""Each with the setting that it stands for, and how what it says is read: a unit of bare numbers,
the opposite of a switch, or the address of a queue."""

_BARE_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
_OPPOSITES = {"true": "false", "1": "false", "yes": "false", "on": "false"}
_OPPOSITES |= {"false": "true", "0": "true", "no": "true", "off": "true"}
_OWN_QUEUE = re.compile(r"longshore-[^-]+-(?P<queue>.+)-(high|normal|low)(-dead)?")


class AliasedSetting(NamedTuple):
    """A setting that was given under another system's name."""

    name: str
    value: str
    variable: str


def read_aliases(
    environ: Mapping[str, str], explicit: Mapping[str, object]
) -> Iterator[AliasedSetting]:
    """What is meant for us; ``others`` is all that was given in other ways, by name."""
    there = {variable for variable in ENVIRONMENT_ALIASES if environ.get(variable)}
    known = {*explicit, *(ENVIRONMENT_ALIASES[variable][0] for variable in there)}
    for variable, (name, form) in ENVIRONMENT_ALIASES.items():
        if variable in there and _applies(variable, known, explicit):
            yield AliasedSetting(name, _convert(environ[variable], form), variable)


def _applies(variable: str, present: set[str], explicit: Mapping[str, object]) -> bool:
    bot = {"alerts.slack_token", "alerts.slack_channel"} <= present
    match variable:
        case "SQS_QUEUE_URL":
            return str(explicit.get("backend", "")).lower() == "aws"
        case "ALERT_CHANNEL" | "SLACK_BOT_TOKEN":
            return bot and "alerts.slack_webhook" not in explicit
        case "SLACK_WEBHOOK_URL":
            return not bot
    return True


def _convert(text: str, form: str) -> str:
    match form:
        case "url":
            return _queue_name(text)
        case "opposite":
            return _OPPOSITES.get(text.lower(), text)
    return f"{text}{form}" if _BARE_NUMBER.fullmatch(text) else text


def _queue_name(url: str) -> str:
    """The queue's name is the last part of its address; one of ours has the stage around it."""
    name = url.rstrip("/").rpartition("/")[2]
    ours = _OWN_QUEUE.fullmatch(name)
    return ours["queue"] if ours else name
