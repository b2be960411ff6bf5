"""A channel gets each problem of a check once and its end once; only delivered notices count."""

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.alerts import (
    EMPTY_CHANNEL_STATE,
    ChannelState,
    HealthFinding,
    HealthNotice,
    RecoveredTask,
    ReportedProblem,
    channel_state_key,
    notice_of,
    state_after,
    tenant_of_key,
)
from longshore.core.health import CheckedTask, Health, HealthReport
from tests.factories import NOON, SECOND, TENANT

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
WARNING, CRITICAL, OVERTIME = Health.WARNING, Health.CRITICAL, Health.OVERTIME


def a_check(at: datetime = NOON, attempt: int = 1, **tasks: Health) -> HealthReport:
    return HealthReport(
        tenant=TENANT,
        at=at,
        tasks=tuple(
            CheckedTask(
                task_id=name,
                attempt=attempt,
                health=health,
                elapsed=HOUR,
                time_since_last_event=MINUTE,
                last_event_type="Task Heartbeat",
                worker_id="w",
            )
            for name, health in tasks.items()
        ),
    )


def news(report: HealthReport, state: ChannelState, cool_down: timedelta = HOUR) -> HealthNotice:
    finding = HealthFinding(tenant=report.tenant, at=report.at, tasks=report)
    return notice_of(finding, state, cool_down=cool_down)


class AlertChannel:
    """A channel that gets the notices of checks, and stores its state."""

    def __init__(self, cool_down: timedelta = HOUR) -> None:
        self.state = EMPTY_CHANNEL_STATE
        self.cool_down = cool_down

    def check(self, report: HealthReport, *, delivered: bool = True) -> dict[str, str]:
        notice = news(report, self.state, self.cool_down)
        if delivered:
            self.state = state_after(self.state, notice, cool_down=self.cool_down)
        problems = {task.task_id: task.health.value for task in (*notice.urgent, *notice.warnings)}
        return problems | {task.task_id: "recovered" for task in notice.recovered}


def test_a_notice_separates_urgent_tasks_from_warnings_and_has_the_whole_summary() -> None:
    report = a_check(a=CRITICAL, b=WARNING, c=OVERTIME, d=Health.HEALTHY)

    notice = news(report, EMPTY_CHANNEL_STATE)

    assert [task.task_id for task in notice.urgent] == ["a", "c"]
    assert [task.task_id for task in notice.warnings] == ["b"]
    assert notice.recovered == ()
    assert notice.summary == report.summary
    assert (notice.tenant, notice.at) == (TENANT, NOON)
    assert notice


def test_a_healthy_task_causes_no_notice() -> None:
    assert not news(a_check(a=Health.HEALTHY), EMPTY_CHANNEL_STATE)


@pytest.mark.parametrize("health", [WARNING, CRITICAL, OVERTIME])
def test_a_problem_is_reported_once(health: Health) -> None:
    channel = AlertChannel()

    assert channel.check(a_check(a=health)) == {"a": health.value}
    for minutes in range(5, 60, 5):
        assert channel.check(a_check(NOON + minutes * MINUTE, a=health)) == {}


def test_a_problem_is_reported_again_after_each_cool_down() -> None:
    channel = AlertChannel()
    channel.check(a_check(a=CRITICAL))

    assert channel.check(a_check(NOON + HOUR - SECOND, a=CRITICAL)) == {}
    assert channel.check(a_check(NOON + HOUR, a=CRITICAL)) == {"a": "critical"}
    assert channel.check(a_check(NOON + 2 * HOUR - SECOND, a=CRITICAL)) == {}


def test_without_a_cool_down_a_problem_is_reported_at_every_check() -> None:
    channel = AlertChannel(cool_down=timedelta(0))

    assert [channel.check(a_check(a=WARNING)) for _ in range(2)] == [{"a": "warning"}] * 2


def test_a_problem_is_reported_again_when_it_changes() -> None:
    channel = AlertChannel()
    healths = [WARNING, CRITICAL, OVERTIME]

    reported = [channel.check(a_check(NOON + n * MINUTE, a=h)) for n, h in enumerate(healths)]

    assert reported == [{"a": "warning"}, {"a": "critical"}, {"a": "overtime"}]


def test_the_same_problem_in_another_attempt_is_another_problem_and_no_recovery() -> None:
    channel = AlertChannel()
    channel.check(a_check(a=CRITICAL))

    assert channel.check(a_check(NOON + MINUTE, attempt=2, a=CRITICAL)) == {"a": "critical"}


def test_a_notice_that_could_not_be_delivered_is_repeated_by_the_next_check() -> None:
    channel = AlertChannel()

    assert channel.check(a_check(a=CRITICAL), delivered=False) == {"a": "critical"}
    assert channel.check(a_check(NOON + MINUTE, a=CRITICAL), delivered=True) == {"a": "critical"}
    assert channel.check(a_check(NOON + 2 * MINUTE), delivered=False) == {"a": "recovered"}
    assert channel.check(a_check(NOON + 3 * MINUTE)) == {"a": "recovered"}


