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

from longshore.adapters.alerts.slack_message import SlackMessage, message_of
from longshore.adapters.alerts.trying import WITHIN, NotAccepted, Tries, by_status
from longshore.core.alerting import Notice
from longshore.core.undelivered import UndeliveredNotice
from longshore.ports.clock import Clock

CHANNEL = "slack"

_OK = 200
_ANSWER_LIMIT_BYTES = 64 * 1024
# Slack's word for what is wrong; anything else it says is not repeated.
_ERROR_CODE = re.compile(r"[a-z_]{1,64}")
_NO_CODE = "something else than Slack does"
_MAY_PASS = frozenset(
    {"fatal_error", "internal_error", "ratelimited", "request_timeout", "service_unavailable"}
)

# The clients log whole addresses. Outside of the tree of loggers nobody can turn it on.
_silent = logging.Logger("slack", level=logging.CRITICAL + 1)  # noqa: LOG001

Post = Callable[[SlackMessage, float], None]
"""Posts a message in at most so many seconds, blocking. Raises NotAccepted."""


class SlackAlerts:
    """See ``ports.alerts.Alerts``; made by ``slack_bot`` or ``slack_webhook``."""

    channel = CHANNEL

    def __init__(self, post: Post, clock: Clock, *, within: timedelta) -> None:
        self._post = post
        self._tries = Tries(CHANNEL, clock, within=within)

    async def send(self, notice: Notice | UndeliveredNotice) -> None:
        message = message_of(notice)

        async def once(timeout_s: float) -> None:
            await asyncio.to_thread(self._post, message, timeout_s)

        await self._tries.until_accepted(once)


def slack_bot(
    *,
    token: str,
    to: str,
    clock: Clock,
    within: timedelta = WITHIN,
    base_url: str = WebClient.BASE_URL,
) -> SlackAlerts:
    """Alerts by a bot with the scope ``chat:write``, to the channel ``to``."""

    def post(message: SlackMessage, timeout_s: float) -> None:
        client = _Bot(
            token=token,
            base_url=base_url,
            timeout=math.ceil(timeout_s),
            logger=_silent,
            retry_handlers=[],
        )
        try:
            client.chat_postMessage(
                channel=to,
                text=message.text,
                blocks=list(message.blocks),
                unfurl_links=False,
                unfurl_media=False,
            )
        except SlackApiError as error:
            raise _of_api(error.response) from None
        except _BROKEN as error:
            raise _of_broken(error) from None

    return SlackAlerts(post, clock, within=within)


def slack_webhook(*, url: str, clock: Clock, within: timedelta = WITHIN) -> SlackAlerts:
    """Alerts by an incoming webhook, to the channel that it was made for."""

    def post(message: SlackMessage, timeout_s: float) -> None:
        client = _Hook(url, timeout=math.ceil(timeout_s), logger=_silent, retry_handlers=[])
        try:
            answer = client.send(text=message.text, blocks=list(message.blocks))
        except _BROKEN as error:
            raise _of_broken(error) from None
        if answer.status_code != _OK or answer.body.strip() != "ok":
            code = _code_in(answer.body)
            raise _refusal(answer.status_code, answer.headers, code)

    return SlackAlerts(post, clock, within=within)


# All that the clients raise; a ValueError for what cannot stand in a request.
_BROKEN = (SlackClientError, OSError, HTTPException, ValueError)


def _of_broken(error: Exception) -> NotAccepted:
    cause = error.reason if isinstance(error, URLError) else error
    if isinstance(cause, TimeoutError):
        return NotAccepted("it did not answer in time", may_pass=True)
    out_of_reach = isinstance(error, OSError | HTTPException) and not isinstance(error, ValueError)
    return NotAccepted(f"it is out of reach ({type(cause).__name__})", may_pass=out_of_reach)


def _of_api(answer: Any) -> NotAccepted:
    return _refusal(answer.status_code, answer.headers, _code_in(answer.get("error")))


def _code_in(said: object) -> str:
    text = said.strip() if isinstance(said, str) else ""
    return text if _ERROR_CODE.fullmatch(text) else _NO_CODE


def _refusal(status: int, headers: Any, code: str) -> NotAccepted:
    if status == _OK:
        return NotAccepted(f"it answered {code}", may_pass=code in _MAY_PASS)
    retry_after = {name.lower(): value for name, value in headers.items()}.get("retry-after")
    return by_status(status, retry_after, "" if code == _NO_CODE else code)


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: dict[str, str]
    body: str


def _direct() -> OpenerDirector:
    """Opens by HTTP alone: no proxies, no redirects, no files; every answer is an answer."""
    opener = OpenerDirector()
    for handler in (HTTPHandler(), HTTPSHandler(), UnknownHandler()):
        opener.add_handler(handler)
    return opener


def _answer_to(request: Request, timeout_s: float) -> _Answer:
    with _direct().open(request, timeout=timeout_s) as response:
        body = response.read(_ANSWER_LIMIT_BYTES).decode(errors="replace")
        return _Answer(response.status, dict(response.headers.items()), body)


class _Bot(WebClient):
    def _perform_urllib_http_request_internal(self, url: str, req: Request) -> dict[str, Any]:
        answer = _answer_to(req, self.timeout)
        return {
            "status": answer.status,
            "headers": answer.headers,
            "body": _object_in(answer.body),
        }


def _object_in(body: str) -> str:
    """The answer if it is an object, which is all that the client can deal with; else an empty."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    return body if isinstance(found, dict) else "{}"


class _Hook(WebhookClient):
    def _perform_http_request_internal(self, url: str, req: Request) -> WebhookResponse:
        answer = _answer_to(req, self.timeout)
        return WebhookResponse(
            url=url, status_code=answer.status, body=answer.body, headers=answer.headers
        )
