"""Being asked to end: SIGTERM, taken in hand by a task that wants to know."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Any


class Sigterm:
    """Leaves the signal alone until somebody asks for it."""

    def __init__(self) -> None:
        self._came = False
        self._taken_by: int | None = None  # the process
        self._before: Any = None

    def came(self) -> bool:
        """Whether it came since the first call of this, which takes it in hand.

        Raises:
            RuntimeError: the first call is not in the main thread.
        """
        if self._taken_by is None:
            self._take()
        return self._came

    def _take(self) -> None:
        try:
            self._before = signal.signal(signal.SIGTERM, self._note)
        except ValueError as error:
            message = "look at ctx.cancelled in the main thread first: only there can it be set up"
            raise RuntimeError(message) from error
        self._taken_by = os.getpid()

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() == self._taken_by:
            self._came = True
            return
        # A fork of the task, as multiprocessing makes them: it looks at nothing and has to go.
        self.put_back()
        os.kill(os.getpid(), number)

    def put_back(self) -> None:
        """Whatever SIGTERM did before, it does again."""
        if self._taken_by is not None:
            # None: somebody had set it who is no Python.
            signal.signal(signal.SIGTERM, self._before or signal.SIG_DFL)
            self._taken_by = None
