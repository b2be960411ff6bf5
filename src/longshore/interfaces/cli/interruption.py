"""Ctrl-C while a command of ours runs: the first cancels it, the second kills it, the third leaves.

The command lives in a session of its own, so the terminal's signal reaches us alone and the record
says what happened: cancelled, and by whom.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from types import TracebackType
from typing import TYPE_CHECKING

from longshore.core.tasks.commands import RequestCancel
from longshore.errors import BackendUnavailable, CommandRefused, NotFound
from longshore.interfaces.cli.exit_codes import print_stderr
from longshore.services.worker.group import WorkerGroup

if TYPE_CHECKING:
    from longshore.wiring.services import Services

_SIGNAL_BASE = 128


def termination_signals() -> list[signal.Signals]:
    """What asks a process to end, without what whoever started us wants ignored (``nohup``)."""
    asking = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return [number for number in asking if signal.getsignal(number) is not signal.SIG_IGN]


class Interruption:
    """While entered, signals cancel one task."""

    def __init__(
        self,
        session: Services | None,
        worker_group: WorkerGroup | None = None,
        task_id: str = "",
    ) -> None:
        self._session = session
        self._worker_group = worker_group
        self._task_id = task_id
        self._count = 0
        self._signals = termination_signals()
        self._cancelling: asyncio.Future[None] | None = None
        self.exit_code: int | None = None  # what to exit with; None: nobody has interrupted

    @classmethod
    def for_ended_task(cls) -> Interruption:
        """For a task that has ended: there is nothing left to cancel."""
        return cls(None)

    def __enter__(self) -> Interruption:
        loop = asyncio.get_running_loop()
        for number in self._signals:
            loop.add_signal_handler(number, self._on_signal, number)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        for number in self._signals:
            loop.remove_signal_handler(number)

    def _on_signal(self, number: signal.Signals) -> None:
        self._count += 1
        self.exit_code = _SIGNAL_BASE + number
        if self._count == 1:
            self.cancel(f"interrupted by {number.name}")
            if sys.stderr.isatty():
                print_stderr("longshore: cancelling it; once more kills it")
        elif self._count == 2 and self._worker_group is not None:
            self._worker_group.kill_children()
        else:
            os._exit(self.exit_code)

    def cancel(self, reason: str) -> None:
        """Ask for the end of the task; whoever follows it sees it end."""
        if self._session is not None and self._cancelling is None:
            self._cancelling = asyncio.ensure_future(self._cancel(self._session, reason))

    async def _cancel(self, session: Services, reason: str) -> None:
        # Too late is fine: an outcome that was faster stands.
        with contextlib.suppress(CommandRefused, NotFound, BackendUnavailable):
            await session.transitions.apply_to_task(
                self._task_id, RequestCancel(by="user", reason=reason)
            )
