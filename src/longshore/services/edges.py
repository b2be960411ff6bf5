"""The edges of loops that must not end: what breaks inside is told, and the loop goes on.

A worker deals with many tasks and jobs, and one that cannot be dealt with, because its row is
damaged or an adapter has a fault, must not keep all others from it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from longshore.errors import BackendUnavailable


@contextlib.contextmanager
def stepped_over(logger: logging.Logger, event: str, **about: object) -> Iterator[None]:
    """Log what breaks in here, with its trace, and go on behind it.

    What is only out of reach passes through: the next one would fare no better.
    """
    try:
        yield
    except BackendUnavailable:
        raise
    except Exception:  # the edge of one piece of work in a loop that serves everybody
        logger.exception(event, extra=about)
