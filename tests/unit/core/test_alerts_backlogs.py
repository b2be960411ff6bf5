"""Alerts report dead letters and parked tasks: the first, new ones, after each cool-down, and when
none is left."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.alerts import (
    COUNT_LIMIT,
    EMPTY_BACKLOG,
    EMPTY_CHANNEL_STATE,
    Backlog,
    BacklogChange,
    BacklogGroup,
    BacklogItem,
    BacklogKind,
    BacklogNotice,
    ChannelState,
    HealthFinding,
    HealthNotice,
    ReportedBacklog,
    notice_of,
    rejected_message_item,
    state_after,
)
from longshore.core.events.event import EventContext
from longshore.core.events.types import MessageRejected
from longshore.core.health import CheckedTask, Health, HealthReport
from tests.factories import NOON, TENANT
from tests.unit.core.event_samples import AT, STARTED, an_event

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DEAD, PARKED = BacklogKind.DEAD_LETTERS, BacklogKind.PARKED_TASKS


def make_backlog(
    total: int, newest: str = "a", at: datetime = NOON, *, more: bool = False
) -> Backlog:
    kind = BacklogGroup(queue="default", reason="crash", count=total)
    item = BacklogItem(id=newest, queue="default", reason="crash", at=at)
    return Backlog(total=total, truncated=more, groups=(kind,), newest=(item,))


def make_finding(
    kind: BacklogKind, count: Backlog | None, minutes: int = 0, tasks: HealthReport | None = None
) -> HealthFinding:
    backlogs = {} if count is None else {kind: count}
    return HealthFinding(tenant=TENANT, at=NOON + minutes * MINUTE, tasks=tasks, backlogs=backlogs)


class BacklogChannel:
    """A channel that gets the notices of one kind of backlog, and stores its state."""

    def __init__(self, kind: BacklogKind, cool_down: timedelta = HOUR) -> None:
        self.kind = kind
        self.state = EMPTY_CHANNEL_STATE
        self.cool_down = cool_down

    def check(
        self, count: Backlog | None, minutes: int = 0, *, delivered: bool = True
    ) -> BacklogChange | None:
        notice = notice_of(
            make_finding(self.kind, count, minutes), self.state, cool_down=self.cool_down
        )
        backlog = notice.backlogs.get(self.kind)
        assert bool(notice) is (backlog is not None)
        if delivered:
            self.state = state_after(self.state, notice, cool_down=self.cool_down)
        return backlog.change if backlog else None


@pytest.fixture(params=list(BacklogKind))
def channel(request: pytest.FixtureRequest) -> BacklogChannel:
    return BacklogChannel(request.param)


@pytest.fixture(params=[DEAD, PARKED])
def reminded(request: pytest.FixtureRequest) -> BacklogChannel:
    """A channel that is reminded of what no one has settled yet."""
    return BacklogChannel(request.param)


def test_rejected_messages_are_reported_without_reminders() -> None:
    channel = BacklogChannel(BacklogKind.REJECTED_MESSAGES)
    changes = {minutes: channel.check(make_backlog(3), minutes) for minutes in range(0, 130, 5)}

    assert [change for change in changes.values() if change] == [BacklogChange.FIRST]
    assert channel.check(make_backlog(3, "b", NOON + MINUTE), 130) is BacklogChange.MORE
    assert channel.check(EMPTY_BACKLOG, 135) is BacklogChange.NONE_LEFT


def test_an_empty_backlog_is_not_reported(channel: BacklogChannel) -> None:
    assert channel.check(EMPTY_BACKLOG) is None


def test_the_first_items_are_reported_once_with_the_backlog(channel: BacklogChannel) -> None:
    count = make_backlog(3)

    first = notice_of(make_finding(channel.kind, count), EMPTY_CHANNEL_STATE, cool_down=HOUR)

    assert first.backlogs[channel.kind] == BacklogNotice(change=BacklogChange.FIRST, backlog=count)
    assert channel.check(count) is BacklogChange.FIRST
    assert [channel.check(count, minutes) for minutes in range(5, 60, 5)] == [None] * 11


@pytest.mark.parametrize(
    "later",
    [
        pytest.param(make_backlog(4), id="more than before"),
        pytest.param(make_backlog(3, "b", NOON + MINUTE), id="a newer one"),
        pytest.param(make_backlog(2, "b", NOON + MINUTE), id="a newer one although others went"),
        pytest.param(make_backlog(3, "b"), id="a newer one at the same moment"),
        pytest.param(make_backlog(4, "z", NOON - HOUR), id="more by a clock that is behind"),
    ],
)
def test_new_items_are_reported_at_once_and_once(channel: BacklogChannel, later: Backlog) -> None:
    channel.check(make_backlog(3))

    assert channel.check(later, 5) is BacklogChange.MORE
    assert channel.check(later, 10) is None


@pytest.mark.parametrize(
    "later", [make_backlog(2), make_backlog(1, "0"), make_backlog(1, "z", NOON - HOUR)]
)
def test_a_backlog_that_shrinks_is_not_reported(channel: BacklogChannel, later: Backlog) -> None:
    channel.check(make_backlog(3))

    assert channel.check(later, 5) is None


def test_a_part_of_a_millisecond_makes_nothing_newer(channel: BacklogChannel) -> None:
    count = make_backlog(1, at=NOON + timedelta(microseconds=1_999))

    assert [channel.check(count, minutes) for minutes in (0, 5, 10)] == [
        BacklogChange.FIRST,
        None,
        None,
    ]


def test_beyond_the_count_limit_a_newer_item_is_reported_and_the_same_items_are_not(
    channel: BacklogChannel,
) -> None:
    channel.check(make_backlog(COUNT_LIMIT))

    assert channel.check(make_backlog(COUNT_LIMIT, more=True), 5) is BacklogChange.MORE
    assert channel.check(make_backlog(COUNT_LIMIT, more=True), 10) is None
    newer = make_backlog(COUNT_LIMIT, "b", NOON + MINUTE, more=True)
    assert channel.check(newer, 15) is BacklogChange.MORE


def test_a_backlog_is_reported_again_after_each_cool_down(
    reminded: BacklogChannel,
) -> None:
    changes = {minutes: reminded.check(make_backlog(3), minutes) for minutes in range(0, 130, 5)}

    assert {minutes: change for minutes, change in changes.items() if change} == {
        0: BacklogChange.FIRST,
        60: BacklogChange.STILL,
        120: BacklogChange.STILL,
    }


def test_new_items_start_another_cool_down(reminded: BacklogChannel) -> None:
    reminded.check(make_backlog(3))
    reminded.check(make_backlog(4), 30)

    assert reminded.check(make_backlog(4), 85) is None
    assert reminded.check(make_backlog(4), 90) is BacklogChange.STILL


def test_without_a_cool_down_a_backlog_is_reported_at_every_check(reminded: BacklogChannel) -> None:
    reminded.cool_down = timedelta(0)

    assert [reminded.check(make_backlog(1)) for _ in range(3)] == [
        BacklogChange.FIRST,
        BacklogChange.STILL,
        BacklogChange.STILL,
    ]


def test_a_clock_that_was_set_back_silences_nothing_for_longer_than_the_cool_down(
    reminded: BacklogChannel,
) -> None:
    reminded.check(make_backlog(3))

    assert reminded.check(make_backlog(3), -1) is None
    assert reminded.check(make_backlog(3), -24 * 60) is BacklogChange.STILL


def test_an_emptied_backlog_is_reported_once_and_the_next_item_is_a_first_one(
    channel: BacklogChannel,
) -> None:
    channel.check(make_backlog(3))

    assert channel.check(EMPTY_BACKLOG, 5) is BacklogChange.NONE_LEFT
    assert channel.state == EMPTY_CHANNEL_STATE
    assert channel.check(EMPTY_BACKLOG, 10) is None
    assert channel.check(make_backlog(1), 15) is BacklogChange.FIRST


def test_a_notice_that_could_not_be_delivered_is_repeated_by_the_next_check(
    channel: BacklogChannel,
) -> None:
    assert channel.check(make_backlog(3), delivered=False) is BacklogChange.FIRST
    assert channel.check(make_backlog(4), 5) is BacklogChange.FIRST
    assert channel.check(make_backlog(5), 10, delivered=False) is BacklogChange.MORE
    assert channel.check(make_backlog(5), 15) is BacklogChange.MORE
    assert channel.check(EMPTY_BACKLOG, 20, delivered=False) is BacklogChange.NONE_LEFT
    assert channel.check(EMPTY_BACKLOG, 25) is BacklogChange.NONE_LEFT


def test_the_end_of_a_backlog_that_was_never_reported_is_not_reported(
    channel: BacklogChannel,
) -> None:
    channel.check(make_backlog(3), delivered=False)

    assert channel.check(EMPTY_BACKLOG, 5) is None


def test_an_unknown_backlog_is_not_reported_and_changes_no_state(
    reminded: BacklogChannel,
) -> None:
    reminded.check(make_backlog(3))

    assert reminded.check(None, 90) is None
    assert reminded.check(make_backlog(3), 95) is BacklogChange.STILL


@pytest.mark.parametrize("kind", list(BacklogKind))
def test_one_notice_has_both_the_tasks_and_the_backlog(kind: BacklogKind) -> None:
    stuck = CheckedTask(
        task_id="a",
        attempt=1,
        health=Health.CRITICAL,
        elapsed=HOUR,
        time_since_last_event=HOUR,
        last_event_type="Task Heartbeat",
        worker_id="w",
    )
    report = HealthReport(tenant=TENANT, at=NOON, tasks=(stuck,))

    notice = notice_of(
        make_finding(kind, make_backlog(3), tasks=report), EMPTY_CHANNEL_STATE, cool_down=HOUR
    )
    after = state_after(EMPTY_CHANNEL_STATE, notice, cool_down=HOUR)
    only_tasks = notice_of(
        make_finding(kind, None, tasks=report), EMPTY_CHANNEL_STATE, cool_down=HOUR
    )
    only_backlog = notice_of(
        make_finding(kind, make_backlog(3)), EMPTY_CHANNEL_STATE, cool_down=HOUR
    )

    first = BacklogNotice(change=BacklogChange.FIRST, backlog=make_backlog(3))
    assert (notice.urgent, notice.summary) == ((stuck,), report.summary)
    assert notice.backlogs == {kind: first}
    assert set(after.problems) == {"a"}
    last = ReportedBacklog(minimum_count=3, newest_key=make_backlog(3).newest[0].sort_key, at=NOON)
    assert after == ChannelState(after.problems, {kind: last})
    assert only_tasks == replace(notice, backlogs={})
    assert only_backlog == HealthNotice(
        tenant=TENANT, at=NOON, summary=None, backlogs={kind: first}
    )
    for notice in (only_tasks, only_backlog):
        assert notice


def test_dead_letters_and_parked_tasks_are_reported_independently() -> None:
    before = ChannelState(
        {},
        {
            DEAD: ReportedBacklog(
                minimum_count=3, newest_key=make_backlog(3).newest[0].sort_key, at=NOON
            )
        },
    )
    later = NOON + 5 * MINUTE
    both = HealthFinding(
        tenant=TENANT, at=later, backlogs={DEAD: EMPTY_BACKLOG, PARKED: make_backlog(2)}
    )

    notice = notice_of(both, before, cool_down=HOUR)
    after = state_after(before, notice, cool_down=HOUR)

    assert notice.backlogs == {
        DEAD: BacklogNotice(change=BacklogChange.NONE_LEFT, backlog=EMPTY_BACKLOG),
        PARKED: BacklogNotice(change=BacklogChange.FIRST, backlog=make_backlog(2)),
    }
    parked = ReportedBacklog(
        minimum_count=2, newest_key=make_backlog(2).newest[0].sort_key, at=later
    )
    assert after == ChannelState({}, {PARKED: parked})
    # What could not be found out of one is no news of the other either.
    unknown = notice_of(replace(both, backlogs={PARKED: make_backlog(2)}), before, cool_down=HOUR)
    assert state_after(before, unknown, cool_down=HOUR) == ChannelState(
        {}, {**before.backlogs, PARKED: parked}
    )


@given(
    st.sampled_from(BacklogKind), st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=12)
)
def test_the_reported_backlog_matches_the_last_delivered_check(
    kind: BacklogKind, checks: list[tuple[int, bool]]
) -> None:
    channel = BacklogChannel(kind)
    for number, (total, delivered) in enumerate(checks):
        count = make_backlog(total, str(number)) if total else EMPTY_BACKLOG
        channel.check(count, 5 * number, delivered=delivered)
    last = checks[-1][0] if checks else 0

    channel.check(make_backlog(last, "last") if last else EMPTY_BACKLOG, 5 * len(checks))

    assert (kind in channel.state.backlogs) is bool(last)


def test_a_message_that_a_worker_rejected_is_an_item() -> None:
    rejected = MessageRejected(queue="default", message_id="m-1", reason="no such task")
    operator = EventContext(origin="operator")

    item = rejected_message_item(an_event(rejected))

    assert item == BacklogItem(id="m-1", queue="default", reason="no such task", at=AT)
    assert rejected_message_item(an_event(rejected, context=operator)) is None
    assert rejected_message_item(an_event(STARTED)) is None
