"""What failed for good is found from rows, shown, counted, and given another round once."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from longshore.core.dead_letters import DeadLetterFilter
from longshore.core.tasks.commands import RequestCancel
from longshore.core.tasks.failures import ErrorCategory
from longshore.core.tasks.states import JobState, TaskState
from longshore.errors import CommandRefused, NotFound, UsageError
from longshore.services import dead_letters as module
from longshore.services import documents as d
from longshore.services import reads
from tests.unit.services.dead_messages import exhaust_receives, send
from tests.unit.services.harness import (
    BACKENDS,
    SECOND,
    TENANT,
    WITH_QUEUE,
    ServiceHarness,
    job_id,
    make_task,
    open_backend,
    scenario,
    task_id,
)
from tests.unit.services.port_wrappers import record_calls

A = task_id("a")
OTHER = "another-tenant"


async def fail_five_tasks(harness: ServiceHarness) -> None:
    """Five tasks that failed, one a second, in another order than that of their creation."""
    await harness.submit(
        make_task("a", queue="mail"), make_task("b"), make_task("fine"), request_id="one"
    )
    harness.clock.advance(SECOND)
    await harness.submit(
        make_task("c", queue="mail"), make_task("d"), make_task("e"), request_id="two"
    )
    for key, request_id, category in [
        ("c", "two", ErrorCategory.AUTH),
        ("a", "one", ErrorCategory.VALIDATION),
        ("d", "two", ErrorCategory.VALIDATION),
        ("b", "one", ErrorCategory.AUTH),
        ("e", "two", ErrorCategory.UNKNOWN),
    ]:
        harness.clock.advance(SECOND)
        await harness.fail(task_id(key, request_id), category)
    await harness.complete(task_id("fine", "one"))


async def keys(harness: ServiceHarness, **filter_: Any) -> str:
    """The last parts of the ids of what is listed, in order."""
    result = await harness.dead_letters.list_page(TENANT, DeadLetterFilter(**filter_))
    assert result.total == len(result.items)
    return " ".join(letter.id.rpartition("_")[2] for letter in result.items)


def rounds_of(result: d.ReplayResultDocument) -> dict[str, int]:
    return {item.request_id: item.round for item in result.replayed}


def skips_of(result: d.ReplayResultDocument) -> dict[str, str]:
    return {item.request_id: item.reason for item in result.skipped}


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_what_failed_last_comes_first(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await fail_five_tasks(harness)

        assert await keys(harness) == "e b d a c"


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_each_filter_chooses_and_all_must_be_met(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await fail_five_tasks(harness)
        now = harness.clock.now()

        assert await keys(harness, queue="mail") == "a c"
        assert await keys(harness, category=ErrorCategory.AUTH) == "b c"
        assert await keys(harness, job_id=job_id("one")) == "b a"
        assert await keys(harness, definition="command") == "e b d a c"
        assert await keys(harness, definition="python") == ""
        assert await keys(harness, since=now - SECOND) == "e b"
        assert await keys(harness, queue="mail", category=ErrorCategory.AUTH) == "c"


@pytest.mark.parametrize("kind", WITH_QUEUE)
@pytest.mark.parametrize("limit", [1, 2, 5])
@scenario
async def test_pages_show_everything_once_while_more_is_added(
    kind: str, limit: int, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await fail_five_tasks(harness)
        await send(harness, "poison")
        await exhaust_receives(harness)
        dead = harness.dead_letters

        seen, cursor = [], None
        while cursor is not None or not seen:
            page = await dead.list_page(TENANT, limit=limit, cursor=cursor)
            seen += [letter.id.rpartition("_")[2] for letter in page.items]
            cursor = page.cursor
            if len(seen) == limit:
                harness.clock.advance(SECOND)
                await harness.submit(make_task("new"), request_id="three")
                await harness.fail(task_id("new", "three"))
        messages = [item for item in seen if item.startswith("msg-")]

        assert [item for item in seen if item not in messages] == list("ebdac")
        assert len(messages) == 1
        # The one that was added is counted, but it is too new for the pages that are left.
        assert page.total == 7


@scenario
async def test_more_than_are_read_at_once_are_all_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "AT_ONCE", 2)
    monkeypatch.setattr(module, "AT_ONCE", 2)
    async with open_backend("memory", tmp_path) as backend:
        harness = ServiceHarness(backend)
        await fail_five_tasks(harness)
        await send(harness, *(f"poison {number}" for number in range(7)))
        await exhaust_receives(harness)
        dead = harness.dead_letters

        page = await dead.list_page(TENANT, limit=3)

        assert (len(page.items), page.total) == (3, 12)
        assert (await dead.count(TENANT)).messages == 7


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_cursor_of_another_listing_is_refused(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("b"))
        foreign = (await backend.ledger.list_tasks(TENANT, limit=1)).cursor

        with pytest.raises(UsageError):
            await harness.dead_letters.list_page(TENANT, cursor=foreign)


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_they_are_counted_by_queue_and_category(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await fail_five_tasks(harness)
        await send(harness, "poison", queue="mail")
        await exhaust_receives(harness, "mail")
        dead = harness.dead_letters

        counts = await dead.count(TENANT)

        assert (counts.tasks, counts.messages, counts.count) == (5, 1, 6)
        assert {(kind.queue, kind.category): kind.count for kind in counts.kinds} == {
            ("mail", "auth"): 1,
            ("mail", "validation"): 1,
            ("mail", "message"): 1,
            ("default", "auth"): 1,
            ("default", "validation"): 1,
            ("default", "unknown"): 1,
        }
        assert (await dead.count(TENANT, DeadLetterFilter(category=ErrorCategory.AUTH))).count == 2


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_another_tenant_neither_sees_nor_replays_them(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await fail_five_tasks(harness)
        dead, mine = harness.dead_letters, task_id("a", "one")

        assert (await dead.list_page(OTHER)).items == ()
        assert (await dead.count(OTHER)).count == 0
        with pytest.raises(NotFound):
            await dead.get(OTHER, mine)
        with pytest.raises(NotFound):
            await dead.replay(OTHER, [mine], by="ann")
        assert (await dead.replay(OTHER, DeadLetterFilter(), by="ann")).replayed == []
        assert (await harness.task("a", "one")).state is TaskState.FAILED


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_dead_message_is_visible_only_to_the_tenant_of_its_task(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        await exhaust_receives(harness)
        dead = harness.dead_letters
        (mine,) = (await dead.list_page(TENANT)).items

        assert (await dead.list_page(OTHER)).items == ()
        assert (await dead.count(OTHER)).count == 0
        with pytest.raises(NotFound):
            await dead.get(OTHER, mine.id)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_replayed_task_has_another_round_and_is_no_dead_letter_any_more(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("after", "a"))
        await harness.fail(A)
        dead = harness.dead_letters

        replayed = await dead.replay(TENANT, [A], by="ann")

        assert rounds_of(replayed) == {A: 2}
        assert replayed.skipped == []
        assert (await dead.count(TENANT)).count == 0
        with pytest.raises(NotFound):
            await dead.get(TENANT, A)
        await harness.finish()
        assert (await harness.job()).state is JobState.COMPLETED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_task_that_is_no_longer_failed_is_reported_and_not_replayed(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("b"))
        await harness.fail(A)
        dead = harness.dead_letters
        await dead.replay(TENANT, [A], by="ann")
        before = await harness.task("a")

        again = await dead.replay(TENANT, [A, task_id("b"), A], by="bob")

        assert again.replayed == []
        assert skips_of(again) == {
            A: "the task is pending in round 2",
            task_id("b"): "the task is pending",
        }
        assert await harness.task("a") == before


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_two_replays_of_everything_at_once_give_each_task_one_new_round(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stages = [ServiceHarness(backend), ServiceHarness(backend)]
        await fail_five_tasks(stages[0])

        replays = await asyncio.gather(
            *(
                harness.dead_letters.replay(TENANT, DeadLetterFilter(), by="ann")
                for harness in stages
            )
        )

        replayed = [task for item in replays for task in rounds_of(item)]
        assert len(replayed) == len(set(replayed)) == 5
        for key, request_id in [("a", "one"), ("b", "one"), ("c", "two"), ("d", "two")]:
            notices = await stages[0].event_types(key, request_id)
            assert notices.count("Task Pending") == 2


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_replay_by_filter_takes_what_fits_and_leaves_messages(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await fail_five_tasks(harness)
        await send(harness, "poison", queue="mail")
        await exhaust_receives(harness, "mail")
        dead = harness.dead_letters

        replayed = await dead.replay(TENANT, DeadLetterFilter(queue="mail"), by="ann")

        assert set(rounds_of(replayed)) == {task_id("a", "one"), task_id("c", "two")}
        assert (await dead.count(TENANT)).tasks == 3
        assert (await dead.count(TENANT)).messages == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_replay_of_an_unknown_task_changes_nothing(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        await harness.fail(A)

        with pytest.raises(NotFound):
            await harness.dead_letters.replay(TENANT, [A, task_id("never")], by="ann")

        assert (await harness.task("a")).state is TaskState.FAILED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_cancelled_task_is_no_dead_letter_and_is_not_replayed(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        await harness.transitions.apply_to_task(A, RequestCancel(by="ann"))

        replayed = await harness.dead_letters.replay(TENANT, [A], by="ann")

        assert skips_of(replayed) == {A: "the task is cancelled"}


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_message_without_a_task_is_discarded_and_an_event_records_it(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await send(harness, "password=hunter2 and more", queue="mail")
        await exhaust_receives(harness, "mail")
        dead = harness.dead_letters
        (letter,) = (await dead.list_page(TENANT)).items

        await dead.discard(TENANT, letter, by="ann")

        (event,) = await backend.events.history(TENANT, "QUEUE#mail")
        assert (letter.queue, letter.reason) == ("mail", "not JSON")
        assert (await dead.count(TENANT)).count == 0
        assert event.body.reason == "discarded by ann: not JSON"
        assert event.body.message_id == letter.message.id
        assert "and more" in event.body.excerpt
        assert "hunter2" not in event.body.excerpt


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_nothing_is_forgotten_before_the_event_is_written(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await send(harness, "poison")
        await exhaust_receives(harness)
        watched, calls = record_calls(backend)
        dead = ServiceHarness(watched).dead_letters
        (letter,) = (await dead.list_page(TENANT)).items

        await dead.discard(TENANT, letter, by="ann")

        writing = [call for call in calls if call in ("events.append", "queue.delete_dead_letter")]
        assert writing == ["events.append", "queue.delete_dead_letter"]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_task_is_history_and_cannot_be_discarded(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        await harness.fail(A)
        letter = await harness.dead_letters.get(TENANT, A)

        with pytest.raises(CommandRefused, match="history"):
            await harness.dead_letters.discard(TENANT, letter, by="ann")


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_message_that_speaks_for_a_task_cannot_be_discarded(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        await exhaust_receives(harness)
        dead = harness.dead_letters
        (letter,) = (await dead.list_page(TENANT)).items

        with pytest.raises(CommandRefused, match="belongs to task"):
            await dead.discard(TENANT, letter, by="ann")


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_what_is_not_there_is_not_found(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        with pytest.raises(NotFound):
            await ServiceHarness(backend).dead_letters.get(TENANT, "msg-9")
