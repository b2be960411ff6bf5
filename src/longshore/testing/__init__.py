"""What users test with: ``run`` here, and the contract suites, clocks and stand-ins beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longshore.testing.job_run import RunResult, run

__all__ = ["RunResult", "run"]


def __getattr__(name: str) -> Any:
    # When it is asked for: the contract suites have no use for it.
    if name not in __all__:
        message = f"module 'longshore.testing' has no attribute {name!r}"
        raise AttributeError(message)
    from longshore.testing import job_run

    return getattr(job_run, name)
