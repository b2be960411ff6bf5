"""What counts as telling people once too often, and what as not telling them."""

from datetime import timedelta

import pytest

from longshore.core.alerting import (
    NOTHING_TOLD,
    Notice,
    Recovered,
    Told,
    told_after,
    told_key,
    told_to_json,
)
from longshore.core.events.types import HealthSummary
from longshore.core.health import CheckedTask, Health
from longshore.core.piles import Pile, PileItem, PileNews, PileNotice
from longshore.testing.simulation.world import START, TENANT, World
from tests.simulation.stage import calm, simulated

HOUR = timedelta(hours=1)
KEY = told_key(TENANT)
SUMMARY = HealthSummary(total_processing=1, healthy=0, warning=0, critical=1, overtime=0)


def sick(health: Health = Health.CRITICAL, *, attempt: int = 1, after: int = 0) -> Notice:
    task = CheckedTask(
        task_id="t",
        attempt=attempt,
        health=health,
        elapsed=HOUR,
        silence=HOUR,
        last_event_type="Task Heartbeat",
        worker_id="w",
    )
    return Notice(
        tenant=TENANT, at=START + timedelta(seconds=after), summary=SUMMARY, urgent=(task,)
    )


def well() -> Notice:
    gone = Recovered(task_id="t", attempt=1, was=Health.CRITICAL, now=None)
    return Notice(tenant=TENANT, at=START, summary=SUMMARY, recovered=(gone,))


def dead(count: int) -> Notice:
    newest = (PileItem(id=f"d{count}", queue="default", why="crash", at=START),) if count else ()
    news = PileNews.FIRST if count else PileNews.NONE_LEFT
    found = PileNotice(news=news, found=Pile(total=count, newest=newest))
    return Notice(tenant=TENANT, at=START, summary=None, dead=found)


class Room:
    """One channel, and the store in which it is kept what it has heard."""

    def __init__(self) -> None:
        self.world: World = calm()
        self.ears = self.world.ears
        self.told: Told = NOTHING_TOLD

    def told_by(self, who: str, notice: Notice) -> None:
        self.ears.say("room", notice, who)
        self.ears.taken("room", notice, who)
        self.told = told_after(self.told, notice, cool_down=HOUR)

    def kept(self) -> None:
        self.ears.written(KEY, told_to_json({"room": self.told}).encode())

    @property
    def complaints(self) -> list[str]:
        return [breach.text for breach in self.world.breaches]


@simulated
async def test_nobody_tells_the_same_twice() -> None:
    room = Room()
    room.told_by("a", sick())
    assert room.complaints == []
    room.told_by("a", sick(after=30))
    assert len(room.complaints) == 1


@pytest.mark.parametrize(
    "news",
    [
        sick(attempt=2, after=30),
        sick(Health.OVERTIME, after=30),
        sick(after=3_600),
    ],
)
def test_what_is_news_may_be_told(news: Notice) -> None:
    @simulated
    async def play() -> None:
        room = Room()
        room.told_by("a", sick())
        room.kept()
        room.told_by("a", news)
        assert room.complaints == []

    play()


@simulated
async def test_whoever_could_know_that_it_was_told_does_not_tell_it_again() -> None:
    room = Room()
    room.told_by("a", sick())
    room.kept()
    room.ears.read(KEY, "b")
    room.told_by("b", sick(after=30))
    assert len(room.complaints) == 1


@simulated
async def test_whoever_could_not_know_is_excused() -> None:
    for could_read, was_kept in ((True, False), (False, True)):
        room = Room()
        room.told_by("a", sick())
        if was_kept:
            room.kept()
        if could_read:
            room.ears.read(KEY, "b")
        room.told_by("b", sick(after=30))
        assert room.complaints == []


@simulated
async def test_what_was_written_over_by_something_older_may_be_told_again() -> None:
    room = Room()
    room.told_by("a", sick())
    room.kept()
    room.ears.written(KEY, None)
    room.ears.written_late(KEY)
    room.told_by("a", sick(after=30))
    assert room.complaints == []


@simulated
async def test_what_was_told_is_kept_before_the_next_check() -> None:
    room = Room()
    room.told_by("a", sick())
    room.ears.check_begins("b")
    assert room.complaints == []
    room.ears.check_begins("a")
    assert room.complaints == ["a has told room of it and does not keep that"]


@simulated
async def test_trouble_with_the_store_excuses_that_it_is_not_kept() -> None:
    room = Room()
    room.told_by("a", sick())
    room.ears.not_written(KEY, "a")
    room.ears.check_begins("a")
    assert room.complaints == []


@simulated
async def test_nobody_is_told_that_something_is_over_of_which_nothing_was_said() -> None:
    room = Room()
    room.ears.say("room", well(), "a")
    assert len(room.complaints) == 1


@simulated
async def test_people_are_worried_until_they_hear_that_it_is_over() -> None:
    room = Room()
    room.told_by("a", sick())
    assert room.ears.unaware(dead_letters=False) == []  # nobody after this one could know
    room.kept()
    assert room.ears.unaware(dead_letters=False) == ["room of t"]
    room.told_by("a", well())
    room.kept()
    assert room.ears.unaware(dead_letters=False) == []
    room.told_by("a", well())
    assert len(room.complaints) == 1


@simulated
async def test_everybody_has_to_hear_of_dead_letters_and_of_their_end() -> None:
    room = Room()
    assert room.ears.unaware(dead_letters=True) == ["pager of dead letters", "room of dead letters"]
    room.told_by("a", dead(1))
    assert room.ears.unaware(dead_letters=True) == ["pager of dead letters"]
    assert room.ears.unaware(dead_letters=False) == []  # nobody after this one could know
    room.kept()
    assert room.ears.unaware(dead_letters=False) == ["room of dead letters"]
    room.told_by("a", dead(0))
    assert room.ears.unaware(dead_letters=False) == []


@simulated
async def test_the_same_dead_letters_are_told_once_and_more_of_them_again() -> None:
    room = Room()
    room.told_by("a", dead(1))
    room.kept()
    room.ears.check_begins("a")
    room.told_by("a", dead(2))
    assert room.complaints == []
    room.told_by("a", dead(2))
    assert len(room.complaints) == 1
