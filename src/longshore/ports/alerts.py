"""Alerts: sends the findings of health checks, and undelivered events, to people."""

from __future__ import annotations

from typing import Protocol

from longshore.core.alerts import HealthNotice
from longshore.core.undelivered import UndeliveredNotice


class Alerts(Protocol):
    """A channel to people."""

    @property
    def channel(self) -> str:
        """The channel's unique name, under which its state is stored."""
        ...

    async def send(self, notice: HealthNotice | UndeliveredNotice) -> None:
        """Deliver the notice as one message. When this returns, it was accepted.

        It may be delivered twice, because an answer can be lost. Neither the error nor the log
        contains a secret or an address.

        Raises:
            AlertFailed: it was not accepted, as far as is known; the caller may try again.
        """
        ...
