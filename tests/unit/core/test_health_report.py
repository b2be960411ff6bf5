"""A check's report: every task that runs now, each once, the worst first."""

from dataclasses import replace
from datetime import timedelta

import pytest

from longshore.core.events.codec import properties_of_body
from longshore.core.events.event import Event
from longshore.core.events.types import (
    EVENT_TO_STATE,
    HealthSummary,
    TaskHeartbeat,
    TaskProcessingStarted,
)
from longshore.core.health import (
    CheckedTask,
    Health,
    HealthPolicy,
    HealthThresholds,
    check_task,
    report_of,
)
from longshore.core.tasks import commands as c
from longshore.core.tasks import task as tasks
from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import TaskState
from tests.factories import LASTS, MARGIN, NOON, SECOND, TENANT, a_lease, a_spec, a_task, changed

MINUTE = timedelta(minutes=1)
POLICY = HealthPolicy()


def running(key: str, *, since: timedelta, silent: timedelta, **spec: object) -> TaskRow:
    """A task that was claimed, and had its last event, these durations before noon."""
    return a_task(
        state=TaskState.PROCESSING,
        spec=a_spec(key, **spec),
        started_at=NOON - since,
        last_event_at=NOON - silent,
    )


def report(*rows: TaskRow):
    return report_of(TENANT, rows, now=NOON, policy_of=lambda row: POLICY)


def test_a_running_task_is_reported_with_all_that_a_person_asks_first() -> None:
    lease = replace(a_lease(fence=2, worker_id="w-7"), heartbeats=3)
    row = a_task(
        state=TaskState.PROCESSING,
        attempt=2,
        lease=lease,
        started_at=NOON - 20 * MINUTE,
        last_event_at=NOON - 6 * MINUTE,
    )

    assert check_task(row, now=NOON, policy=POLICY) == CheckedTask(
        task_id=row.id,
        attempt=2,
        health=Health.WARNING,
        elapsed=20 * MINUTE,
        time_since_last_event=6 * MINUTE,
        last_event_type="Task Heartbeat",
        worker_id="w-7",
    )


@pytest.mark.parametrize(
    "state", [state for state in TaskState if state is not TaskState.PROCESSING]
)
def test_only_a_task_that_is_processing_has_a_health(state: TaskState) -> None:
    row = a_task(state=state, last_event_at=NOON - timedelta(days=9))

    assert check_task(row, now=NOON, policy=POLICY) is None


@pytest.mark.parametrize("missing", ["lease", "started_at"])
def test_a_row_that_could_not_be_is_stepped_over(missing: str) -> None:
    row = replace(a_task(state=TaskState.PROCESSING), **{missing: None})

    assert check_task(row, now=NOON, policy=POLICY) is None


def test_a_task_without_events_was_last_seen_when_it_was_started() -> None:
    row = replace(running("a", since=7 * MINUTE, silent=SECOND), last_event_at=None)

    checked = check_task(row, now=NOON, policy=POLICY)

    assert checked is not None
    assert checked.time_since_last_event == 7 * MINUTE
    assert checked.health is Health.WARNING


def test_a_clock_ahead_of_ours_makes_nothing_negative() -> None:
    checked = check_task(running("a", since=-MINUTE, silent=-MINUTE), now=NOON, policy=POLICY)

    assert checked is not None
    assert (checked.elapsed, checked.time_since_last_event) == (timedelta(0), timedelta(0))


def test_only_two_events_leave_a_task_processing() -> None:
    # What ``checked`` says of the last event without reading it.
    names = {name for name, state in EVENT_TO_STATE.items() if state is TaskState.PROCESSING}

    assert names == {TaskProcessingStarted.TYPE, TaskHeartbeat.TYPE}


def test_the_last_event_type_is_that_of_the_history_after_every_command() -> None:
    events: list[Event] = []
    row = a_task()
    for command in (
        c.Claim(worker_id="w", process_id=1, lease_duration=LASTS),
        c.SaveCheckpoint(fence=1, key="k"),
        c.RequestCancel(by="ann"),
        c.Renew(fence=1, process_id=1, lease_duration=LASTS),
        c.SaveCheckpoint(fence=1, key="l"),
        c.Renew(fence=1, process_id=1, lease_duration=LASTS),
        c.LeaseEnded(fence=1, margin=MARGIN, holder_dead=True),
    ):
        change = changed(tasks.apply(row, command, now=NOON, change_id=f"c-{len(events)}"))
        events += change.events
        row = change.row
        checked = check_task(row, now=NOON, policy=POLICY)

        assert checked is None or checked.last_event_type == events[-1].type


