"""What brings an installation to a cloud and takes it away again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from longshore.core.inspection import CloudAccount, ReportProgress, StackState


class Deployment(Protocol):
    """One stage."""

    async def account(self) -> CloudAccount:
        """Whose it is; asks before anything else is done."""
        ...

    async def deploy(self, report: ReportProgress) -> Mapping[str, str]:
        """Bring everything to what is wanted; what others need to know of it, by name.

        Whatever an earlier call has left unfinished is finished or mended. Where nothing is to be
        changed, nothing is.

        Raises:
            StackFailed: with the first reason; what was changed of that stack is put back.
        """
        ...

    async def destroy(self, report: ReportProgress, *, with_data: bool) -> None:
        """Take everything away; tables and blobs only ``with_data``.

        Raises:
            Protected: a stack must not be deleted; nothing was.
        """
        ...

    async def status(self) -> Sequence[StackState]:
        """Every stack, in the order of deployment."""
        ...
