"""What the signals that end a process do: the first stops gracefully, the second at once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from longshore.interfaces.cli.exit_codes import ExitCode

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


class StopSignals:
    """Waits for signals: the first calls ``stop``, later ones call ``stop_now``."""

    def __init__(self, stop: Callable[[], None], stop_now: Callable[[], None]) -> None:
        self._stop = stop
        self._stop_now = stop_now
        self.requested = asyncio.Event()
        self.exit_code: int = ExitCode.OK  # changes if the process is stopped at once

    def on_signal(self, number: signal.Signals) -> None:
        if self.requested.is_set():
            self.exit_code = SIGNAL_BASE + number
            self._stop_now()
        else:
            self.requested.set()
            self._stop()
