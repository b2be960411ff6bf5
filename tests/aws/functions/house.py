"""An installation on the stand-in for functions: their environment, and what one looks at."""

import asyncio
import importlib
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest

from longshore.adapters.aws import calls
from longshore.adapters.aws.calls import Answer, Aws, AwsPlace
from longshore.adapters.aws.names import Names
from longshore.adapters.aws.stacks.functions import FUNCTIONS
from longshore.core.commands import Claim
from longshore.core.events.event import Event
from longshore.core.rows import JobRow, TaskRow
from longshore.core.states import Priority
from longshore.interfaces.lambdas.container import Container
from longshore.services.producer import Accepted
from longshore.testing.runner import FakeRunner
from longshore.wiring import Services, functions
from tests.aws.backends import names_in
from tests.aws.deploy.rights import Call as Right
from tests.aws.deploy.rights import Rights, asked_by
from tests.aws.functions.mappings import Invocation, Mappings
from tests.aws.standin import REGION, stand_in
from tests.aws.trouble import Trouble

TENANT = "default"
QUEUE = "default"
UNDELIVERED_AFTER = 6  # more receives than any test makes without meaning to
ResultT = TypeVar("ResultT")
Note = Callable[[str, str, dict[str, Any]], None]

WORKER = "worker"
ROLES = {each.module: each.name for each in FUNCTIONS.values()}
"""Whose role a module's handler has."""


class Watched(Trouble):
    """The way to AWS of one container, where a test can make trouble."""

    def __init__(self, place: AwsPlace, note: Note) -> None:
        super().__init__(Aws(place))
        self._note = note

    async def call(self, service: str, operation: str, **parameters: Any) -> Answer:
        self._note(service, operation, parameters)
        return await super().call(service, operation, **parameters)

    async def close(self) -> None:
        await self._aws.close()


class House:
    """An installation."""

    def __init__(self, names: Names, mappings: Mappings, folder: Path) -> None:
        self.names = names
        self.mappings = mappings
        self.folder = folder
        self.opened: list[Watched] = []  # the ways to AWS that were opened, the last one last
        self.ways: dict[str | None, Watched] = {}  # by role, the last that it opened
        self._desk = Container(functions.wired)
        self._used: set[str] = set()
        self._acting: str | None = None
        self.asked: dict[str, set[Right]] = {}  # by role, what was asked of AWS

    def opens(self, place: AwsPlace, credentials: Mapping[str, tuple[str, str]]) -> Watched:
        """The way to AWS of whoever acts now; with a role's own credentials if it has some."""
        role = self._acting

        def note(service: str, operation: str, parameters: dict[str, Any]) -> None:
            if role is not None:
                wanted = asked_by(service, operation, parameters)
                self.asked.setdefault(role, set()).update(wanted)

        if role in credentials:
            place = replace(place, credentials=credentials[role])
        self.opened.append(Watched(place, note))
        self.ways[role] = self.opened[-1]
        return self.opened[-1]

    @contextmanager
    def acting(self, role: str | None) -> Iterator[None]:
        """Whatever is opened meanwhile is opened by this role; by None, it is a person's."""
        before, self._acting = self._acting, role
        try:
            yield
        finally:
            self._acting = before

    def denied(self) -> list[tuple[str, Right]]:
        """What was asked and no policy would have allowed."""
        rights = Rights.of(self.names)
        calls = [(role, one) for role, asked in self.asked.items() for one in asked]
        return [(role, one) for role, one in calls if not rights.allows(role, one)]

    @property
    def trouble(self) -> Watched:
        """Of the container that was opened last."""
        return self.opened[-1]

    def handler(self, module: str) -> Callable[[Any, Any], Any]:
        self._used.add(module)

        def handler(event: Any, context: Any) -> Any:
            with self.acting(ROLES[module]):
                return container_module(module).handler(event, context)

        return handler

    def invoke(self, module: str, event: Any, *, seconds: float = 60) -> Any:
        return self.handler(module)(event, Invocation(seconds))

    def do(self, work: Callable[[Services], Awaitable[ResultT]]) -> ResultT:
        """Something that a person or a worker does beside the functions."""

        async def with_services(wired: functions.Wired) -> ResultT:
            return await work(wired.services)

        return self._desk.run(with_services, Invocation())

    def submit(self, *tasks: dict[str, Any], request_id: str = "request-1") -> Accepted:
        document = {"tasks": list(tasks)}
        return self.do(lambda all_: all_.producer.submit(TENANT, request_id, document))

    def begin_anew(self) -> None:
        """What other tests have left on the stream and on queues is not looked at any more."""
        self.mappings.skip_stream()
        consumers = [self.names.consumer(one) for one in ("history", "dispatcher", "undelivered")]
        # Doorbells too: a worker would do what other tests have left, and tell of it.
        for queue in (*consumers, self.names.queue(QUEUE, Priority.NORMAL)):
            self.mappings.call("sqs", "purge_queue", QueueUrl=self.mappings.url(queue))
        kept = self.mappings.call(
            "s3", "list_objects_v2", Bucket=self.names.bucket, Prefix="undelivered/"
        )
        for one in kept.get("Contents", []):
            self.mappings.call("s3", "delete_object", Bucket=self.names.bucket, Key=one["Key"])

    def blobs(self, prefix: str) -> dict[str, bytes]:
        async def found(services: Services) -> dict[str, bytes]:
            store = services.backend.blobs
            return {key: await store.get(key) for key in await store.keys(prefix)}

        return self.do(found)

    def history(self, entity: str) -> list[Event]:
        return self.do(lambda all_: all_.backend.events.history(TENANT, entity))

    def job(self, job_id: str) -> JobRow:
        row = self.do(lambda all_: all_.backend.ledger.job(job_id))
        assert row is not None
        return row

    def work(self, *task_ids: str) -> None:
        """A worker takes and ends these tasks."""

        async def work() -> None:
            # A process of its own, which gives back at its end what its polls have taken.
            async with AsyncExitStack() as stack:
                with self.acting(WORKER):
                    services = (await stack.enter_async_context(functions.wired())).services
                with self.acting(None):
                    person = (await stack.enter_async_context(functions.wired())).services
                runner = FakeRunner(services.backend.clock)
                worker = services.worker_with(runner, "worker-1", process_id=1, roll=lambda: 0.5)
                running = asyncio.ensure_future(worker.run())
                while not await all_ended(person, task_ids):
                    await asyncio.sleep(0.01)
                worker.stop()
                await running

        asyncio.run(work())

    def claim(self, task_id: str, by: str = "far") -> TaskRow:
        """A worker somewhere holds a task, for a long time."""
        claim = Claim(worker_id=by, process_id=1, lasts=timedelta(hours=9), local=False)
        return self.do(lambda all_: all_.transitions.task(task_id, claim))

    def tell_all(self) -> None:
        """Let all that was committed reach the history and the dispatcher."""
        feeds = {"history": "save_event", "dispatcher": "dispatcher"}
        came = 1
        while came:
            came = self.mappings.feed_stream(self.handler("relay"))
            for consumer, module in feeds.items():
                queue = self.names.consumer(consumer)
                came += self.mappings.feed_queue(queue, self.handler(module))

    def close(self) -> None:
        for module in self._used:
            container_module(module).container.close()
        self._desk.close()
        self.mappings.close()


