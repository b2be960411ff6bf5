"""A notice in Slack: readable, harmless, and never more than Slack takes."""

import json
from datetime import timedelta

import pytest

from longshore.adapters.alerts.slack_message import BLOCKS_LIMIT, message_of
from longshore.core.alerting import Notice, Recovered
from longshore.core.health import Health
from tests.adapters.alerts.conftest import a_checked_task, a_notice

SECTION_LIMIT = 3000


def lines_of(notice: Notice) -> list[str]:
    return [
        block["text"]["text"] if block["type"] == "section" else block["elements"][0]["text"]
        for block in message_of(notice).blocks
    ]


def many(count: int, health: Health) -> list:
    return [a_checked_task(f"job-1_{health.value}{n}", health) for n in range(count)]


def gone(task_id: str, **fields: object) -> Recovered:
    return Recovered(task_id=task_id, attempt=1, was=Health.CRITICAL, **{"now": None, **fields})


def test_what_is_urgent_and_what_is_a_warning_stand_apart() -> None:
    notice = a_notice(
        a_checked_task("job-1_a", Health.OVERTIME, silence=timedelta(seconds=20)),
        a_checked_task("job-1_b", Health.CRITICAL),
        a_checked_task("job-1_c", Health.WARNING, elapsed=timedelta(minutes=9)),
        recovered=(gone("job-1_d"),),
    )

    assert lines_of(notice) == [
        "*:red_circle: Task Health: 1 stuck tasks, 1 overtime tasks*",
        "`job-1_a` overtime, running for 63 min, last event Task Heartbeat 20 s ago, "
        "worker `host-1`",
        "`job-1_b` critical, running for 63 min, last event Task Heartbeat 12 min ago, "
        "worker `host-1`",
        "*:warning: Task Health: 1 tasks with delayed heartbeats*",
        "`job-1_c` warning, running for 9 min, last event Task Heartbeat 12 min ago, "
        "worker `host-1`",
        "*:white_check_mark: Task Health: 1 tasks recovered*",
        "`job-1_d` was critical, is no longer running",
        "tenant `acme`: 3 tasks processing, 0 healthy, 1 warning, 1 critical, 1 overtime",
    ]
    assert message_of(notice).text.splitlines() == [
        ":red_circle: Task Health: 1 stuck tasks, 1 overtime tasks",
        ":warning: Task Health: 1 tasks with delayed heartbeats",
        ":white_check_mark: Task Health: 1 tasks recovered",
    ]


def test_a_part_with_nothing_in_it_is_left_out() -> None:
    assert message_of(a_notice(a_checked_task("b", Health.WARNING))).text == (
        ":warning: Task Health: 1 tasks with delayed heartbeats"
    )


@pytest.mark.parametrize(("attempt", "words"), [(1, "healthy again"), (2, "healthy in attempt 2")])
def test_a_recovery_says_what_became_of_the_task(attempt: int, words: str) -> None:
    now = a_checked_task("job-1_d", Health.HEALTHY, attempt=attempt)

    lines = lines_of(a_notice(now, recovered=(gone("job-1_d", now=now),)))

    assert lines[1] == f"`job-1_d` was critical, is {words}"


@pytest.mark.parametrize(
    ("urgent", "warnings", "recovered"),
    [(43, 0, 0), (44, 0, 0), (60, 60, 60), (0, 50, 0), (0, 0, 10_000), (40, 4, 1), (43, 17, 1)],
)
def test_a_message_never_has_more_blocks_than_slack_takes_and_sums_up_the_rest(
    urgent: int, warnings: int, recovered: int
) -> None:
    tasks = many(urgent, Health.CRITICAL) + many(warnings, Health.WARNING)
    notice = a_notice(*tasks, recovered=tuple(gone(f"job-1_r{n}") for n in range(recovered)))

    lines = lines_of(notice)

    assert len(lines) <= BLOCKS_LIMIT
    listed = sum(line.startswith("`") for line in lines)
    more = sum(int(line.split()[1]) for line in lines if line.startswith("and "))
    assert listed + more == urgent + warnings + recovered
    assert listed == min(43, urgent + warnings + recovered)
    assert f"{urgent} stuck" in lines[0] or not urgent


def test_the_rest_is_summed_up_behind_its_own_part() -> None:
    lines = lines_of(a_notice(*many(60, Health.CRITICAL), *many(5, Health.WARNING)))

    assert lines[44:47] == [
        "and 17 more",
        "*:warning: Task Health: 5 tasks with delayed heartbeats*",
        "and 5 more",
    ]


@pytest.mark.parametrize("name", ["<!channel>", "<@U1>", "<https://evil|x>", "a&b", "&lt;"])
def test_a_name_cannot_call_anybody(name: str) -> None:
    notice = a_notice(a_checked_task(name, worker_id=name))

    written = json.dumps(message_of(notice).blocks)

    assert "<" not in written
    assert ">" not in written
    assert name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") in written


def test_a_name_cannot_leave_its_code_or_its_line() -> None:
    lines = lines_of(a_notice(a_checked_task("a` *bold* `b\n\n:fire:", worker_id="")))

    assert lines[1].startswith("`a' *bold* 'b :fire:` critical")
    assert lines[1].endswith("worker `-`")


def test_names_of_any_length_fit_into_a_section() -> None:
    huge = "&" * 100_000
    task = a_checked_task(huge, worker_id=huge, last_event_type=huge)

    longest = max(len(line) for line in lines_of(a_notice(task, recovered=(gone(huge),))))

    assert longest <= SECTION_LIMIT
