"""A server, a clock that never makes anybody wait, and notices to send."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from longshore.core.alerts import (
    Backlog,
    BacklogChange,
    BacklogGroup,
    BacklogItem,
    BacklogKind,
    BacklogNotice,
    HealthNotice,
    RecoveredTask,
)
from longshore.core.health import CheckedTask, Health, HealthReport
from tests.adapters.alerts.server import Server

NOON = datetime(2030, 1, 7, 12, tzinfo=UTC)


class HastyClock:
    """Sleeps take no time, and count as if they had."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def now(self) -> datetime:
        return NOON + self.elapsed()

    def elapsed(self) -> timedelta:
        return timedelta(seconds=sum(self.slept))

    async def sleep(self, duration: timedelta) -> None:
        self.slept.append(duration.total_seconds())


@pytest.fixture
def clock() -> HastyClock:
    return HastyClock()


@pytest.fixture
def server() -> Iterator[Server]:
    with Server().running() as running:
        yield running


@pytest.fixture(autouse=True)
def _without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without the proxies of this machine: a test that needs one sets it.
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def a_checked_task(
    task_id: str = "job-1_a", health: Health = Health.CRITICAL, **fields: object
) -> CheckedTask:
    requested = {
        "attempt": 1,
        "elapsed": timedelta(minutes=63),
        "time_since_last_event": timedelta(minutes=12),
        "last_event_type": "Task Heartbeat",
        "worker_id": "host-1",
        **fields,
    }
    return CheckedTask(task_id=task_id, health=health, **requested)


def dead_letters(
    news: BacklogChange = BacklogChange.FIRST, *, more: bool = False, **kinds: int
) -> BacklogNotice:
    """Dead letters of the category ``crash`` by queue, and the five that came last."""
    total = sum(kinds.values())
    newest = [
        BacklogItem(
            id=f"job-1_d{n}", queue="mail", reason="crash", at=NOON - n * timedelta(minutes=2)
        )
        for n in range(min(total, 5))
    ]
    content = Backlog(
        total=total,
        truncated=more,
        groups=tuple(BacklogGroup(queue=q, reason="crash", count=n) for q, n in kinds.items()),
        newest=tuple(newest),
    )
    return BacklogNotice(change=news, backlog=content)


def parked_tasks(
    news: BacklogChange = BacklogChange.FIRST, *, more: bool = False, **budgets: int
) -> BacklogNotice:
    """Parked tasks of the queue ``default`` by the budget that they want, and the last five."""
    total = sum(budgets.values())
    newest = [
        BacklogItem(
            id=f"job-1_p{n}", queue="default", reason="own", at=NOON - n * timedelta(minutes=3)
        )
        for n in range(min(total, 5))
    ]
    content = Backlog(
        total=total,
        truncated=more,
        groups=tuple(
            BacklogGroup(queue="default", reason=why, count=n) for why, n in budgets.items()
        ),
        newest=tuple(newest),
    )
    return BacklogNotice(change=news, backlog=content)


def rejected_messages(*reasons: str, news: BacklogChange = BacklogChange.FIRST) -> BacklogNotice:
    """Messages of the queue ``mail`` that were rejected, each for another reason."""
    items = tuple(
        BacklogItem(id=f"m-{n}", queue="mail", reason=why, at=NOON - n * timedelta(minutes=3))
        for n, why in enumerate(reasons)
    )
    content = Backlog(
        total=len(reasons),
        groups=tuple(BacklogGroup(queue="mail", reason=why, count=1) for why in reasons),
        newest=items[:5],
    )
    return BacklogNotice(change=news, backlog=content)


def a_notice(
    *tasks: CheckedTask,
    recovered: tuple[RecoveredTask, ...] = (),
    dead: BacklogNotice | None = None,
    parked: BacklogNotice | None = None,
    rejected: BacklogNotice | None = None,
) -> HealthNotice:
    report = HealthReport(tenant="acme", at=NOON, tasks=tasks)
    kinds = (
        (BacklogKind.DEAD_LETTERS, dead),
        (BacklogKind.PARKED_TASKS, parked),
        (BacklogKind.REJECTED_MESSAGES, rejected),
    )
    return HealthNotice(
        tenant="acme",
        at=NOON,
        summary=report.summary,
        urgent=tuple(task for task in tasks if task.health.urgent),
        warnings=tuple(task for task in tasks if task.health is Health.WARNING),
        recovered=recovered,
        backlogs={kind: item for kind, item in kinds if item},
    )
