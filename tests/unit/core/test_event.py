"""An event's envelope: its name, entity, id and time."""

from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from longshore.core.events.event import TICK, Event, EventContext, NewEvent, next_event, next_moment
from longshore.core.events.types import EntityType, MessageRejected, TaskApproved

NOON = datetime(2026, 1, 3, 12, 0, tzinfo=UTC)
A_DAY_US = 24 * 60 * 60 * 1_000_000
moments = st.integers(-A_DAY_US, A_DAY_US).map(lambda us: NOON + timedelta(microseconds=us))


def an_event(*, entity_id: str = "job-a_b", tenant: str = "acme", sequence: int = 1) -> Event:
    return Event(
        entity_type=EntityType.TASK,
        entity_id=entity_id,
        tenant=tenant,
        app="shop",
        sequence=sequence,
        at=NOON,
        body=TaskApproved(task_id=entity_id, job_id="job-a", by="ann"),
    )


def test_the_type_is_the_bodys_name_on_the_wire() -> None:
    assert an_event().type == "Task Approved"


def test_the_entity_has_its_type_before_it() -> None:
    rejected = MessageRejected(queue="default", message_id="m-1", reason="no JSON")
    event = Event(
        entity_type=EntityType.QUEUE,
        entity_id="default",
        tenant="acme",
        app="shop",
        sequence=1,
        at=NOON,
        body=rejected,
    )

    assert event.entity == "QUEUE#default"


def test_an_event_without_a_context_comes_from_the_system() -> None:
    assert an_event().context == EventContext(origin="system", source="system", worker_id=None)


def test_the_id_has_the_form_of_a_uuid_and_never_changes() -> None:
    assert an_event().id == "47f8e2d6-9158-c428-f770-b81b83015ebb"


def test_the_id_differs_by_tenant_entity_and_sequence() -> None:
    events = [an_event(), an_event(tenant="other"), an_event(entity_id="x"), an_event(sequence=2)]

    assert len({event.id for event in events}) == len(events)


def test_the_next_event_follows_the_last_one_of_its_entity() -> None:
    body = TaskApproved(task_id="job-a_b", job_id="job-a", by="ann")
    context = EventContext(origin="operator")
    new = NewEvent(
        tenant="acme", app="shop", entity_id="job-a_b", body=body, context=context, now=NOON
    )

    event = next_event(new, 7, NOON)

    assert (event.entity, event.sequence, event.at) == ("TASK#job-a_b", 8, NOON + TICK)
    assert (event.tenant, event.app, event.body) == ("acme", "shop", body)
    assert event.context == context


def test_the_first_event_happens_now_in_whole_milliseconds() -> None:
    now = NOON.replace(microsecond=123_999)

    assert next_moment(now, None) == NOON.replace(microsecond=123_000)


def test_an_event_in_the_millisecond_of_the_one_before_happens_a_tick_later() -> None:
    now = NOON.replace(microsecond=999)

    assert next_moment(now, NOON) == NOON + TICK


def test_a_clock_that_went_back_does_not_turn_the_history_round() -> None:
    assert next_moment(NOON - timedelta(hours=1), NOON) == NOON + timedelta(milliseconds=1)


def test_a_later_moment_in_any_time_zone_is_used() -> None:
    later = (NOON + timedelta(seconds=1)).astimezone(timezone(timedelta(hours=5)))

    assert next_moment(later, NOON) == NOON + timedelta(seconds=1)


@given(st.lists(moments, min_size=2, max_size=8))
def test_moments_of_one_entity_strictly_grow_in_whole_milliseconds(clock: list[datetime]) -> None:
    moments: list[datetime] = []
    for now in clock:
        moments.append(next_moment(now, moments[-1] if moments else None))

    assert all(earlier < later for earlier, later in pairwise(moments))
    assert all(moment.microsecond % 1000 == 0 for moment in moments)
