"""Dead letters and parked tasks are told when there are some, when new ones come, now and then, and
when none is left."""

import json
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.alerting import (
    NOTHING_TOLD,
    Finding,
    Notice,
    Told,
    ToldProblem,
    notice_of,
    told_after,
    told_from_json,
    told_to_json,
)
from longshore.core.health import CheckedTask, Health, HealthReport
from longshore.core.piles import (
    COUNTED_LIMIT,
    NOTHING_LIES,
    Pile,
    PileItem,
    PileKind,
    PileNews,
    PileNotice,
    ToldPile,
)
from longshore.errors import UsageError
from tests.factories import NOON, TENANT

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
SORTS = ["dead", "parked"]


def pile(total: int, newest: str = "a", at: datetime = NOON, *, more: bool = False) -> Pile:
    kind = PileKind(queue="default", why="crash", count=total)
    one = PileItem(id=newest, queue="default", why="crash", at=at)
    return Pile(total=total, more=more, kinds=(kind,), newest=(one,))


def found(
    sort: str, count: Pile | None, minutes: int = 0, tasks: HealthReport | None = None
) -> Finding:
    fields: dict[str, Any] = {sort: count}
    return Finding(tenant=TENANT, at=NOON + minutes * MINUTE, tasks=tasks, **fields)


class Channel:
    """Somebody who is told of one sort of pile, and remembers it as it is kept."""

    def __init__(self, sort: str, cool_down: timedelta = HOUR) -> None:
        self.sort = sort
        self.told = NOTHING_TOLD
        self.cool_down = cool_down

    def hears(
        self, count: Pile | None, minutes: int = 0, *, delivered: bool = True
    ) -> PileNews | None:
        notice = notice_of(found(self.sort, count, minutes), self.told, cool_down=self.cool_down)
        heard: PileNotice | None = getattr(notice, self.sort)
        assert bool(notice) is (heard is not None)
        if delivered:
            after = told_after(self.told, notice, cool_down=self.cool_down)
            self.told = told_from_json(told_to_json({"slack": after}))["slack"]
        return heard.news if heard else None


@pytest.fixture(params=SORTS)
def channel(request: pytest.FixtureRequest) -> Channel:
    return Channel(request.param)


def test_where_nothing_lies_nothing_is_told(channel: Channel) -> None:
    assert channel.hears(NOTHING_LIES) is None


def test_that_there_are_some_is_told_once_with_what_was_found(channel: Channel) -> None:
    count = pile(3)

    first = notice_of(found(channel.sort, count), NOTHING_TOLD, cool_down=HOUR)

    assert getattr(first, channel.sort) == PileNotice(news=PileNews.FIRST, found=count)
    assert channel.hears(count) is PileNews.FIRST
    assert [channel.hears(count, minutes) for minutes in range(5, 60, 5)] == [None] * 11


@pytest.mark.parametrize(
    "later",
    [
        pytest.param(pile(4), id="more than before"),
        pytest.param(pile(3, "b", NOON + MINUTE), id="a newer one"),
        pytest.param(pile(2, "b", NOON + MINUTE), id="a newer one although others went"),
        pytest.param(pile(3, "b"), id="a newer one at the same moment"),
        pytest.param(pile(4, "z", NOON - HOUR), id="more by a clock that is behind"),
    ],
)
def test_new_ones_are_told_at_once_and_once(channel: Channel, later: Pile) -> None:
    channel.hears(pile(3))

    assert channel.hears(later, 5) is PileNews.MORE
    assert channel.hears(later, 10) is None


@pytest.mark.parametrize("later", [pile(2), pile(1, "0"), pile(1, "z", NOON - HOUR)])
def test_that_there_are_fewer_is_no_news(channel: Channel, later: Pile) -> None:
    channel.hears(pile(3))

    assert channel.hears(later, 5) is None


def test_a_part_of_a_millisecond_makes_nothing_newer(channel: Channel) -> None:
    count = pile(1, at=NOON + timedelta(microseconds=1_999))

    assert [channel.hears(count, minutes) for minutes in (0, 5, 10)] == [PileNews.FIRST, None, None]


def test_of_more_than_are_counted_a_newer_one_is_told_and_the_same_ones_are_not(
    channel: Channel,
) -> None:
    channel.hears(pile(COUNTED_LIMIT))

    assert channel.hears(pile(COUNTED_LIMIT, more=True), 5) is PileNews.MORE
    assert channel.hears(pile(COUNTED_LIMIT, more=True), 10) is None
    newer = pile(COUNTED_LIMIT, "b", NOON + MINUTE, more=True)
    assert channel.hears(newer, 15) is PileNews.MORE


