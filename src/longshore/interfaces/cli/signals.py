"""What the signals that end a process do: the first stops gracefully, the second at once."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from longshore.interfaces.cli.exit_codes import ExitCode, print_stderr
from longshore.interfaces.cli.render import formats

SIGNAL_BASE = 128
"""A process that signal n ended exits with this number plus n."""


def handle_signals(handler: Callable[[signal.Signals], object]) -> Callable[[], None]:
    """Call ``handler`` for SIGINT, SIGTERM and SIGHUP, unless ignored (``nohup``).

    Returns a function that removes the handlers.
    """
    loop = asyncio.get_running_loop()
    endings = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handled = [number for number in endings if signal.getsignal(number) is not signal.SIG_IGN]
    for number in handled:
        loop.add_signal_handler(number, handler, number)

    def remove() -> None:
        for number in handled:
            loop.remove_signal_handler(number)

    return remove


def end_process_after(limit: timedelta) -> None:
    """End this process if it has not ended by then, also if its event loop hangs.

    Nothing is lost: the children of a worker end with it, and its tasks are taken over.
    """

    def end() -> None:
        text = f"longshore: not stopped after {formats.duration_text(limit)}; ending this process"
        # A reader of stderr that hangs may be the reason.
        printing = threading.Thread(target=print_stderr, args=(text,), daemon=True)
        printing.start()
        printing.join(1)
        os._exit(ExitCode.STOP_OVERDUE)

    timer = threading.Timer(limit.total_seconds(), end)
    timer.daemon = True
    timer.start()


@dataclass(slots=True)
class StopSignals:
    """Waits for signals: the first calls ``stop``, later ones call ``stop_now``.

    Args:
        limit: How long the process may take to end after the first.
    """

    stop: Callable[[], None]
    stop_now: Callable[[], None]
    limit: timedelta
    requested: asyncio.Event = field(default_factory=asyncio.Event)
    exit_code: int = ExitCode.OK  # changes if the process is stopped at once

    def on_signal(self, number: signal.Signals) -> None:
        if self.requested.is_set():
            self.exit_code = SIGNAL_BASE + number
            self.stop_now()
        else:
            self.requested.set()
            end_process_after(self.limit)
            self.stop()