def test_a_report_has_each_task_once_and_the_worst_first() -> None:
    healthy = running("d", since=MINUTE, silent=SECOND)
    warned = running("c", since=50 * MINUTE, silent=6 * MINUTE)
    stuck = running("b", since=50 * MINUTE, silent=11 * MINUTE)
    stuck_longer = running("e", since=55 * MINUTE, silent=11 * MINUTE)
    long = running("a", since=61 * MINUTE, silent=SECOND)

    result = report(healthy, warned, stuck, long, stuck_longer, healthy, stuck)

    assert [task.task_id[-1] for task in result.tasks] == ["a", "e", "b", "c", "d"]
    assert result.summary == HealthSummary(
        total_processing=5, healthy=1, warning=1, critical=2, overtime=1
    )


def test_a_task_that_began_long_ago_is_in_the_report() -> None:
    result = report(running("a", since=timedelta(days=40), silent=timedelta(days=40)))

    assert [task.health for task in result.tasks] == [Health.OVERTIME]


def test_a_report_excludes_tasks_that_do_not_run_and_tasks_of_other_tenants() -> None:
    result = report(
        a_task(state=TaskState.IN_REVIEW, spec=a_spec("r")),
        a_task(state=TaskState.PENDING, spec=a_spec("p")),
        running("x", since=MINUTE, silent=MINUTE, tenant="other"),
    )

    assert result.tasks == ()
    assert result.summary.total_processing == 0


def test_the_event_says_what_the_report_says() -> None:
    result = report(running("a", since=2 * MINUTE, silent=15 * SECOND))

    properties = properties_of_body(result.event())

    assert properties["summary"]["totalProcessing"] == result.summary.total_processing
    assert properties["tasks"] == [
        {
            "requestId": result.tasks[0].task_id,
            "health": "healthy",
            "elapsed": 120_000,
            "timeSinceLastEvent": 15_000,
            "lastEventType": "Task Processing Started",
            "workerId": "worker-1",
        }
    ]


def test_each_task_is_judged_by_its_own_policy() -> None:
    rows = [running(key, since=2 * MINUTE, silent=2 * MINUTE) for key in "ab"]
    strict = HealthPolicy(healthy_within=SECOND, warning_within=SECOND)

    result = report_of(
        TENANT, rows, now=NOON, policy_of=lambda row: strict if row.spec.key == "a" else POLICY
    )

    assert [task.health for task in result.tasks] == [Health.CRITICAL, Health.HEALTHY]


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (HealthThresholds(), POLICY),
        (HealthThresholds(longest_run=3 * MINUTE), replace(POLICY, longest_run=3 * MINUTE)),
        (HealthThresholds(healthy_within=MINUTE), replace(POLICY, healthy_within=MINUTE)),
        (
            HealthThresholds(healthy_within=30 * MINUTE),
            replace(POLICY, healthy_within=30 * MINUTE, warning_within=30 * MINUTE),
        ),
        (HealthThresholds(warning_within=30 * MINUTE), replace(POLICY, warning_within=30 * MINUTE)),
        (
            HealthThresholds(warning_within=MINUTE),
            replace(POLICY, healthy_within=MINUTE, warning_within=MINUTE),
        ),
        (
            HealthThresholds(healthy_within=MINUTE, warning_within=2 * MINUTE),
            replace(POLICY, healthy_within=MINUTE, warning_within=2 * MINUTE),
        ),
    ],
)
def test_thresholds_that_a_definition_omits_come_from_the_policy(
    own: HealthThresholds, expected: HealthPolicy
) -> None:
    assert own.applied_to(POLICY) == expected


@pytest.mark.parametrize("name", ["longest_run", "healthy_within", "warning_within"])
def test_a_definition_cannot_ask_for_no_time(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be longer than zero"):
        HealthThresholds(**{name: timedelta(0)})


def test_a_definition_cannot_warn_before_it_stops_being_healthy() -> None:
    with pytest.raises(ValueError, match="warning_within must be no shorter"):
        HealthThresholds(healthy_within=2 * MINUTE, warning_within=MINUTE)


def test_only_what_a_person_should_look_at_now_is_urgent() -> None:
    assert [health for health in Health if health.urgent] == [Health.CRITICAL, Health.OVERTIME]


def test_a_report_of_many_tasks_is_several_events() -> None:
    rows = [running(f"t{number}", since=MINUTE, silent=MINUTE) for number in range(501)]

    whole = report(*rows)
    first, second = whole.events()

    assert (first.part, second.part, second.parts) == (1, 2, 2)
    assert first.tasks + second.tasks == whole.tasks
    assert first.summary == second.summary == whole.summary
    assert (len(first.tasks), len(second.tasks)) == (500, 1)
    assert report(*rows[:500]).events() == [report(*rows[:500]).event()]
    assert report().events() == [report().event()]