def test_they_are_told_again_after_the_cool_down_and_then_not_before_another(
    channel: Channel,
) -> None:
    story = {minutes: channel.hears(pile(3), minutes) for minutes in range(0, 130, 5)}

    assert {minutes: news for minutes, news in story.items() if news} == {
        0: PileNews.FIRST,
        60: PileNews.STILL,
        120: PileNews.STILL,
    }


def test_what_is_new_begins_another_cool_down(channel: Channel) -> None:
    channel.hears(pile(3))
    channel.hears(pile(4), 30)

    assert channel.hears(pile(4), 85) is None
    assert channel.hears(pile(4), 90) is PileNews.STILL


def test_without_a_cool_down_they_are_told_at_every_check(channel: Channel) -> None:
    channel.cool_down = timedelta(0)

    assert [channel.hears(pile(1)) for _ in range(3)] == [
        PileNews.FIRST,
        PileNews.STILL,
        PileNews.STILL,
    ]


def test_a_clock_that_was_set_back_silences_nothing_for_longer_than_the_cool_down(
    channel: Channel,
) -> None:
    channel.hears(pile(3))

    assert channel.hears(pile(3), -1) is None
    assert channel.hears(pile(3), -24 * 60) is PileNews.STILL


def test_that_none_is_left_is_told_once_and_then_all_begins_anew(channel: Channel) -> None:
    channel.hears(pile(3))

    assert channel.hears(NOTHING_LIES, 5) is PileNews.NONE_LEFT
    assert channel.told == NOTHING_TOLD
    assert channel.hears(NOTHING_LIES, 10) is None
    assert channel.hears(pile(1), 15) is PileNews.FIRST


def test_what_could_not_be_delivered_is_told_by_the_next_check(channel: Channel) -> None:
    assert channel.hears(pile(3), delivered=False) is PileNews.FIRST
    assert channel.hears(pile(4), 5) is PileNews.FIRST
    assert channel.hears(pile(5), 10, delivered=False) is PileNews.MORE
    assert channel.hears(pile(5), 15) is PileNews.MORE
    assert channel.hears(NOTHING_LIES, 20, delivered=False) is PileNews.NONE_LEFT
    assert channel.hears(NOTHING_LIES, 25) is PileNews.NONE_LEFT


def test_what_was_never_told_is_over_without_a_word(channel: Channel) -> None:
    channel.hears(pile(3), delivered=False)

    assert channel.hears(NOTHING_LIES, 5) is None


def test_what_could_not_be_found_out_is_no_news_and_changes_nothing(channel: Channel) -> None:
    channel.hears(pile(3))

    assert channel.hears(None, 90) is None
    assert channel.hears(pile(3), 95) is PileNews.STILL


@pytest.mark.parametrize("sort", SORTS)
def test_tasks_and_a_pile_are_one_notice_and_neither_hides_the_other(sort: str) -> None:
    stuck = CheckedTask(
        task_id="a",
        attempt=1,
        health=Health.CRITICAL,
        elapsed=HOUR,
        silence=HOUR,
        last_event_type="Task Heartbeat",
        worker_id="w",
    )
    report = HealthReport(tenant=TENANT, at=NOON, tasks=(stuck,))

    notice = notice_of(found(sort, pile(3), tasks=report), NOTHING_TOLD, cool_down=HOUR)
    told = told_after(NOTHING_TOLD, notice, cool_down=HOUR)
    only_tasks = notice_of(found(sort, None, tasks=report), NOTHING_TOLD, cool_down=HOUR)
    only_pile = notice_of(found(sort, pile(3)), NOTHING_TOLD, cool_down=HOUR)

    first = PileNotice(news=PileNews.FIRST, found=pile(3))
    assert (notice.urgent, notice.summary) == ((stuck,), report.summary)
    assert getattr(notice, sort) == first
    assert set(told.problems) == {"a"}
    last = ToldPile(at_least=3, newest=pile(3).newest[0].place, at=NOON)
    assert told == replace(Told(told.problems), **{sort: last})
    assert only_tasks == replace(notice, **{sort: None})
    assert only_pile == replace(Notice(tenant=TENANT, at=NOON, summary=None), **{sort: first})
    for one in (only_tasks, only_pile):
        assert one


