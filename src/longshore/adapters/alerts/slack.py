"""Alerts in Slack: by a bot that writes to a channel, or by an incoming webhook.

Slack's own clients make the calls, in a thread. What they do with HTTP is replaced: left alone they
obey proxies in the environment, follow redirects with the token in the header, read answers of any
length, and write addresses of webhooks into their log.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from http.client import HTTPException
from typing import Any
from urllib.error import URLError
from urllib.request import (
    HTTPHandler,
    HTTPSHandler,
    OpenerDirector,
    Request,
    UnknownHandler,
)

from slack_sdk.errors import SlackApiError, SlackClientError
from slack_sdk.web import WebClient
from slack_sdk.webhook import WebhookClient
from slack_sdk.webhook.webhook_response import WebhookResponse

from longshore.adapters.alerts.delivery import (
    DELIVERY_TIMEOUT,
    AlertDelivery,
    DeliveryFailed,
    failure_from_status,
)
from longshore.adapters.alerts.slack_message import SlackMessage, message_of
from longshore.core.alerts import HealthNotice
from longshore.core.undelivered import UndeliveredNotice
from longshore.ports.clock import Clock

CHANNEL = "slack"

_OK = 200
_RESPONSE_LIMIT_BYTES = 64 * 1024
# Slack's word for what is wrong; anything else it says is not repeated.
_ERROR_CODE = re.compile(r"[a-z_]{1,64}")
_UNKNOWN_CODE = "something else than Slack does"
_RETRYABLE_CODES = frozenset(
    {"fatal_error", "internal_error", "ratelimited", "request_timeout", "service_unavailable"}
)

# The clients log whole addresses. Outside of the tree of loggers nobody can turn it on.
_silent = logging.Logger("slack", level=logging.CRITICAL + 1)  # noqa: LOG001

Post = Callable[[SlackMessage, float], None]
"""Posts a message in at most so many seconds, blocking. Raises NotAccepted."""


class SlackAlerts:
    """See ``ports.alerts.Alerts``; made by ``slack_bot`` or ``slack_webhook``."""

    channel = CHANNEL

    def __init__(self, post: Post, clock: Clock, *, timeout: timedelta) -> None:
        self._post = post
        self._delivery = AlertDelivery(CHANNEL, clock, timeout=timeout)

    async def send(self, notice: HealthNotice | UndeliveredNotice) -> None:
        message = message_of(notice)

        async def once(timeout_s: float) -> None:
            await asyncio.to_thread(self._post, message, timeout_s)

        await self._delivery.deliver(once)


def slack_bot(
    *,
    token: str,
    channel: str,
    clock: Clock,
    timeout: timedelta = DELIVERY_TIMEOUT,
    base_url: str = WebClient.BASE_URL,
) -> SlackAlerts:
    """Alerts by a bot with the scope ``chat:write``, to the channel ``to``."""

    def post(message: SlackMessage, timeout_s: float) -> None:
        client = _BotClient(
            token=token,
            base_url=base_url,
            timeout=math.ceil(timeout_s),
            logger=_silent,
            retry_handlers=[],
        )
        try:
            client.chat_postMessage(
                channel=channel,
                text=message.text,
                blocks=list(message.blocks),
                unfurl_links=False,
                unfurl_media=False,
            )
        except SlackApiError as error:
            raise _failure_from_api(error.response) from None
        except _CLIENT_ERRORS as error:
            raise _failure_from_client_error(error) from None

    return SlackAlerts(post, clock, timeout=timeout)


def slack_webhook(*, url: str, clock: Clock, timeout: timedelta = DELIVERY_TIMEOUT) -> SlackAlerts:
    """Alerts by an incoming webhook, to the channel that it was made for."""

    def post(message: SlackMessage, timeout_s: float) -> None:
        client = _HookClient(url, timeout=math.ceil(timeout_s), logger=_silent, retry_handlers=[])
        try:
            answer = client.send(text=message.text, blocks=list(message.blocks))
        except _CLIENT_ERRORS as error:
            raise _failure_from_client_error(error) from None
        if answer.status_code != _OK or answer.body.strip() != "ok":
            code = _error_code(answer.body)
            raise _failure_from_response(answer.status_code, answer.headers, code)

    return SlackAlerts(post, clock, timeout=timeout)


# All that the clients raise; a ValueError for what cannot stand in a request.
_CLIENT_ERRORS = (SlackClientError, OSError, HTTPException, ValueError)


def _failure_from_client_error(error: Exception) -> DeliveryFailed:
    cause = error.reason if isinstance(error, URLError) else error
    if isinstance(cause, TimeoutError):
        return DeliveryFailed("it did not answer in time", retryable=True)
    out_of_reach = isinstance(error, OSError | HTTPException) and not isinstance(error, ValueError)
    return DeliveryFailed(f"it is out of reach ({type(cause).__name__})", retryable=out_of_reach)


def _failure_from_api(answer: Any) -> DeliveryFailed:
    return _failure_from_response(
        answer.status_code, answer.headers, _error_code(answer.get("error"))
    )


def _error_code(value: object) -> str:
    text = value.strip() if isinstance(value, str) else ""
    return text if _ERROR_CODE.fullmatch(text) else _UNKNOWN_CODE


def _failure_from_response(status: int, headers: Any, code: str) -> DeliveryFailed:
    if status == _OK:
        return DeliveryFailed(f"it answered {code}", retryable=code in _RETRYABLE_CODES)
    retry_after = {name.lower(): value for name, value in headers.items()}.get("retry-after")
    return failure_from_status(status, retry_after, "" if code == _UNKNOWN_CODE else code)


@dataclass(frozen=True, slots=True)
class _SlackResponse:
    status: int
    headers: dict[str, str]
    body: str


def _direct_opener() -> OpenerDirector:
    """Opens by HTTP alone: no proxies, no redirects, no files; every answer is an answer."""
    opener = OpenerDirector()
    for handler in (HTTPHandler(), HTTPSHandler(), UnknownHandler()):
        opener.add_handler(handler)
    return opener


def _open_request(request: Request, timeout_s: float) -> _SlackResponse:
    with _direct_opener().open(request, timeout=timeout_s) as response:
        body = response.read(_RESPONSE_LIMIT_BYTES).decode(errors="replace")
        return _SlackResponse(response.status, dict(response.headers.items()), body)


class _BotClient(WebClient):
    def _perform_urllib_http_request_internal(self, url: str, req: Request) -> dict[str, Any]:
        answer = _open_request(req, self.timeout)
        return {
            "status": answer.status,
            "headers": answer.headers,
            "body": _json_object_or_empty(answer.body),
        }


def _json_object_or_empty(body: str) -> str:
    """The answer if it is an object, which is all that the client can deal with; else an empty."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    return body if isinstance(found, dict) else "{}"


class _HookClient(WebhookClient):
    def _perform_http_request_internal(self, url: str, req: Request) -> WebhookResponse:
        answer = _open_request(req, self.timeout)
        return WebhookResponse(
            url=url, status_code=answer.status, body=answer.body, headers=answer.headers
        )
