"""Sends the findings of a health check to every channel, and stores what each channel was sent.

Channels are notified concurrently, each about one tenant after the other, within one time limit. A
channel that fails is left alone until the next check, which sends the same findings again: only a
delivered notice counts. An alert that fails is logged and has no other effect.

What a channel was sent is stored in the blob store, so that a restart repeats nothing. While the
store is unavailable, the process uses its own copy: a full disk must neither hide a problem nor
repeat its alert at every check.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta

from longshore.core.alerts import (
    CHANNEL_STATE_PREFIX,
    EMPTY_CHANNEL_STATE,
    ChannelState,
    HealthFinding,
    HealthNotice,
    channel_state_key,
    channel_states_from_json,
    channel_states_to_json,
    notice_of,
    state_after,
    tenant_of_key,
)
from longshore.core.undelivered import UndeliveredNotice
from longshore.errors import AlertFailed, BackendError, NotFound, UsageError
from longshore.ports.alerts import Alerts
from longshore.ports.backend import Backend
from longshore.ports.blobs import BlobStore

logger = logging.getLogger(__name__)

_AT_ONCE = 1000
# For a cancelled send to clean up; seconds of real time.
_GRACE_S = 1.0

ByChannel = dict[str, ChannelState]


class AlertRecords:
    """What the channels were sent about each tenant."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._cache: dict[str, ByChannel] = {}
        self._unsaved: set[str] = set()  # tenants whose state in the store is older
        self._write_lock = asyncio.Lock()

    async def tenants(self) -> set[str]:
        """Returns the tenants with a stored state: one of their problems may be resolved."""
        tenants: set[str] = set(self._unsaved)
        after = ""
        while keys := await self._blobs.list_keys(
            CHANNEL_STATE_PREFIX, after=after, limit=_AT_ONCE
        ):
            tenants |= {tenant for key in keys if (tenant := tenant_of_key(key)) is not None}
            after = keys[-1]
        return tenants

    async def load(self, tenant: str) -> ByChannel:
        """Returns what was sent about a tenant, as far as it can be read."""
        if tenant not in self._unsaved:
            try:
                self._cache[tenant] = channel_states_from_json(
                    await self._blobs.get(channel_state_key(tenant))
                )
            except NotFound:
                self._cache[tenant] = {}
            except (BackendError, UsageError) as error:
                extra = {"tenant": tenant, "error": str(error)}
                logger.warning("alert.state_read_failed", extra=extra)
        return dict(self._cache.get(tenant, {}))

    async def save(self, tenant: str, notified: Mapping[str, ChannelState]) -> None:
        """Store what was sent; if the store is unavailable, it is stored next time."""
        async with self._write_lock:  # an older state must not overwrite a newer one
            something = {
                channel: state
                for channel, state in notified.items()
                if state != EMPTY_CHANNEL_STATE
            }
            if tenant not in self._unsaved and something == self._cache.get(tenant):
                return
            self._cache[tenant] = something
            self._unsaved.add(tenant)
            try:
                await self._write(tenant, something)
            except (BackendError, UsageError) as error:
                extra = {"tenant": tenant, "error": str(error)}
                logger.warning("alert.state_save_failed", extra=extra)
                return
            except Exception:  # the alert was sent, and the other channels are still notified
                logger.exception("alert.state_save_failed", extra={"tenant": tenant})
                return
            self._unsaved.discard(tenant)

    async def _write(self, tenant: str, notified: ByChannel) -> None:
        if notified:
            await self._blobs.put(
                channel_state_key(tenant), channel_states_to_json(notified).encode()
            )
        else:
            await self._blobs.delete(channel_state_key(tenant))


