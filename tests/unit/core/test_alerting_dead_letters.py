"""Dead letters are told when there are some, when new ones come, now and then, and when none is."""

import json
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.alerting import (
    COUNTED_LIMIT,
    NOTHING_TOLD,
    DeadCount,
    DeadKind,
    DeadNews,
    DeadNotice,
    Finding,
    NewDead,
    Notice,
    Told,
    ToldDead,
    ToldProblem,
    notice_of,
    told_after,
    told_from_json,
    told_to_json,
)
from longshore.core.health import CheckedTask, Health, HealthReport
from longshore.errors import UsageError
from tests.factories import NOON, TENANT

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
NOTHING_DEAD = DeadCount()


def dead(total: int, newest: str = "a", at: datetime = NOON, *, more: bool = False) -> DeadCount:
    kind = DeadKind(queue="default", category="crash", count=total)
    one = NewDead(id=newest, queue="default", at=at)
    return DeadCount(total=total, more=more, kinds=(kind,), newest=(one,))


def found(count: DeadCount | None, minutes: int = 0, tasks: HealthReport | None = None) -> Finding:
    return Finding(tenant=TENANT, at=NOON + minutes * MINUTE, tasks=tasks, dead=count)


class Channel:
    """Somebody who is told of dead letters, and remembers it as it is kept."""

    def __init__(self, cool_down: timedelta = HOUR) -> None:
        self.told = NOTHING_TOLD
        self.cool_down = cool_down

    def hears(
        self, count: DeadCount | None, minutes: int = 0, *, delivered: bool = True
    ) -> DeadNews | None:
        notice = notice_of(found(count, minutes), self.told, cool_down=self.cool_down)
        assert bool(notice) is (notice.dead is not None)
        if delivered:
            after = told_after(self.told, notice, cool_down=self.cool_down)
            self.told = told_from_json(told_to_json({"slack": after}))["slack"]
        return notice.dead.news if notice.dead else None


def test_where_nothing_is_dead_nothing_is_told() -> None:
    assert Channel().hears(NOTHING_DEAD) is None


def test_that_there_are_some_is_told_once_with_what_was_found() -> None:
    channel = Channel()
    count = dead(3)

    assert notice_of(found(count), NOTHING_TOLD, cool_down=HOUR).dead == DeadNotice(
        news=DeadNews.FIRST, found=count
    )
    assert channel.hears(count) is DeadNews.FIRST
    assert [channel.hears(count, minutes) for minutes in range(5, 60, 5)] == [None] * 11


@pytest.mark.parametrize(
    "later",
    [
        pytest.param(dead(4), id="more than before"),
        pytest.param(dead(3, "b", NOON + MINUTE), id="a newer one"),
        pytest.param(dead(2, "b", NOON + MINUTE), id="a newer one although others went"),
        pytest.param(dead(3, "b"), id="a newer one at the same moment"),
        pytest.param(dead(4, "z", NOON - HOUR), id="more by a clock that is behind"),
    ],
)
def test_new_ones_are_told_at_once_and_once(later: DeadCount) -> None:
    channel = Channel()
    channel.hears(dead(3))

    assert channel.hears(later, 5) is DeadNews.MORE
    assert channel.hears(later, 10) is None


@pytest.mark.parametrize("later", [dead(2), dead(1, "0"), dead(1, "z", NOON - HOUR)])
def test_that_there_are_fewer_is_no_news(later: DeadCount) -> None:
    channel = Channel()
    channel.hears(dead(3))

    assert channel.hears(later, 5) is None


def test_a_part_of_a_millisecond_makes_nothing_newer() -> None:
    channel = Channel()
    count = dead(1, at=NOON + timedelta(microseconds=1_999))

    assert [channel.hears(count, minutes) for minutes in (0, 5, 10)] == [DeadNews.FIRST, None, None]


def test_of_more_than_are_counted_a_newer_one_is_told_and_the_same_ones_are_not() -> None:
    channel = Channel()
    channel.hears(dead(COUNTED_LIMIT))

    assert channel.hears(dead(COUNTED_LIMIT, more=True), 5) is DeadNews.MORE
    assert channel.hears(dead(COUNTED_LIMIT, more=True), 10) is None
    newer = dead(COUNTED_LIMIT, "b", NOON + MINUTE, more=True)
    assert channel.hears(newer, 15) is DeadNews.MORE


def test_they_are_told_again_after_the_cool_down_and_then_not_before_another() -> None:
    channel = Channel()
    story = {minutes: channel.hears(dead(3), minutes) for minutes in range(0, 130, 5)}

    assert {minutes: news for minutes, news in story.items() if news} == {
        0: DeadNews.FIRST,
        60: DeadNews.STILL,
        120: DeadNews.STILL,
    }


def test_what_is_new_begins_another_cool_down() -> None:
    channel = Channel()
    channel.hears(dead(3))
    channel.hears(dead(4), 30)

    assert channel.hears(dead(4), 85) is None
    assert channel.hears(dead(4), 90) is DeadNews.STILL


def test_without_a_cool_down_they_are_told_at_every_check() -> None:
    channel = Channel(cool_down=timedelta(0))

    assert [channel.hears(dead(1)) for _ in range(3)] == [
        DeadNews.FIRST,
        DeadNews.STILL,
        DeadNews.STILL,
    ]


def test_a_clock_that_was_set_back_silences_nothing_for_longer_than_the_cool_down() -> None:
    channel = Channel()
    channel.hears(dead(3))

    assert channel.hears(dead(3), -1) is None
    assert channel.hears(dead(3), -24 * 60) is DeadNews.STILL