def test_dead_letters_and_parked_tasks_are_told_each_for_itself() -> None:
    before = Told({}, dead=ToldPile(at_least=3, newest=pile(3).newest[0].place, at=NOON))
    later = NOON + 5 * MINUTE
    both = Finding(tenant=TENANT, at=later, dead=NOTHING_LIES, parked=pile(2))

    notice = notice_of(both, before, cool_down=HOUR)
    after = told_after(before, notice, cool_down=HOUR)

    assert notice.dead == PileNotice(news=PileNews.NONE_LEFT, found=NOTHING_LIES)
    assert notice.parked == PileNotice(news=PileNews.FIRST, found=pile(2))
    parked = ToldPile(at_least=2, newest=pile(2).newest[0].place, at=later)
    assert after == Told({}, parked=parked)
    # What could not be found out of one is no news of the other either.
    unknown = notice_of(replace(both, dead=None), before, cool_down=HOUR)
    assert told_after(before, unknown, cool_down=HOUR) == replace(before, parked=parked)


moments = st.datetimes(
    min_value=datetime(2000, 1, 1),  # noqa: DTZ001 - hypothesis wants it so
    max_value=datetime(2100, 1, 1),  # noqa: DTZ001
    timezones=st.just(NOON.tzinfo),
).map(lambda moment: moment.replace(microsecond=0))
told_piles = st.builds(
    ToldPile,
    at_least=st.integers(1),
    newest=st.tuples(st.integers(), st.text()),
    at=moments,
)
PROBLEM = ToldProblem(attempt=1, health=Health.CRITICAL, at=NOON)
maybe = st.one_of(st.none(), told_piles)
told = st.builds(Told, st.sampled_from([{}, {"a": PROBLEM}]), maybe, maybe)


@given(st.dictionaries(st.text(), told))
def test_what_was_told_survives_being_kept(channels: dict[str, Told]) -> None:
    assert told_from_json(told_to_json(channels)) == channels


def test_in_a_file_from_before_there_were_any_nothing_was_told_of_piles() -> None:
    kept = '{"format":1,"channels":{"slack":{"a":{"attempt":1,"health":"critical","at":%d}}}}'
    at = int(NOON.timestamp() * 1000)

    assert told_from_json(kept % at) == {"slack": Told({"a": PROBLEM})}


def test_an_older_version_finds_what_was_told_where_it_always_was() -> None:
    last = ToldPile(at_least=3, newest=(1, "a"), at=NOON)

    kept = json.loads(
        told_to_json(
            {
                "slack": Told({"a": PROBLEM}, dead=last),
                "webhook": Told({}, dead=last, parked=last),
                "other": Told({}, parked=last),
            }
        )
    )

    assert kept["format"] == 1
    assert {name: set(tasks) for name, tasks in kept["channels"].items()} == {
        "slack": {"a"},
        "webhook": set(),
        "other": set(),
    }
    assert set(kept["deadLetters"]) == {"slack", "webhook"}
    assert set(kept["parkedTasks"]) == {"webhook", "other"}


NAMES = {"dead": "deadLetters", "parked": "parkedTasks"}


@pytest.mark.parametrize("sort", SORTS)
def test_a_channel_that_was_told_of_one_pile_alone_is_found(sort: str) -> None:
    kept = (
        '{"format":1,"channels":{},"%s":'
        '{"slack":{"atLeast":3,"newestAt":1,"newestId":"a","at":%d}}}'
    )

    assert told_from_json(kept % (NAMES[sort], int(NOON.timestamp() * 1000))) == {
        "slack": replace(NOTHING_TOLD, **{sort: ToldPile(at_least=3, newest=(1, "a"), at=NOON)})
    }


@pytest.mark.parametrize("name", NAMES.values())
@pytest.mark.parametrize(
    "kept",
    [
        "null",
        "[]",
        '{"slack":null}',
        '{"slack":{}}',
        '{"slack":{"atLeast":"3","newestAt":1,"newestId":"a","at":0}}',
        '{"slack":{"atLeast":3,"newestAt":null,"newestId":"a","at":0}}',
        '{"slack":{"atLeast":3,"newestAt":1,"newestId":1,"at":0}}',
        '{"slack":{"atLeast":3,"newestAt":1,"newestId":"a","at":1e99}}',
    ],
)
def test_what_is_damaged_is_refused_and_not_half_read(name: str, kept: str) -> None:
    with pytest.raises(UsageError, match="what was told"):
        told_from_json(f'{{"format":1,"channels":{{}},"{name}":{kept}}}')


@given(st.sampled_from(SORTS), st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=12))
def test_nobody_is_left_believing_what_is_not_so(sort: str, story: list[tuple[int, bool]]) -> None:
    channel = Channel(sort)
    for number, (total, delivered) in enumerate(story):
        count = pile(total, str(number)) if total else NOTHING_LIES
        channel.hears(count, 5 * number, delivered=delivered)
    last = story[-1][0] if story else 0

    channel.hears(pile(last, "last") if last else NOTHING_LIES, 5 * len(story))

    assert (getattr(channel.told, sort) is not None) is bool(last)
