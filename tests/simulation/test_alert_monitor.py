"""The alert monitor notices repeated alerts and missing ones."""

from datetime import timedelta

import pytest

from longshore.core.alerts import (
    EMPTY_CHANNEL_STATE,
    Backlog,
    BacklogChange,
    BacklogItem,
    BacklogKind,
    BacklogNotice,
    ChannelState,
    HealthNotice,
    RecoveredTask,
    channel_state_key,
    state_after,
)
from longshore.core.events.event import Event, EventContext, NewEvent, next_event
from longshore.core.events.types import HealthSummary, MessageRejected
from longshore.core.health import CheckedTask, Health
from longshore.services.health import channel_states_to_json
from tests.simulation.harness import calm_simulation, simulated
from verification.simulation.simulation import START, TENANT, Simulation

HOUR = timedelta(hours=1)
KEY = channel_state_key(TENANT)
SUMMARY = HealthSummary(total_processing=1, healthy=0, warning=0, critical=1, overtime=0)


def sick(health: Health = Health.CRITICAL, *, attempt: int = 1, after: int = 0) -> HealthNotice:
    task = CheckedTask(
        task_id="t",
        attempt=attempt,
        health=health,
        elapsed=HOUR,
        time_since_last_event=HOUR,
        last_event_type="Task Heartbeat",
        worker_id="w",
    )
    return HealthNotice(
        tenant=TENANT, at=START + timedelta(seconds=after), summary=SUMMARY, urgent=(task,)
    )


def well() -> HealthNotice:
    gone = RecoveredTask(task_id="t", attempt=1, previous=Health.CRITICAL, current=None)
    return HealthNotice(tenant=TENANT, at=START, summary=SUMMARY, recovered=(gone,))


def dead(count: int) -> HealthNotice:
    newest = (
        (BacklogItem(id=f"d{count}", queue="default", reason="crash", at=START),) if count else ()
    )
    change = BacklogChange.FIRST if count else BacklogChange.NONE_LEFT
    notice = BacklogNotice(change=change, backlog=Backlog(total=count, newest=newest))
    backlogs = {BacklogKind.DEAD_LETTERS: notice}
    return HealthNotice(tenant=TENANT, at=START, summary=None, backlogs=backlogs)


def rejected(name: str, origin: str = "worker") -> Event:
    body = MessageRejected(queue="default", message_id=name, reason="not JSON")
    context = EventContext(origin=origin)
    new = NewEvent(
        tenant=TENANT, app="app", entity_id="default", body=body, context=context, now=START
    )
    return next_event(new, 0, None)


class ChannelHarness:
    """A channel and its stored state."""

    def __init__(self) -> None:
        self.simulation: Simulation = calm_simulation()
        self.alert_monitor = self.simulation.alert_monitor
        self.state: ChannelState = EMPTY_CHANNEL_STATE

    def notify(self, who: str, notice: HealthNotice) -> None:
        self.alert_monitor.on_sent("room", notice, who)
        self.alert_monitor.on_accepted("room", notice, who)
        self.state = state_after(self.state, notice, cool_down=HOUR)

    def store_state(self) -> None:
        self.alert_monitor.on_stored(KEY, channel_states_to_json({"room": self.state}))

    @property
    def violations(self) -> list[str]:
        return [violation.text for violation in self.simulation.violations]


@simulated
async def test_an_alert_that_is_sent_twice_is_a_violation() -> None:
    harness = ChannelHarness()
    harness.notify("a", sick())
    assert harness.violations == []
    harness.notify("a", sick(after=30))
    assert len(harness.violations) == 1


@pytest.mark.parametrize(
    "notice",
    [
        sick(attempt=2, after=30),
        sick(Health.OVERTIME, after=30),
        sick(after=3_600),
    ],
)
def test_a_new_problem_may_be_sent(notice: HealthNotice) -> None:
    @simulated
    async def run_scenario() -> None:
        harness = ChannelHarness()
        harness.notify("a", sick())
        harness.store_state()
        harness.notify("a", notice)
        assert harness.violations == []

    run_scenario()


@simulated
async def test_a_process_that_has_read_the_state_may_not_repeat_an_alert() -> None:
    harness = ChannelHarness()
    harness.notify("a", sick())
    harness.store_state()
    harness.alert_monitor.on_read(KEY, "b")
    harness.notify("b", sick(after=30))
    assert len(harness.violations) == 1


@simulated
async def test_a_process_that_could_not_know_of_an_alert_is_excused() -> None:
    for could_read, was_stored in ((True, False), (False, True)):
        harness = ChannelHarness()
        harness.notify("a", sick())
        if was_stored:
            harness.store_state()
        if could_read:
            harness.alert_monitor.on_read(KEY, "b")
        harness.notify("b", sick(after=30))
        assert harness.violations == []


