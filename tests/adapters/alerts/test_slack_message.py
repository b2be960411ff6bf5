"""A notice in Slack: readable, harmless, and never more than Slack takes."""

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from longshore.adapters.alerts.slack import BLOCKS_LIMIT, message_of
from longshore.core.alerts import (
    Backlog,
    BacklogChange,
    BacklogGroup,
    BacklogItem,
    BacklogNotice,
    HealthNotice,
    RecoveredTask,
)
from longshore.core.health import Health
from tests.adapters.alerts.conftest import (
    NOON,
    a_checked_task,
    a_notice,
    dead_letters,
    parked_tasks,
    rejected_messages,
)

SECTION_LIMIT = 3000


def lines_of(notice: HealthNotice) -> list[str]:
    return [
        block["text"]["text"] if block["type"] == "section" else block["elements"][0]["text"]
        for block in message_of(notice).blocks
    ]


def many(count: int, health: Health) -> list:
    return [a_checked_task(f"job-1_{health.value}{n}", health) for n in range(count)]


def gone(task_id: str, **fields: object) -> RecoveredTask:
    return RecoveredTask(
        task_id=task_id, attempt=1, previous=Health.CRITICAL, **{"current": None, **fields}
    )


def test_what_is_urgent_and_what_is_a_warning_stand_apart() -> None:
    notice = a_notice(
        a_checked_task("job-1_a", Health.OVERTIME, time_since_last_event=timedelta(seconds=20)),
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

    lines = lines_of(a_notice(now, recovered=(gone("job-1_d", current=now),)))

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


def test_dead_letters_stand_between_what_is_wrong_and_what_is_over() -> None:
    notice = a_notice(
        a_checked_task("job-1_a"),
        recovered=(gone("job-1_r"),),
        dead=dead_letters(mail=2, default=1),
    )

    assert lines_of(notice)[2:-1] == [
        "*:red_circle: Dead Letters: 3*",
        "2 in queue `mail`: crash",
        "1 in queue `default`: crash",
        "`job-1_d0` in queue `mail`, 0 s ago",
        "`job-1_d1` in queue `mail`, 2 min ago",
        "`job-1_d2` in queue `mail`, 4 min ago",
        "all of them: `longshore dead list`",
        "*:white_check_mark: Task Health: 1 tasks recovered*",
        "`job-1_r` was critical, is no longer running",
    ]
    assert message_of(notice).text.splitlines() == [
        ":red_circle: Task Health: 1 stuck tasks, 0 overtime tasks",
        ":red_circle: Dead Letters: 3",
        ":white_check_mark: Task Health: 1 tasks recovered",
    ]


@pytest.mark.parametrize(
    ("news", "more", "words"),
    [
        (BacklogChange.FIRST, False, ":red_circle: Dead Letters: 1,000"),
        (BacklogChange.FIRST, True, ":red_circle: Dead Letters: more than 1,000"),
        (BacklogChange.MORE, False, ":red_circle: Dead Letters: 1,000, some of them new"),
        (BacklogChange.STILL, True, ":red_circle: Dead Letters: still more than 1,000"),
    ],
)
def test_the_headline_says_what_has_changed_about_dead_letters(
    news: BacklogChange, more: bool, words: str
) -> None:
    message = message_of(a_notice(dead=dead_letters(news, more=more, mail=1_000)))

    assert message.text == words


def test_that_no_dead_letter_is_left_is_one_line() -> None:
    lines = lines_of(a_notice(dead=dead_letters(BacklogChange.NONE_LEFT)))

    assert lines == [
        "*:white_check_mark: Dead Letters: none left*",
        "tenant `acme`: 0 tasks processing, 0 healthy, 0 warning, 0 critical, 0 overtime",
    ]


def test_parked_tasks_follow_dead_letters_with_the_command_that_continues_them() -> None:
    notice = a_notice(dead=dead_letters(mail=1), parked=parked_tasks(own=2, job=1, day=1))

    assert lines_of(notice)[4:-1] == [
        "*:warning: Parked Tasks: 4*",
        "2 in queue `default`: their own budget is used up",
        "1 in queue `default`: the budget of their job is used up",
        "1 in queue `default`: the budget of the day is used up; they continue on the next day",
        "`job-1_p0` in queue `default`, 0 s ago",
        "`job-1_p1` in queue `default`, 3 min ago",
        "`job-1_p2` in queue `default`, 6 min ago",
        "`job-1_p3` in queue `default`, 9 min ago",
        "all of them: `longshore tasks --state parked`",
        "to continue them: `longshore budget add ID --usd N`, for a task, a job or `today`",
    ]
    assert message_of(notice).text.splitlines() == [
        ":red_circle: Dead Letters: 1",
        ":warning: Parked Tasks: 4",
    ]


@pytest.mark.parametrize(
    ("news", "more", "words"),
    [
        (BacklogChange.MORE, True, ":warning: Parked Tasks: more than 9, some of them new"),
        (BacklogChange.STILL, False, ":warning: Parked Tasks: still 9"),
    ],
)
def test_the_headline_says_what_has_changed_about_parked_tasks(
    news: BacklogChange, more: bool, words: str
) -> None:
    assert message_of(a_notice(parked=parked_tasks(news, more=more, own=9))).text == words


def test_that_no_parked_task_is_left_is_one_line() -> None:
    assert lines_of(a_notice(parked=parked_tasks(BacklogChange.NONE_LEFT)))[:-1] == [
        "*:white_check_mark: Parked Tasks: none left*"
    ]


def test_rejected_messages_come_with_their_reasons_as_text() -> None:
    rejected = rejected_messages("not JSON", "there is no task '<!channel>'")

    assert lines_of(a_notice(rejected=rejected))[:-1] == [
        "*:red_circle: Rejected Messages: 2*",
        "1 in queue `mail`: not JSON",
        "1 in queue `mail`: there is no task '&lt;!channel&gt;'",
        "`m-0` in queue `mail`, 0 s ago",
        "`m-1` in queue `mail`, 3 min ago",
        "they were deleted; `Message Rejected` events of the queue say how they began",
    ]


def test_that_no_message_was_rejected_any_more_is_one_line() -> None:
    rejected = rejected_messages(news=BacklogChange.NONE_LEFT)

    assert lines_of(a_notice(rejected=rejected))[:-1] == [
        "*:white_check_mark: Rejected Messages: none in the last 24 hours*"
    ]


def test_a_failed_check_of_tasks_is_reported() -> None:
    notice = replace(a_notice(dead=dead_letters(mail=1)), summary=None)

    assert lines_of(notice)[-1] == "tenant `acme`: its tasks could not be checked"


def test_of_many_kinds_of_dead_letters_the_rest_is_summed_up() -> None:
    lines = lines_of(a_notice(dead=dead_letters(**{f"q{n}": 1 for n in range(30)})))

    assert lines[5:7] == ["1 in queue `q4`: crash", "and 25 more kinds"]
    assert len(lines) == 14


@pytest.mark.parametrize("tasks", [0, 16, 17, 18, 29, 30, 31, 43, 10_000])
@pytest.mark.parametrize("kinds", [1, 5, 30])
@pytest.mark.parametrize("parked", [False, True])
def test_backlogs_keep_a_message_within_the_limits_of_slack(
    tasks: int, kinds: int, parked: bool
) -> None:
    notice = a_notice(
        *many(tasks, Health.CRITICAL),
        *many(tasks, Health.WARNING),
        recovered=tuple(gone(f"job-1_r{n}") for n in range(tasks)),
        dead=dead_letters(**{f"q{n}": 9 for n in range(kinds)}),
        parked=parked_tasks(**{f"b{n}": 9 for n in range(kinds)}) if parked else None,
        rejected=rejected_messages(*kinds * ["not JSON"]) if parked else None,
    )

    lines = lines_of(notice)

    assert len(lines) <= BLOCKS_LIMIT
    assert "all of them: `longshore dead list`" in lines
    assert ("all of them: `longshore tasks --state parked`" in lines) is parked
    listed = sum(line.startswith("`") and "running for" in line for line in lines)
    listed += sum("was critical" in line for line in lines)
    more = sum(int(line.split()[1]) for line in lines if line.endswith("more"))
    assert listed + more == 3 * tasks


def test_names_in_dead_letters_notify_no_one_and_fit_into_a_section() -> None:
    for name in ("<!channel>", "&" * 100_000, "a` *b*\n\n:fire:"):
        content = Backlog(
            total=1,
            groups=(BacklogGroup(queue=name, reason=name, count=1),),
            newest=(BacklogItem(id=name, queue=name, reason="crash", at=NOON + timedelta(days=1)),),
        )
        notice = a_notice(dead=BacklogNotice(change=BacklogChange.FIRST, backlog=content))

        lines = lines_of(notice)

        assert "<" not in json.dumps(message_of(notice).blocks)
        assert max(len(line) for line in lines) <= SECTION_LIMIT
        assert not any("\n" in line for line in lines)
        # By another machine's clock, which is ahead.
        assert lines[2].endswith(", 0 s ago")
