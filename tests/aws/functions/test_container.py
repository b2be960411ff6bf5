"""A function's process: invocations share opened resources, and do not harm each other."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from longshore.errors import UsageError
from longshore.interfaces.lambdas.container import (
    CONTAINERS,
    Batch,
    Container,
    InvocationTimeout,
    handler,
)
from tests.aws.functions.mappings import Invocation, failed_ids

AMPLE_S = 15  # more than a busy machine needs, and less than anything here waits by mistake
SHORT = 1.6  # of which a second and a half is left for the answer


class Resources:
    """The resources of invocations; it counts how often they are opened and closed."""

    def __init__(self) -> None:
        self.opened = self.closed = 0
        self.error = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[asyncio.AbstractEventLoop]:
        self.opened += 1
        if self.error:
            self.error -= 1
            raise ConnectionError
        yield asyncio.get_running_loop()
        self.closed += 1


@pytest.fixture
def resources() -> Resources:
    return Resources()


@pytest.fixture
def container(resources: Resources) -> Iterator[Container[Any]]:
    opened = Container(resources.open)
    yield opened
    opened.close()


async def works(opened: Any) -> str:
    await asyncio.sleep(0)
    assert opened is asyncio.get_running_loop()
    return "done"


def test_the_next_invocation_uses_the_opened_resources(
    container: Container[Any], resources: Resources
) -> None:
    assert [container.run(works, Invocation()) for _ in range(3)] == ["done"] * 3
    assert (resources.opened, resources.closed) == (1, 0)

    container.close()

    assert (resources.opened, resources.closed) == (1, 1)


def test_resources_that_could_not_be_opened_are_opened_by_the_next_invocation(
    container: Container[Any], resources: Resources
) -> None:
    resources.error = 1

    with pytest.raises(ConnectionError):
        container.run(works, Invocation())
    assert container.run(works, Invocation()) == "done"
    assert resources.opened == 2


def test_a_task_that_an_invocation_leaves_running_is_cancelled(
    container: Container[Any], resources: Resources
) -> None:
    left: list[asyncio.Task[Any]] = []

    async def leaves(opened: Any) -> None:
        left.append(asyncio.ensure_future(asyncio.Event().wait()))

    container.run(leaves, Invocation())

    assert left[0].cancelled()
    assert container.run(works, Invocation()) == "done"
    assert resources.opened == 1


def test_resources_are_opened_again_after_a_task_that_ignores_its_cancellation(
    container: Container[Any], resources: Resources
) -> None:
    async def stubborn() -> None:
        for _ in range(3):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    left: list[asyncio.Task[None]] = []

    async def leaves(opened: Any) -> None:
        left.append(asyncio.ensure_future(stubborn()))
        await asyncio.sleep(0)

    container.run(leaves, Invocation())

    assert container.run(works, Invocation()) == "done"
    assert resources.opened == 2


@pytest.mark.parametrize("crash", [SystemExit, KeyboardInterrupt])
def test_an_invocation_that_crashes_does_not_harm_the_next(
    container: Container[Any], resources: Resources, crash: type[BaseException]
) -> None:
    async def crashes(opened: Any) -> None:
        raise crash

    container.run(works, Invocation())
    with pytest.raises(crash):
        container.run(crashes, Invocation())

    assert container.run(works, Invocation()) == "done"
    assert resources.opened == 2


def test_a_loop_that_was_closed_is_replaced(
    container: Container[Any], resources: Resources
) -> None:
    loop = container.run(lambda opened: asyncio.sleep(0, opened), Invocation())
    loop.close()

    assert container.run(works, Invocation()) == "done"
    assert resources.opened == 2


def test_work_ends_before_the_invocation_times_out_and_the_next_one_succeeds(
    container: Container[Any], resources: Resources
) -> None:
    async def hangs(opened: Any) -> None:
        await asyncio.Event().wait()

    begun = time.monotonic()
    with pytest.raises(InvocationTimeout):
        container.run(hangs, Invocation(SHORT))
    assert time.monotonic() - begun < AMPLE_S
    assert container.run(works, Invocation()) == "done"
    assert resources.opened == 1


def test_a_timeout_inside_the_work_is_not_reported_as_an_invocation_timeout(
    container: Container[Any],
) -> None:
    async def times_out(opened: Any) -> None:
        raise TimeoutError("a socket")

    with pytest.raises(TimeoutError, match="a socket"):
        container.run(times_out, Invocation())


def records(*ids: str) -> dict[str, Any]:
    return {"Records": [{"messageId": id_, "body": id_} for id_ in ids]}


def run_batch(resources: Resources, event: Any, process: Callable[..., Any]) -> Any:
    """Answer a batch in an invocation with little time."""

    async def handle(opened: Any, batch: Batch) -> Any:
        await process(batch)
        return batch.answer()

    invoke = handler(resources.open, read=Batch, after_timeout=Batch.answer)(handle)
    try:
        return invoke(event, Invocation(SHORT))
    finally:
        CONTAINERS.pop("handle").close()


def test_failed_and_late_records_of_a_batch_are_answered_and_the_others_are_done(
    resources: Resources,
) -> None:
    async def deal(record: Any) -> None:
        if record["body"] == "late":
            await asyncio.Event().wait()
        if record["body"] == "broken":
            raise RuntimeError

    async def process(batch: Batch) -> None:
        await batch.process_each(deal)

    event = records("a", "late", "broken", "b")
    answer = run_batch(resources, event, process)

    assert failed_ids(answer) == ["late", "broken"]


@pytest.mark.parametrize(
    ("deal_fails", "answered"), [((), ["odd"]), (("b",), ["odd", "b"])], ids=["none", "one"]
)
def test_unreadable_and_failed_records_of_a_batch_processed_together_are_answered(
    resources: Resources, deal_fails: tuple[str, ...], answered: list[str]
) -> None:
    def read(record: Any) -> str:
        if record["body"] == "odd":
            raise UsageError("odd")
        return str(record["body"])

    async def process(batch: Batch) -> None:
        contents = batch.read(read)
        assert contents == {"a": "a", "b": "b"}
        batch.done.update(contents.keys() - deal_fails)

    answer = run_batch(resources, records("a", "odd", "b"), process)

    assert failed_ids(answer) == answered


def test_all_records_of_a_batch_that_times_out_are_answered(resources: Resources) -> None:
    async def process(batch: Batch) -> None:
        await asyncio.Event().wait()

    answer = run_batch(resources, records("a", "b"), process)

    assert failed_ids(answer) == ["a", "b"]


@pytest.mark.parametrize("event", [{}, None, {"Records": "none"}, []])
def test_an_event_that_is_no_batch_is_refused(resources: Resources, event: Any) -> None:
    with pytest.raises(UsageError, match="event source mapping"):
        run_batch(resources, event, works)
