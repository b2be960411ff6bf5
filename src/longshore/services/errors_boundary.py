"""Error boundaries: loops that log an unexpected error and continue with the next item.

A worker handles many tasks and jobs. One that cannot be handled, because its row is damaged or an
adapter has a bug, must not stop the others.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from longshore.errors import BackendUnavailable


@contextlib.contextmanager
def log_and_continue(logger: logging.Logger, event: str, **fields: object) -> Iterator[None]:
    """Log an exception with its traceback, and continue after the block.

    ``BackendUnavailable`` is raised: the next item would fail in the same way.
    """
    try:
        yield
    except BackendUnavailable:
        raise
    except Exception:  # one item must not stop the others
        logger.exception(event, extra=fields)
