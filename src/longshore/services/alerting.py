"""Alerting: brings what a health check found to every channel, and keeps what each was told.

Channels are told side by side, each about one tenant after the other, in a bounded time for all of
it. One that fails is left alone until the next check, which finds the same things untold and tries
again: only what was delivered counts. A failing alert is logged and goes no further.

What was told is kept in the blob store, so that a restart repeats nothing. While the store is out
of reach, what this process remembers has to do: people should neither miss a problem nor hear of it
at every check because a disk is full.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta

from longshore.core.alerting import (
    NOTHING_TOLD,
    TOLD_PREFIX,
    Finding,
    Notice,
    Told,
    notice_of,
    tenant_of,
    told_after,
    told_from_json,
    told_key,
    told_to_json,
)
from longshore.core.undelivered import UndeliveredNotice
from longshore.errors import AlertFailed, BackendError, NotFound, UsageError
from longshore.ports.alerts import Alerts
from longshore.ports.backend import Backend
from longshore.ports.blobs import BlobStore

logger = logging.getLogger(__name__)

_AT_ONCE = 1000
# For a send that was cancelled to clean up behind it; seconds of real time.
_GRACE_S = 1.0

ByChannel = dict[str, Told]


class ToldBook:
    """What the channels have been told of each tenant."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._known: dict[str, ByChannel] = {}
        self._unsaved: set[str] = set()  # tenants of whom the store knows less than we do
        self._writing = asyncio.Lock()

    async def tenants(self) -> set[str]:
        """Those of whom something is kept: a problem of theirs may be over."""
        found: set[str] = set(self._unsaved)
        after = ""
        while keys := await self._blobs.keys(TOLD_PREFIX, after=after, limit=_AT_ONCE):
            found |= {tenant for key in keys if (tenant := tenant_of(key)) is not None}
            after = keys[-1]
        return found

    async def of(self, tenant: str) -> ByChannel:
        """What was told of a tenant, as far as can be found out."""
        if tenant not in self._unsaved:
            try:
                self._known[tenant] = told_from_json(await self._blobs.get(told_key(tenant)))
            except NotFound:
                self._known[tenant] = {}
            except (BackendError, UsageError) as error:
                extra = {"tenant": tenant, "error": str(error)}
                logger.warning("alert.told_unreadable", extra=extra)
        return dict(self._known.get(tenant, {}))

    async def keep(self, tenant: str, told: Mapping[str, Told]) -> None:
        """From now on this has been told; a store that is out of reach gets it next time."""
        async with self._writing:  # else an older state might be written over a newer one
            something = {channel: one for channel, one in told.items() if one != NOTHING_TOLD}
            if tenant not in self._unsaved and something == self._known.get(tenant):
                return
            self._known[tenant] = something
            self._unsaved.add(tenant)
            try:
                await self._write(tenant, something)
            except (BackendError, UsageError) as error:
                extra = {"tenant": tenant, "error": str(error)}
                logger.warning("alert.told_unsaved", extra=extra)
                return
            except Exception:  # the edge: what was told stays told, and the others are still told
                logger.exception("alert.told_unsaved", extra={"tenant": tenant})
                return
            self._unsaved.discard(tenant)

    async def _write(self, tenant: str, told: ByChannel) -> None:
        if told:
            await self._blobs.put(told_key(tenant), told_to_json(told).encode())
        else:
            await self._blobs.delete(told_key(tenant))


