"""An installation on the stand-in for functions: their environment, and what tests inspect."""

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

from longshore.adapters.aws import client
from longshore.adapters.aws.client import AwsClient, AwsClientOptions, AwsResponse
from longshore.adapters.aws.deploy.stacks.template import FUNCTIONS
from longshore.adapters.aws.names import Names
from longshore.core.events.event import Event
from longshore.core.tasks.commands import Claim
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.core.tasks.states import Priority
from longshore.interfaces.lambdas.container import CONTAINERS, Container
from longshore.services.submit import AcceptedTasks
from longshore.testing.fake_runner import FakeRunner
from longshore.wiring import lambdas
from longshore.wiring.services import Services
from tests.aws.backends import installation_names
from tests.aws.call_faults import FaultyAws
from tests.aws.deploy.permissions import ActionOnResource as Action
from tests.aws.deploy.permissions import RolePolicies, permissions_needed
from tests.aws.functions.mappings import Invocation, Mappings
from tests.aws.stand_in import REGION, stand_in

TENANT = "default"
QUEUE = "default"
UNDELIVERED_RECEIVE_LIMIT = 6  # more receives than any test makes without meaning to
ResultT = TypeVar("ResultT")
CallRecorder = Callable[[str, str, dict[str, Any]], None]

WORKER = "worker"


class RecordingAws(FaultyAws):
    """The AWS client of one container, in which a test can inject faults."""

    def __init__(self, options: AwsClientOptions, record: CallRecorder) -> None:
        super().__init__(AwsClient(options))
        self._record = record

    async def call(self, service: str, operation: str, **parameters: Any) -> AwsResponse:
        self._record(service, operation, parameters)
        return await super().call(service, operation, **parameters)

    async def close(self) -> None:
        await self._aws.close()


class FunctionInstallation:
    """An installation whose functions run in this process, each with its role."""

    def __init__(self, names: Names, mappings: Mappings, folder: Path) -> None:
        self.names = names
        self.mappings = mappings
        self.folder = folder
        self.clients: list[RecordingAws] = []  # in the order in which they were opened
        # The last client that each role has opened; of None, a person's.
        self.client_by_role: dict[str | None, RecordingAws] = {}
        self._container = Container(lambdas.open_lambda_services)
        self._invoked: set[str] = set()
        self._role: str | None = None
        self.actions_by_role: dict[str, set[Action]] = {}  # the actions that each role has called

    def open_client(
        self, options: AwsClientOptions, credentials: Mapping[str, tuple[str, str]]
    ) -> RecordingAws:
        """The AWS client of the current role, with the role's own credentials if it has some."""
        role = self._role

        def record(service: str, operation: str, parameters: dict[str, Any]) -> None:
            if role is not None:
                actions = permissions_needed(service, operation, parameters)
                self.actions_by_role.setdefault(role, set()).update(actions)

        if role in credentials:
            options = replace(options, credentials=credentials[role])
        self.clients.append(RecordingAws(options, record))
        self.client_by_role[role] = self.clients[-1]
        return self.clients[-1]

    @contextmanager
    def as_role(self, role: str | None) -> Iterator[None]:
        """Open everything in this context as this role; None is a person."""
        before, self._role = self._role, role
        try:
            yield
        finally:
            self._role = before

    def denied_actions(self) -> list[tuple[str, Action]]:
        """The calls that the role's policy does not allow."""
        policies = RolePolicies.for_stage(self.names)
        calls = [(role, item) for role, actions in self.actions_by_role.items() for item in actions]
        return [(role, item) for role, item in calls if not policies.allows(role, item)]

    @property
    def newest_client(self) -> RecordingAws:
        """The client of the container that was opened last."""
        return self.clients[-1]

    def handler(self, function: str) -> Callable[[Any, Any], Any]:
        self._invoked.add(function)

        def handler(event: Any, context: Any) -> Any:
            with self.as_role(function):
                return import_handler(FUNCTIONS[function].handler)(event, context)

        return handler

    def invoke(self, function: str, event: Any, *, seconds: float = 60) -> Any:
        return self.handler(function)(event, Invocation(seconds))

    def run(self, work: Callable[[Services], Awaitable[ResultT]]) -> ResultT:
        """Do something that a person or a worker does beside the functions."""

        async def with_services(wired: lambdas.LambdaServices) -> ResultT:
            return await work(wired)

        return self._container.run(with_services, Invocation())

    def submit(self, *tasks: dict[str, Any], request_id: str = "request-1") -> AcceptedTasks:
        document = {"tasks": list(tasks)}
        return self.run(lambda all_: all_.producer.submit(TENANT, request_id, document))

    def reset(self) -> None:
        """Discard what other tests have left on the stream, on queues and as undelivered events."""
        self.mappings.skip_stream()
        consumers = [self.names.consumer(item) for item in ("history", "dispatcher", "undelivered")]
        # The task queue too: a worker would run the tasks of other tests and commit their events.
        for queue in (*consumers, self.names.queue(QUEUE, Priority.NORMAL)):
            self.mappings.call("sqs", "purge_queue", QueueUrl=self.mappings.url(queue))
        undelivered = self.mappings.call(
            "s3", "list_objects_v2", Bucket=self.names.bucket, Prefix="undelivered/"
        )
        for item in undelivered.get("Contents", []):
            self.mappings.call("s3", "delete_object", Bucket=self.names.bucket, Key=item["Key"])

    def blobs(self, prefix: str) -> dict[str, bytes]:
        async def result(services: Services) -> dict[str, bytes]:
            store = services.backend.blobs
            return {key: await store.get(key) for key in await store.list_keys(prefix)}

        return self.run(result)

    def history(self, entity: str) -> list[Event]:
        return self.run(lambda all_: all_.backend.events.history(TENANT, entity))

    def job(self, job_id: str) -> JobRow:
        row = self.run(lambda all_: all_.backend.ledger.get_job(job_id))
        assert row is not None
        return row

    def run_worker(self, *task_ids: str) -> None:
        """Run a worker until these tasks have ended."""

        async def work() -> None:
            # Closed services return the messages that a pending poll has received.
            async with AsyncExitStack() as stack:
                with self.as_role(WORKER):
                    services = await stack.enter_async_context(lambdas.open_lambda_services())
                with self.as_role(None):
                    person = await stack.enter_async_context(lambdas.open_lambda_services())
                runner = FakeRunner(services.backend.clock)
                worker = services.worker_with_runner(
                    runner, "worker-1", process_id=1, roll=lambda: 0.5
                )
                running = asyncio.ensure_future(worker.run())
                while not await all_ended(person, task_ids):
                    await asyncio.sleep(0.01)
                worker.stop()
                await running

        asyncio.run(work())

    def claim(self, task_id: str, worker_id: str = "far") -> TaskRow:
        """Claim a task for a remote worker, with a long lease."""
        claim = Claim(
            worker_id=worker_id, process_id=1, lease_duration=timedelta(hours=9), local=False
        )
        return self.run(lambda all_: all_.transitions.apply_to_task(task_id, claim))

    def deliver_all(self) -> None:
        """Deliver every committed event to the history and the dispatcher."""
        feeds = {"history": "save-event", "dispatcher": "dispatcher"}
        delivered = 1
        while delivered:
            delivered = self.mappings.feed_stream(self.handler("relay"))
            for consumer, function in feeds.items():
                queue = self.names.consumer(consumer)
                delivered += self.mappings.feed_queue(queue, self.handler(function))

    def close(self) -> None:
        for function in self._invoked:
            CONTAINERS[function.replace("-", "_")].close()
        self._container.close()
        self.mappings.close()


