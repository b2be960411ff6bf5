"""A port that fails: before the call, or after it so that only the answer is lost.

::

    ledger = FlakyPort(backend.ledger, "commit", times=2)
    ledger = FlakyPort(backend.ledger, "commit", after_write=True)

The second kind is the harder one: the write has happened and the caller does not know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from longshore.errors import BackendUnavailable, OutcomeUnknown


class FlakyPort:
    """Forwards every call to a port; some calls of one method fail.

    Args:
        error: What is raised; by default what the ports say that they raise.
        times: How many calls fail; None: all of them.
        skip: How many calls succeed before that.
        after_write: Fail when the call has been carried out.
    """

    def __init__(
        self,
        port: Any,
        method: str,
        error: BaseException | None = None,
        times: int | None = 1,
        *,
        skip: int = 0,
        after_write: bool = False,
    ) -> None:
        self._port = port
        self._method = method
        self._error = error
        self._failures_left = times
        self._skip = skip
        self._after_write = after_write
        self.calls = 0
        self.failures = 0

    def fail_always(self) -> None:
        """From now on every call fails."""
        self._failures_left = None

    def recover(self) -> None:
        """From now on nothing fails."""
        self._failures_left = 0

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._port, name)
        return self._failing(attribute) if name == self._method else attribute

    def _failing(self, method: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*arguments: Any, **named: Any) -> Any:
            self.calls += 1
            fails = self._fails()
            if fails and not self._after_write:
                raise self._error or BackendUnavailable(f"{self._method} is out of reach")
            answer = await method(*arguments, **named)
            if fails:
                raise self._error or OutcomeUnknown(f"the answer of {self._method} was lost")
            return answer

        return call

    def _fails(self) -> bool:
        if self.calls <= self._skip or self._failures_left == 0:
            return False
        if self._failures_left is not None:
            self._failures_left -= 1
        self.failures += 1
        return True
