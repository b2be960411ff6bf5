"""What counts as telling people once too often, and what as not telling them."""

from datetime import timedelta

import pytest

from longshore.core.alerts import (
    EMPTY_CHANNEL_STATE,
    Backlog,
    BacklogChange,
    BacklogItem,
    BacklogNotice,
    ChannelState,
    HealthNotice,
    RecoveredTask,
    channel_state_key,
    state_after,
)
from longshore.core.events.types import HealthSummary
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
        silence=HOUR,
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
    news = BacklogChange.FIRST if count else BacklogChange.NONE_LEFT
    found = BacklogNotice(change=news, backlog=Backlog(total=count, newest=newest))
    return HealthNotice(tenant=TENANT, at=START, summary=None, dead_letters=found)


class ChannelHarness:
    """One channel, and the store in which it is kept what it has heard."""

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
        return [breach.text for breach in self.simulation.violations]


@simulated
async def test_nobody_tells_the_same_twice() -> None:
    room = ChannelHarness()
    room.notify("a", sick())
    assert room.violations == []
    room.notify("a", sick(after=30))
    assert len(room.violations) == 1


@pytest.mark.parametrize(
    "news",
    [
        sick(attempt=2, after=30),
        sick(Health.OVERTIME, after=30),
        sick(after=3_600),
    ],
)
def test_what_is_news_may_be_told(news: HealthNotice) -> None:
    @simulated
    async def play() -> None:
        room = ChannelHarness()
        room.notify("a", sick())
        room.store_state()
        room.notify("a", news)
        assert room.violations == []

    play()


@simulated
async def test_whoever_could_know_that_it_was_told_does_not_tell_it_again() -> None:
    room = ChannelHarness()
    room.notify("a", sick())
    room.store_state()
    room.alert_monitor.on_read(KEY, "b")
    room.notify("b", sick(after=30))
    assert len(room.violations) == 1


@simulated
async def test_whoever_could_not_know_is_excused() -> None:
    for could_read, was_kept in ((True, False), (False, True)):
        room = ChannelHarness()
        room.notify("a", sick())
        if was_kept:
            room.store_state()
        if could_read:
            room.alert_monitor.on_read(KEY, "b")
        room.notify("b", sick(after=30))
        assert room.violations == []


@simulated
async def test_what_was_written_over_by_something_older_may_be_told_again() -> None:
    room = ChannelHarness()
    room.notify("a", sick())
    room.store_state()
    room.alert_monitor.on_stored(KEY, None)
    room.alert_monitor.on_stored_late(KEY)
    room.notify("a", sick(after=30))
    assert room.violations == []


@simulated
async def test_what_was_told_is_kept_before_the_next_check() -> None:
    room = ChannelHarness()
    room.notify("a", sick())
    room.alert_monitor.on_check_started("b")
    assert room.violations == []
    room.alert_monitor.on_check_started("a")
    assert room.violations == ["a has told room of it and does not keep that"]


@simulated
async def test_trouble_with_the_store_excuses_that_it_is_not_kept() -> None:
    room = ChannelHarness()
    room.notify("a", sick())
    room.alert_monitor.on_store_failed(KEY, "a")
    room.alert_monitor.on_check_started("a")
    assert room.violations == []


@simulated
async def test_nobody_is_told_that_something_is_over_of_which_nothing_was_said() -> None:
    room = ChannelHarness()
    room.alert_monitor.on_sent("room", well(), "a")
    assert len(room.violations) == 1


@simulated
async def test_people_are_worried_until_they_hear_that_it_is_over() -> None:
    room = ChannelHarness()
    room.notify("a", sick())
    assert (
        room.alert_monitor.uninformed_channels(dead_letters=False) == []
    )  # nobody after this one could know
    room.store_state()
    assert room.alert_monitor.uninformed_channels(dead_letters=False) == ["room of t"]
    room.notify("a", well())
    room.store_state()
    assert room.alert_monitor.uninformed_channels(dead_letters=False) == []
    room.notify("a", well())
    assert len(room.violations) == 1


@simulated
async def test_everybody_has_to_hear_of_dead_letters_and_of_their_end() -> None:
    room = ChannelHarness()
    assert room.alert_monitor.uninformed_channels(dead_letters=True) == [
        "pager of dead letters",
        "room of dead letters",
    ]
    room.notify("a", dead(1))
    assert room.alert_monitor.uninformed_channels(dead_letters=True) == ["pager of dead letters"]
    assert (
        room.alert_monitor.uninformed_channels(dead_letters=False) == []
    )  # nobody after this one could know
    room.store_state()
    assert room.alert_monitor.uninformed_channels(dead_letters=False) == ["room of dead letters"]
    room.notify("a", dead(0))
    assert room.alert_monitor.uninformed_channels(dead_letters=False) == []


@simulated
async def test_the_same_dead_letters_are_told_once_and_more_of_them_again() -> None:
    room = ChannelHarness()
    room.notify("a", dead(1))
    room.store_state()
    room.alert_monitor.on_check_started("a")
    room.notify("a", dead(2))
    assert room.violations == []
    room.notify("a", dead(2))
    assert len(room.violations) == 1