class Alerting:
    """Tells people what is wrong, once."""

    def __init__(
        self,
        backend: Backend,
        channels: Sequence[Alerts] = (),
        *,
        cool_down: timedelta = timedelta(hours=1),
        within: timedelta = timedelta(seconds=20),
    ) -> None:
        self._clock = backend.clock
        self._book = ToldBook(backend.blobs)
        self._channels = tuple(channels)
        self._cool_down = cool_down
        self._within = within
        self._rests_until: dict[str, timedelta] = {}  # what a channel asked for, by its name
        self._said_that_nobody_hears = False

    async def tenants(self) -> set[str]:
        """Those who have to be checked even if nothing of theirs runs: people were told of it."""
        return await self._book.tenants() if self._channels else set()

    async def told_tasks(self, tenant: str) -> dict[str, bool]:
        """Tasks whose problem some channel was told of, and whether all of those know its end."""
        told: dict[str, bool] = {}
        if self._channels:
            for one in (await self._book.of(tenant)).values():
                for task_id, last in one.problems.items():
                    told[task_id] = told.get(task_id, True) and last.over
        return told

    async def tell(self, found: Sequence[Finding]) -> None:
        """Tell every channel what it does not know yet. Never fails for what a channel does."""
        if not self._channels:
            self._tell_nobody(found)
            return
        told = {one.tenant: await self._book.of(one.tenant) for one in found}
        late = {
            asyncio.ensure_future(self._tell_one(channel, found, told))
            for channel in self._channels
        }
        waiting = asyncio.ensure_future(self._clock.sleep(self._within))
        try:
            while late and not waiting.done():
                await asyncio.wait({waiting, *late}, return_when=asyncio.FIRST_COMPLETED)
                late = {one for one in late if not one.done()}
        finally:
            for one in (waiting, *late):
                one.cancel()
        if late:
            logger.warning("alert.out_of_time", extra={"channels": len(late)})
            await asyncio.wait(late, timeout=_GRACE_S)
        for tenant, channels in told.items():
            await self._book.keep(tenant, channels)

    @property
    def channels(self) -> frozenset[str]:
        """The names of all channels."""
        return frozenset(channel.channel for channel in self._channels)

    async def announce(
        self, notice: UndeliveredNotice, *, known_to: Collection[str] = ()
    ) -> frozenset[str]:
        """Tell what happened once to each channel that it is not known to; to whom it is now.

        Never fails for what a channel does. Keeping who knows it is for the caller.
        """
        if not self._channels:
            self._say_that_nobody_hears()
        others = [one for one in self._channels if one.channel not in known_to]
        sent = await asyncio.gather(*(self._unless_resting(one, notice) for one in others))
        told = {one.channel for one, got in zip(others, sent, strict=True) if got}
        return frozenset({*known_to, *told})

    async def _unless_resting(self, channel: Alerts, notice: UndeliveredNotice) -> bool:
        return not self._rests(channel.channel) and await self._sent(channel, notice)

    def _rests(self, name: str) -> bool:
        rests = self._clock.elapsed() < self._rests_until.get(name, timedelta(0))
        if rests:
            logger.info("alert.put_off", extra={"channel": name})
        return rests

    def _tell_nobody(self, found: Sequence[Finding]) -> None:
        if any(notice_of(one, NOTHING_TOLD, cool_down=self._cool_down) for one in found):
            self._say_that_nobody_hears()

    def _say_that_nobody_hears(self) -> None:
        if not self._said_that_nobody_hears:
            self._said_that_nobody_hears = True
            logger.warning("alert.skipped", extra={"reason": "no channel is set up"})

    async def _tell_one(
        self, channel: Alerts, found: Sequence[Finding], told: Mapping[str, ByChannel]
    ) -> None:
        """Tell one channel of each tenant; ``told`` is brought up to date as it goes."""
        name = channel.channel
        if self._rests(name):
            return
        for one in found:
            channels = told[one.tenant]
            before = channels.get(name, NOTHING_TOLD)
            notice = notice_of(one, before, cool_down=self._cool_down)
            if notice and not await self._sent(channel, notice):
                return
            channels[name] = told_after(before, notice, cool_down=self._cool_down)
            if notice:
                # At once: whoever stops us meanwhile should not make the next one repeat it.
                await self._book.keep(one.tenant, channels)

    async def _sent(self, channel: Alerts, notice: Notice | UndeliveredNotice) -> bool:
        name = channel.channel
        about = {"channel": name, "tenant": notice.tenant}
        try:
            await channel.send(notice)
        except AlertFailed as error:
            logger.warning("alert.failed", extra={**about, "reason": error.reason})
            if error.retry_after is not None:
                self._rests_until[name] = self._clock.elapsed() + error.retry_after
            return False
        except Exception as error:  # noqa: BLE001 - the edge of one channel
            # Without its text and its trace: nobody knows what a library writes into them.
            logger.warning("alert.broken", extra={**about, "error": type(error).__name__})
            return False
        logger.info("alert.sent", extra=about)
        return True
