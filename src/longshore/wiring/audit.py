"""Settings → the way to an installation's tables, for whoever audits them.

The backend's adapters are passed by: an audit must not believe what it judges.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

from longshore.settings import Settings
from longshore.wiring.backends import aws_installation

if TYPE_CHECKING:
    from longshore.adapters.aws.names import Names


@contextlib.asynccontextmanager
async def open_installation(
    settings: Settings,
) -> AsyncIterator[tuple[Callable[..., Awaitable[dict[str, Any]]], Names]]:
    """How AWS is asked, and what the parts of the installation are called.

    Raises:
        ConfigurationError: the bucket is not named, or the library for AWS is not installed.
    """
    installation = aws_installation(settings)
    try:
        yield installation.aws.call, installation.names
    finally:
        await installation.aws.close()