def test_the_end_of_a_problem_that_was_never_reported_is_not_reported() -> None:
    channel = AlertChannel()
    channel.check(a_check(a=CRITICAL), delivered=False)

    assert channel.check(a_check(NOON + MINUTE)) == {}


def test_the_end_of_a_problem_is_reported_once_with_the_current_task() -> None:
    before = ChannelState(
        {name: ReportedProblem(attempt=1, health=CRITICAL, at=NOON) for name in ("a", "b")}
    )
    report = a_check(NOON + MINUTE, a=Health.HEALTHY)

    notice = news(report, before)
    after = state_after(before, notice, cool_down=HOUR)

    assert notice.recovered == (
        RecoveredTask(task_id="a", attempt=1, previous=CRITICAL, current=report.tasks[0]),
        RecoveredTask(task_id="b", attempt=1, previous=CRITICAL, current=None),
    )
    assert not news(a_check(NOON + 2 * MINUTE, a=Health.HEALTHY), after)


def test_an_urgent_problem_that_comes_back_is_reported_at_once() -> None:
    channel = AlertChannel()
    channel.check(a_check(a=CRITICAL))
    channel.check(a_check(NOON + MINUTE, a=Health.HEALTHY))

    assert channel.check(a_check(NOON + 2 * MINUTE, a=CRITICAL)) == {"a": "critical"}


def test_a_warning_that_comes_and_goes_is_reported_once_a_cool_down() -> None:
    channel = AlertChannel()
    reported = []
    for minutes in range(0, 120, 5):
        health = Health.HEALTHY if minutes % 10 else WARNING
        if problems := channel.check(a_check(NOON + minutes * MINUTE, a=health)):
            reported.append((minutes, problems["a"]))

    assert reported == [(0, "warning"), (5, "recovered"), (60, "warning"), (65, "recovered")]


def test_a_warning_that_came_back_unreported_and_gets_worse_is_reported() -> None:
    channel = AlertChannel()
    for minutes, health in enumerate([WARNING, Health.HEALTHY, WARNING]):
        channel.check(a_check(NOON + minutes * MINUTE, a=health))

    assert channel.check(a_check(NOON + 4 * MINUTE, a=CRITICAL)) == {"a": "critical"}


def test_a_recovered_problem_is_removed_from_the_state_after_the_cool_down() -> None:
    channel = AlertChannel()
    channel.check(a_check(a=CRITICAL))
    channel.check(a_check(NOON + MINUTE))
    remembered = channel.state
    channel.check(a_check(NOON + HOUR))

    assert set(remembered.problems) == {"a"}
    assert channel.state == EMPTY_CHANNEL_STATE


def test_tasks_that_could_not_be_looked_at_have_not_recovered() -> None:
    before = ChannelState({"a": ReportedProblem(attempt=1, health=CRITICAL, at=NOON)})

    notice = notice_of(HealthFinding(tenant=TENANT, at=NOON + HOUR), before, cool_down=HOUR)

    assert not notice
    assert (notice.tenant, notice.at, notice.summary) == (TENANT, NOON + HOUR, None)
    assert state_after(before, notice, cool_down=HOUR) == before


def test_a_clock_that_was_set_back_silences_nothing_for_longer_than_the_cool_down() -> None:
    channel = AlertChannel()
    channel.check(a_check(a=CRITICAL))

    assert channel.check(a_check(NOON - MINUTE, a=CRITICAL)) == {}
    assert channel.check(a_check(NOON - 24 * HOUR, a=CRITICAL)) == {"a": "critical"}


def test_each_tenant_has_its_own_place() -> None:
    assert channel_state_key("acme") == "health/acme/notified.json"
    assert tenant_of_key("health/acme/notified.json") == "acme"
    assert tenant_of_key("health/acme/other.json") is None
    assert tenant_of_key("jobs/acme/notified.json") is None


@given(
    st.lists(
        st.tuples(st.dictionaries(st.sampled_from("abc"), st.sampled_from(Health)), st.booleans()),
        max_size=12,
    )
)
def test_the_reported_problems_match_the_last_delivered_check(
    checks: list[tuple[dict[str, Health], bool]],
) -> None:
    channel = AlertChannel()
    for number, (tasks, delivered) in enumerate(checks):
        channel.check(a_check(NOON + 5 * number * MINUTE, **tasks), delivered=delivered)
    last = {} if not checks else checks[-1][0]
    at = NOON + 5 * len(checks) * MINUTE
    channel.check(a_check(at, **last))

    reported = {
        name: problem.health
        for name, problem in channel.state.problems.items()
        if not problem.resolved
    }
    urgent = {name: health for name, health in last.items() if health.urgent}
    assert urgent.items() <= reported.items()
    assert all(last.get(name) is health for name, health in reported.items())