def test_that_none_is_left_is_told_once_and_then_all_begins_anew() -> None:
    channel = Channel()
    channel.hears(dead(3))

    assert channel.hears(NOTHING_DEAD, 5) is DeadNews.NONE_LEFT
    assert channel.told == NOTHING_TOLD
    assert channel.hears(NOTHING_DEAD, 10) is None
    assert channel.hears(dead(1), 15) is DeadNews.FIRST


def test_what_could_not_be_delivered_is_told_by_the_next_check() -> None:
    channel = Channel()

    assert channel.hears(dead(3), delivered=False) is DeadNews.FIRST
    assert channel.hears(dead(4), 5) is DeadNews.FIRST
    assert channel.hears(dead(5), 10, delivered=False) is DeadNews.MORE
    assert channel.hears(dead(5), 15) is DeadNews.MORE
    assert channel.hears(NOTHING_DEAD, 20, delivered=False) is DeadNews.NONE_LEFT
    assert channel.hears(NOTHING_DEAD, 25) is DeadNews.NONE_LEFT


def test_what_was_never_told_is_over_without_a_word() -> None:
    channel = Channel()
    channel.hears(dead(3), delivered=False)

    assert channel.hears(NOTHING_DEAD, 5) is None


def test_what_could_not_be_found_out_is_no_news_and_changes_nothing() -> None:
    channel = Channel()
    channel.hears(dead(3))

    assert channel.hears(None, 90) is None
    assert channel.hears(dead(3), 95) is DeadNews.STILL


def test_tasks_and_dead_letters_are_one_notice_and_neither_hides_the_other() -> None:
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

    notice = notice_of(found(dead(3), tasks=report), NOTHING_TOLD, cool_down=HOUR)
    told = told_after(NOTHING_TOLD, notice, cool_down=HOUR)
    only_tasks = notice_of(found(None, tasks=report), NOTHING_TOLD, cool_down=HOUR)
    only_dead = notice_of(found(dead(3)), NOTHING_TOLD, cool_down=HOUR)

    assert (notice.urgent, notice.summary) == ((stuck,), report.summary)
    assert notice.dead == DeadNotice(news=DeadNews.FIRST, found=dead(3))
    assert set(told.problems) == {"a"}
    assert told.dead == ToldDead(at_least=3, newest=dead(3).newest[0].place, at=NOON)
    assert only_tasks == replace(notice, dead=None)
    assert only_dead == Notice(tenant=TENANT, at=NOON, summary=None, dead=notice.dead)
    for one in (only_tasks, only_dead):
        assert one


moments = st.datetimes(
    min_value=datetime(2000, 1, 1),  # noqa: DTZ001 - hypothesis wants it so
    max_value=datetime(2100, 1, 1),  # noqa: DTZ001
    timezones=st.just(NOON.tzinfo),
).map(lambda moment: moment.replace(microsecond=0))
told_of_dead = st.builds(
    ToldDead,
    at_least=st.integers(1),
    newest=st.tuples(st.integers(), st.text()),
    at=moments,
)
PROBLEM = ToldProblem(attempt=1, health=Health.CRITICAL, at=NOON)
told = st.builds(Told, st.sampled_from([{}, {"a": PROBLEM}]), st.one_of(st.none(), told_of_dead))


@given(st.dictionaries(st.text(), told))
def test_what_was_told_survives_being_kept(channels: dict[str, Told]) -> None:
    assert told_from_json(told_to_json(channels)) == channels


def test_in_a_file_from_before_nothing_was_told_of_dead_letters() -> None:
    kept = '{"format":1,"channels":{"slack":{"a":{"attempt":1,"health":"critical","at":%d}}}}'
    at = int(NOON.timestamp() * 1000)

    assert told_from_json(kept % at) == {"slack": Told({"a": PROBLEM})}


def test_an_older_version_finds_what_was_told_of_tasks_where_it_always_was() -> None:
    last = ToldDead(at_least=3, newest=(1, "a"), at=NOON)

    kept = json.loads(
        told_to_json({"slack": Told({"a": PROBLEM}, last), "webhook": Told({}, last)})
    )

    assert kept["format"] == 1
    assert {name: set(tasks) for name, tasks in kept["channels"].items()} == {
        "slack": {"a"},
        "webhook": set(),
    }
    assert set(kept["deadLetters"]) == {"slack", "webhook"}


def test_a_channel_that_was_told_of_dead_letters_alone_is_found() -> None:
    kept = (
        '{"format":1,"channels":{},"deadLetters":'
        '{"slack":{"atLeast":3,"newestAt":1,"newestId":"a","at":%d}}}'
    )

    assert told_from_json(kept % int(NOON.timestamp() * 1000)) == {
        "slack": Told({}, ToldDead(at_least=3, newest=(1, "a"), at=NOON))
    }


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
def test_what_is_damaged_is_refused_and_not_half_read(kept: str) -> None:
    with pytest.raises(UsageError, match="what was told"):
        told_from_json(f'{{"format":1,"channels":{{}},"deadLetters":{kept}}}')


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=12))
def test_nobody_is_left_believing_what_is_not_so(story: list[tuple[int, bool]]) -> None:
    channel = Channel()
    for number, (total, delivered) in enumerate(story):
        count = dead(total, str(number)) if total else NOTHING_DEAD
        channel.hears(count, 5 * number, delivered=delivered)
    last = story[-1][0] if story else 0

    channel.hears(dead(last, "last") if last else NOTHING_DEAD, 5 * len(story))

    assert (channel.told.dead is not None) is bool(last)
