"""A server, a clock that never makes anybody wait, and notices to send."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from longshore.core.alerting import Notice, Recovered
from longshore.core.health import CheckedTask, Health, HealthReport
from longshore.core.piles import Pile, PileItem, PileKind, PileNews, PileNotice
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
def _nobody_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    # Whatever the machine says of proxies: each test that wants one sets it.
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def a_checked_task(
    task_id: str = "job-1_a", health: Health = Health.CRITICAL, **fields: object
) -> CheckedTask:
    wanted = {
        "attempt": 1,
        "elapsed": timedelta(minutes=63),
        "silence": timedelta(minutes=12),
        "last_event_type": "Task Heartbeat",
        "worker_id": "host-1",
        **fields,
    }
    return CheckedTask(task_id=task_id, health=health, **wanted)


def dead_letters(
    news: PileNews = PileNews.FIRST, *, more: bool = False, **kinds: int
) -> PileNotice:
    """Dead letters of the category ``crash`` by queue, and the five that came last."""
    total = sum(kinds.values())
    newest = [
        PileItem(id=f"job-1_d{n}", queue="mail", why="crash", at=NOON - n * timedelta(minutes=2))
        for n in range(min(total, 5))
    ]
    found = Pile(
        total=total,
        more=more,
        kinds=tuple(PileKind(queue=q, why="crash", count=n) for q, n in kinds.items()),
        newest=tuple(newest),
    )
    return PileNotice(news=news, found=found)


def parked_tasks(
    news: PileNews = PileNews.FIRST, *, more: bool = False, **budgets: int
) -> PileNotice:
    """Parked tasks of the queue ``default`` by the budget that they want, and the last five."""
    total = sum(budgets.values())
    newest = [
        PileItem(id=f"job-1_p{n}", queue="default", why="own", at=NOON - n * timedelta(minutes=3))
        for n in range(min(total, 5))
    ]
    found = Pile(
        total=total,
        more=more,
        kinds=tuple(PileKind(queue="default", why=why, count=n) for why, n in budgets.items()),
        newest=tuple(newest),
    )
    return PileNotice(news=news, found=found)


def a_notice(
    *tasks: CheckedTask,
    recovered: tuple[Recovered, ...] = (),
    dead: PileNotice | None = None,
    parked: PileNotice | None = None,
) -> Notice:
    report = HealthReport(tenant="acme", at=NOON, tasks=tasks)
    return Notice(
        tenant="acme",
        at=NOON,
        summary=report.summary,
        urgent=tuple(task for task in tasks if task.health.urgent),
        warnings=tuple(task for task in tasks if task.health is Health.WARNING),
        recovered=recovered,
        dead=dead,
        parked=parked,
    )
