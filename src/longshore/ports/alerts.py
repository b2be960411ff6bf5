"""Alerts: how people hear of what a health check found, and of events that got lost on the way."""

from __future__ import annotations

from typing import Protocol

from longshore.core.alerting import Notice
from longshore.core.undelivered import UndeliveredNotice


class Alerts(Protocol):
    """One way to reach people. What it is told is told to nobody else."""

    @property
    def channel(self) -> str:
        """Its name, under which it is kept what it has been told; no two have the same."""
        ...

    async def send(self, notice: Notice | UndeliveredNotice) -> None:
        """Deliver the notice as one message. When this returns, it was accepted.

        It may be delivered twice: an answer can be lost. Neither the error nor anything that is
        logged on the way holds a secret or an address.

        Raises:
            AlertFailed: it was not accepted, as far as is known; trying again is for the caller.
        """
        ...
