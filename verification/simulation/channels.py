"""Channels by which people hear of health: they refuse, are slow, never answer, lose answers."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

from longshore.core.alerts import HealthNotice
from longshore.core.health import HealthPolicy
from longshore.core.undelivered import UndeliveredNotice
from longshore.errors import AlertFailed
from longshore.services.health import AlertSender, HealthCheck, HealthCheckPolicy
from verification.simulation.alert_monitor import CHANNELS, DEAD_LETTERS
from verification.simulation.faults import Fault

if TYPE_CHECKING:
    from verification.simulation.processes import Process

_MAX_DELAY_S = 8.0
_MAX_RETRY_AFTER_S = 8.0


class SimulatedChannel:
    """See ``ports.alerts.Alerts``; as one process reaches it."""

    def __init__(self, process: Process, name: str) -> None:
        self._process = process
        self._simulation = process.simulation
        self._name = name
        self._rng = self._simulation.random_for(f"{name} of {process.name}")

    @property
    def channel(self) -> str:
        return self._name

    async def send(self, notice: HealthNotice | UndeliveredNotice) -> None:
        if not isinstance(notice, HealthNotice):  # nothing is undelivered here
            raise TypeError(notice)
        faults, rng, who = self._simulation.faults, self._rng, self._process.name
        await self._process.wait_until_running()
        if faults.occurs(Fault.ALERT_SLOW, rng):
            await asyncio.sleep(rng.random() * _MAX_DELAY_S)
        if faults.occurs(Fault.ALERT_HANGS, rng):
            await asyncio.Event().wait()
        if faults.occurs(Fault.ALERT_FAILS, rng):
            raise self._failure()
        await self._process.wait_until_running()
        tasks = [task.task_id for task in (*notice.urgent, *notice.warnings)]
        over = [f"{gone.task_id} is over" for gone in notice.recovered]
        dead = (
            [f"{DEAD_LETTERS}: {notice.dead_letters.change.value}"] if notice.dead_letters else []
        )
        self._simulation.record(who, f"tells {self._name}", ", ".join([*tasks, *over, *dead]))
        self._simulation.alert_monitor.on_sent(self._name, notice, who)
        if faults.occurs(Fault.ALERT_ANSWER_LOST, rng):
            raise self._failure()
        self._simulation.alert_monitor.on_accepted(self._name, notice, who)

    def _failure(self) -> Exception:
        rng = self._rng
        if rng.random() < 0.2:
            return RuntimeError("a library broke")
        rest = timedelta(seconds=rng.random() * _MAX_RETRY_AFTER_S) if rng.random() < 0.3 else None
        return AlertFailed(self._name, "it does not want to", rest)


def make_health_check(process: Process) -> HealthCheck:
    """A health check as it is always made, but for the channels."""
    services = process.services
    health, alerts = services.settings.health, services.settings.alerts
    thresholds = HealthPolicy(
        longest_run=health.longest_run,
        healthy_within=health.healthy_within,
        warning_within=health.warning_within,
    )
    channels = [SimulatedChannel(process, name) for name in CHANNELS]
    return HealthCheck(
        backend=services.backend,
        worker_registry=services.worker_registry,
        alert_sender=AlertSender(
            services.backend, channels, cool_down=health.cool_down, timeout=alerts.timeout
        ),
        app=services.settings.app,
        tenant=services.settings.tenant,
        policy=HealthCheckPolicy(every=health.every, thresholds=thresholds),
    )
