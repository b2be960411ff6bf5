"""Channels by which people hear of health: they refuse, are slow, never answer, lose answers."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

from longshore.core.alerting import Notice
from longshore.core.health import HealthPolicy
from longshore.core.undelivered import UndeliveredNotice
from longshore.errors import AlertFailed
from longshore.services.alerting import Alerting
from longshore.services.health_check import HealthCheck, HealthCheckPolicy
from longshore.testing.simulation.ears import CHANNELS, DEAD
from longshore.testing.simulation.faults import Fault

if TYPE_CHECKING:
    from longshore.testing.simulation.processes import Process

_LONG = 8.0
_LONGEST_REST = 8.0


class Channel:
    """See ``ports.alerts.Alerts``; as one process reaches it."""

    def __init__(self, process: Process, name: str) -> None:
        self._process = process
        self._world = process.world
        self._name = name
        self._rng = self._world.chance(f"{name} of {process.name}")

    @property
    def channel(self) -> str:
        return self._name

    async def send(self, notice: Notice | UndeliveredNotice) -> None:
        if not isinstance(notice, Notice):  # nothing is undelivered here
            raise TypeError(notice)
        faults, rng, who = self._world.faults, self._rng, self._process.name
        await self._process.awake()
        if faults.happens(Fault.ALERT_SLOW, rng):
            await asyncio.sleep(rng.random() * _LONG)
        if faults.happens(Fault.ALERT_HANGS, rng):
            await asyncio.Event().wait()
        if faults.happens(Fault.ALERT_FAILS, rng):
            raise self._failure()
        await self._process.awake()
        tasks = [task.task_id for task in (*notice.urgent, *notice.warnings)]
        over = [f"{gone.task_id} is over" for gone in notice.recovered]
        dead = [f"{DEAD}: {notice.dead.news.value}"] if notice.dead else []
        self._world.note(who, f"tells {self._name}", ", ".join([*tasks, *over, *dead]))
        self._world.ears.say(self._name, notice, who)
        if faults.happens(Fault.ALERT_UNHEARD, rng):
            raise self._failure()
        self._world.ears.taken(self._name, notice, who)

    def _failure(self) -> Exception:
        rng = self._rng
        if rng.random() < 0.2:
            return RuntimeError("a library broke")
        rest = timedelta(seconds=rng.random() * _LONGEST_REST) if rng.random() < 0.3 else None
        return AlertFailed(self._name, "it does not want to", rest)


def health_check_of(process: Process) -> HealthCheck:
    """A health check as it is always made, but for the channels."""
    services = process.services
    health, alerts = services.settings.health, services.settings.alerts
    thresholds = HealthPolicy(
        longest_run=health.longest_run,
        healthy_within=health.healthy_within,
        warning_within=health.warning_within,
    )
    channels = [Channel(process, name) for name in CHANNELS]
    return HealthCheck(
        backend=services.backend,
        presence=services.presence,
        alerting=Alerting(
            services.backend, channels, cool_down=health.cool_down, within=alerts.timeout
        ),
        app=services.settings.app,
        tenant=services.settings.tenant,
        policy=HealthCheckPolicy(every=health.every, thresholds=thresholds),
    )