class AlertSender:
    """Sends each finding to each channel once."""

    def __init__(
        self,
        backend: Backend,
        channels: Sequence[Alerts] = (),
        *,
        cool_down: timedelta = timedelta(hours=1),
        timeout: timedelta = timedelta(seconds=20),
    ) -> None:
        self._clock = backend.clock
        self._records = AlertRecords(backend.blobs)
        self._channels = tuple(channels)
        self._cool_down = cool_down
        self._timeout = timeout
        self._paused_until: dict[str, timedelta] = {}  # by channel, as it requested
        self._no_channel_logged = False

    async def alerted_tenants(self) -> set[str]:
        """Returns the tenants that must be checked even if none of their tasks runs."""
        return await self._records.tenants() if self._channels else set()

    async def alerted_tasks(self, tenant: str) -> dict[str, bool]:
        """Returns the reported tasks, and whether every channel knows that they are resolved."""
        resolved: dict[str, bool] = {}
        if self._channels:
            for state in (await self._records.load(tenant)).values():
                for task_id, last in state.problems.items():
                    resolved[task_id] = resolved.get(task_id, True) and last.resolved
        return resolved

    async def send_findings(self, findings: Sequence[HealthFinding]) -> None:
        """Send every channel what is new to it. Never fails because of a channel."""
        if not self._channels:
            self._skip(findings)
            return
        notified = {item.tenant: await self._records.load(item.tenant) for item in findings}
        late = {
            asyncio.ensure_future(self._notify_channel(channel, findings, notified))
            for channel in self._channels
        }
        waiting = asyncio.ensure_future(self._clock.sleep(self._timeout))
        try:
            while late and not waiting.done():
                await asyncio.wait({waiting, *late}, return_when=asyncio.FIRST_COMPLETED)
                late = {sending for sending in late if not sending.done()}
        finally:
            for future in (waiting, *late):
                future.cancel()
        if late:
            logger.warning("alert.timed_out", extra={"channels": len(late)})
            await asyncio.wait(late, timeout=_GRACE_S)
        for tenant, channels in notified.items():
            await self._records.save(tenant, channels)

    @property
    def channels(self) -> frozenset[str]:
        """The names of the channels."""
        return frozenset(channel.channel for channel in self._channels)

    async def send_notice(
        self, notice: UndeliveredNotice, *, notified: Collection[str] = ()
    ) -> frozenset[str]:
        """Send a notice to each channel not in ``notified``. Returns all notified channels.

        Never fails because of a channel. The caller stores the result.
        """
        if not self._channels:
            self._log_no_channel()
        others = [channel for channel in self._channels if channel.channel not in notified]
        results = await asyncio.gather(*(self._send_unless_paused(it, notice) for it in others))
        sent = {it.channel for it, success in zip(others, results, strict=True) if success}
        return frozenset({*notified, *sent})

    async def _send_unless_paused(self, channel: Alerts, notice: UndeliveredNotice) -> bool:
        return not self._is_paused(channel.channel) and await self._send(channel, notice)

    def _is_paused(self, name: str) -> bool:
        paused = self._clock.elapsed() < self._paused_until.get(name, timedelta(0))
        if paused:
            logger.info("alert.delayed", extra={"channel": name})
        return paused

    def _skip(self, findings: Sequence[HealthFinding]) -> None:
        cool_down = self._cool_down
        if any(notice_of(item, EMPTY_CHANNEL_STATE, cool_down=cool_down) for item in findings):
            self._log_no_channel()

    def _log_no_channel(self) -> None:
        if not self._no_channel_logged:
            self._no_channel_logged = True
            logger.warning("alert.skipped", extra={"reason": "no channel is set up"})

    async def _notify_channel(
        self, channel: Alerts, findings: Sequence[HealthFinding], notified: Mapping[str, ByChannel]
    ) -> None:
        """Notify one channel about each tenant, and update ``notified`` meanwhile."""
        name = channel.channel
        if self._is_paused(name):
            return
        for finding in findings:
            channels = notified[finding.tenant]
            before = channels.get(name, EMPTY_CHANNEL_STATE)
            notice = notice_of(finding, before, cool_down=self._cool_down)
            if notice and not await self._send(channel, notice):
                return
            channels[name] = state_after(before, notice, cool_down=self._cool_down)
            if notice:
                # At once: if the process stops now, the next one must not repeat the notice.
                await self._records.save(finding.tenant, channels)

    async def _send(self, channel: Alerts, notice: HealthNotice | UndeliveredNotice) -> bool:
        name = channel.channel
        about = {"channel": name, "tenant": notice.tenant}
        try:
            await channel.send(notice)
        except AlertFailed as error:
            logger.warning("alert.failed", extra={**about, "reason": error.reason})
            if error.retry_after is not None:
                self._paused_until[name] = self._clock.elapsed() + error.retry_after
            return False
        except Exception as error:  # noqa: BLE001 - one channel must not stop the others
            # Without its text and traceback: a library may write secrets into them.
            logger.warning("alert.channel_failed", extra={**about, "error": type(error).__name__})
            return False
        logger.info("alert.sent", extra=about)
        return True