def container_module(name: str) -> Any:
    return importlib.import_module(f"longshore.interfaces.lambdas.{name}")


@contextmanager
def a_house(tmp_path: Path, patch: pytest.MonkeyPatch) -> Iterator[House]:
    """An installation, and functions whose environment names it.

    Whatever they ask of AWS, their policies must allow: else this fails at the end.
    """
    server = stand_in()

    async def provided() -> Names:
        aws = Aws(server.place)
        try:
            names = await names_in(aws, tmp_path, (QUEUE,), ("history", "dispatcher"))
            await with_a_queue_for_the_undelivered(aws, names)
        finally:
            await aws.close()
        return names

    with house_on(server.place, asyncio.run(provided()), tmp_path, patch) as house:
        yield house
        assert house.denied() == []


@contextmanager
def house_on(
    place: AwsPlace,
    names: Names,
    folder: Path,
    patch: pytest.MonkeyPatch,
    credentials: Mapping[str, tuple[str, str]] | None = None,
) -> Iterator[House]:
    """Functions of an installation that is there."""
    key, secret = place.credentials or ("", "")
    environment = {
        "LONGSHORE_BACKEND": "aws",
        "LONGSHORE_ENVIRONMENT": names.stage,
        "LONGSHORE_AWS_BUCKET": names.bucket,
        "LONGSHORE_AWS_ENDPOINT_URL": place.endpoint_url or "",
        "LONGSHORE_DATA_DIR": str(folder / "data"),
        "LONGSHORE_WORKER_POLL_WAIT": "1s",
        "LONGSHORE_API_HOSTS": "*",
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": secret,
    }
    for name, value in environment.items():
        patch.setenv(name, value)
    house = House(names, Mappings(place, names), folder / "data")
    patch.setattr(calls, "Aws", lambda place: house.opens(place, credentials or {}))
    try:
        yield house
    finally:
        house.close()


async def all_ended(services: Services, task_ids: Sequence[str]) -> bool:
    """Whether these tasks have."""
    rows = await services.backend.ledger.tasks(task_ids)
    return all(row.state.terminal for row in rows)


async def with_a_queue_for_the_undelivered(aws: Aws, names: Names) -> None:
    """Where consumers' messages go that were received too often."""
    made = await aws.call("sqs", "create_queue", QueueName=names.consumer("undelivered"))
    arn = f"arn:aws:sqs:{REGION}:000000000000:{names.consumer('undelivered')}"
    policy = {"deadLetterTargetArn": arn, "maxReceiveCount": UNDELIVERED_AFTER}
    assert made["QueueUrl"]
    for consumer in ("history", "dispatcher"):
        found = await aws.call("sqs", "get_queue_url", QueueName=names.consumer(consumer))
        await aws.call(
            "sqs",
            "set_queue_attributes",
            QueueUrl=found["QueueUrl"],
            Attributes={"RedrivePolicy": json.dumps(policy)},
        )