def import_handler(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


@contextmanager
def open_installation(tmp_path: Path, patch: pytest.MonkeyPatch) -> Iterator[FunctionInstallation]:
    """An installation, and functions whose environment names it.

    Fails at the end if a function made a call that its policy does not allow.
    """
    server = stand_in()

    async def create() -> Names:
        aws = AwsClient(server.client_options)
        try:
            names = await installation_names(aws, tmp_path, (QUEUE,), ("history", "dispatcher"))
            await create_undelivered_queue(aws, names)
        finally:
            await aws.close()
        return names

    with installation_on(
        server.client_options, asyncio.run(create()), tmp_path, patch
    ) as installation:
        yield installation
        assert installation.denied_actions() == []


@contextmanager
def installation_on(
    options: AwsClientOptions,
    names: Names,
    folder: Path,
    patch: pytest.MonkeyPatch,
    credentials: Mapping[str, tuple[str, str]] | None = None,
) -> Iterator[FunctionInstallation]:
    """The functions of an existing installation."""
    key, secret = options.credentials or ("", "")
    environment = {
        "LONGSHORE_BACKEND": "aws",
        "LONGSHORE_ENVIRONMENT": names.stage,
        "LONGSHORE_AWS_BUCKET": names.bucket,
        "LONGSHORE_AWS_ENDPOINT_URL": options.endpoint_url or "",
        "LONGSHORE_DATA_DIR": str(folder / "data"),
        "LONGSHORE_WORKER_POLL_WAIT": "1s",
        "LONGSHORE_API_HOSTS": "*",
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": secret,
    }
    for name, value in environment.items():
        patch.setenv(name, value)
    installation = FunctionInstallation(names, Mappings(options, names), folder / "data")
    patch.setattr(
        client, "AwsClient", lambda options: installation.open_client(options, credentials or {})
    )
    try:
        yield installation
    finally:
        installation.close()


async def all_ended(services: Services, task_ids: Sequence[str]) -> bool:
    """Whether these tasks have ended."""
    rows = await services.backend.ledger.get_tasks(task_ids)
    return all(row.state.terminal for row in rows)


async def create_undelivered_queue(aws: AwsClient, names: Names) -> None:
    """Create the queue to which SQS moves consumers' messages after too many receives."""
    created = await aws.call("sqs", "create_queue", QueueName=names.consumer("undelivered"))
    arn = f"arn:aws:sqs:{REGION}:000000000000:{names.consumer('undelivered')}"
    policy = {"deadLetterTargetArn": arn, "maxReceiveCount": UNDELIVERED_RECEIVE_LIMIT}
    assert created["QueueUrl"]
    for consumer in ("history", "dispatcher"):
        result = await aws.call("sqs", "get_queue_url", QueueName=names.consumer(consumer))
        await aws.call(
            "sqs",
            "set_queue_attributes",
            QueueUrl=result["QueueUrl"],
            Attributes={"RedrivePolicy": json.dumps(policy)},
        )
