"""What the signals that end a process do: the first stops gracefully, the second at once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass, field

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


@dataclass(slots=True)
class StopSignals:
    """Waits for signals: the first calls ``stop``, later ones call ``stop_now``."""

    stop: Callable[[], None]
    stop_now: Callable[[], None]
    requested: asyncio.Event = field(default_factory=asyncio.Event)
    exit_code: int = ExitCode.OK  # changes if the process is stopped at once

    def on_signal(self, number: signal.Signals) -> None:
        if self.requested.is_set():
            self.exit_code = SIGNAL_BASE + number
            self.stop_now()
        else:
            self.requested.set()
            self.stop()
