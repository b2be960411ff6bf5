"""Handles SIGTERM for a task that checks ``ctx.cancelled``."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Any


class SigtermHandler:
    """Installs its handler on the first call of ``received``."""

    def __init__(self) -> None:
        self._received = False
        self._installed_in: int | None = None  # the process
        self._previous_handler: Any = None

    def received(self) -> bool:
        """Whether SIGTERM arrived since the first call, which installs the handler.

        Raises:
            RuntimeError: the first call is not in the main thread.
        """
        if self._installed_in is None:
            self._install()
        return self._received

    def _install(self) -> None:
        try:
            self._previous_handler = signal.signal(signal.SIGTERM, self._handle)
        except ValueError as error:
            message = "read ctx.cancelled in the main thread first, to install its handler"
            raise RuntimeError(message) from error
        self._installed_in = os.getpid()

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() == self._installed_in:
            self._received = True
            return
        # A fork of the task, as multiprocessing makes: it does not check the flag and must end.
        self.restore()
        os.kill(os.getpid(), number)

    def restore(self) -> None:
        """Restore the previous handler of SIGTERM."""
        if self._installed_in is not None:
            # None: the previous handler was not installed from Python.
            signal.signal(signal.SIGTERM, self._previous_handler or signal.SIG_DFL)
            self._installed_in = None