@simulated
async def test_an_alert_whose_state_was_overwritten_by_a_late_write_may_be_repeated() -> None:
    harness = ChannelHarness()
    harness.notify("a", sick())
    harness.store_state()
    harness.alert_monitor.on_stored(KEY, None)
    harness.alert_monitor.on_stored_late(KEY)
    harness.notify("a", sick(after=30))
    assert harness.violations == []


@simulated
async def test_a_process_that_read_the_older_state_is_excused_until_it_reads_again() -> None:
    harness = ChannelHarness()
    harness.notify("a", sick())
    harness.alert_monitor.on_stored(KEY, None)
    harness.alert_monitor.on_stored_late(KEY)
    harness.alert_monitor.on_read(KEY, "b")
    harness.store_state()
    harness.alert_monitor.on_sent("room", sick(after=30), "b")
    assert harness.violations == []
    harness.alert_monitor.on_read(KEY, "b")
    harness.alert_monitor.on_sent("room", sick(after=30), "b")
    assert len(harness.violations) == 1


@simulated
async def test_an_accepted_alert_must_be_stored_before_the_next_check() -> None:
    harness = ChannelHarness()
    harness.notify("a", sick())
    harness.alert_monitor.on_check_started("b")
    assert harness.violations == []
    harness.alert_monitor.on_check_started("a")
    assert harness.violations == ["a has alerted room and did not store that"]


@simulated
async def test_a_failed_write_excuses_an_alert_that_is_not_stored() -> None:
    harness = ChannelHarness()
    harness.notify("a", sick())
    harness.alert_monitor.on_store_failed(KEY, "a")
    harness.alert_monitor.on_check_started("a")
    assert harness.violations == []


@simulated
async def test_resolving_an_alert_that_was_never_sent_is_a_violation() -> None:
    harness = ChannelHarness()
    harness.alert_monitor.on_sent("room", well(), "a")
    assert len(harness.violations) == 1


@simulated
async def test_a_stored_alert_is_open_until_it_is_resolved() -> None:
    harness = ChannelHarness()
    harness.notify("a", sick())
    assert (
        harness.alert_monitor.uninformed_channels(dead_letters=False) == []
    )  # no other process could know
    harness.store_state()
    assert harness.alert_monitor.uninformed_channels(dead_letters=False) == ["room of t"]
    harness.notify("a", well())
    harness.store_state()
    assert harness.alert_monitor.uninformed_channels(dead_letters=False) == []
    harness.notify("a", well())
    assert len(harness.violations) == 1


@simulated
async def test_every_channel_must_be_informed_about_each_rejected_message() -> None:
    harness = ChannelHarness()
    events = [rejected("m1"), rejected("m1"), rejected("m2", origin="operator")]

    def uninformed() -> list[str]:
        return harness.alert_monitor.uninformed_channels(dead_letters=False, rejections=events)

    item = BacklogItem(id="m1", queue="default", reason="not JSON", at=START)
    backlog = Backlog(total=1, newest=(item,))
    notice = BacklogNotice(change=BacklogChange.FIRST, backlog=backlog)
    backlogs = {BacklogKind.REJECTED_MESSAGES: notice}
    assert uninformed() == ["pager of rejected messages", "room of rejected messages"]
    harness.notify("a", HealthNotice(tenant=TENANT, at=START, summary=None, backlogs=backlogs))
    assert uninformed() == ["pager of rejected messages"]
    events.append(rejected("m3"))
    assert uninformed() == ["pager of rejected messages", "room of rejected messages"]


@simulated
async def test_every_channel_must_be_informed_about_dead_letters_and_their_end() -> None:
    harness = ChannelHarness()
    assert harness.alert_monitor.uninformed_channels(dead_letters=True) == [
        "pager of dead letters",
        "room of dead letters",
    ]
    harness.notify("a", dead(1))
    assert harness.alert_monitor.uninformed_channels(dead_letters=True) == ["pager of dead letters"]
    assert (
        harness.alert_monitor.uninformed_channels(dead_letters=False) == []
    )  # no other process could know
    harness.store_state()
    assert harness.alert_monitor.uninformed_channels(dead_letters=False) == ["room of dead letters"]
    harness.notify("a", dead(0))
    assert harness.alert_monitor.uninformed_channels(dead_letters=False) == []


@simulated
async def test_more_dead_letters_may_be_reported_and_the_same_ones_may_not() -> None:
    harness = ChannelHarness()
    harness.notify("a", dead(1))
    harness.store_state()
    harness.alert_monitor.on_check_started("a")
    harness.notify("a", dead(2))
    assert harness.violations == []
    harness.notify("a", dead(2))
    assert len(harness.violations) == 1
