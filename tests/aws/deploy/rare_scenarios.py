"""What comes seldom: crashes half way, very large jobs, uploads that vanish, people to be told.

The functions run in this process, in a stage of their own, with the rights of their roles: the
stand-in denies them what no policy allows and notes what they call, as it does on a tour. Here a
test can cut them off where it wants, and call large what is not.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from longshore.adapters.aws import blobs
from longshore.adapters.aws.client import AwsResponse, CallRefused
from longshore.adapters.aws.names import Names
from longshore.adapters.aws.output import output_log
from longshore.core.definitions.definition import Definition, RunnerKind
from longshore.core.events.codec import overflow_of
from longshore.core.tasks.commands import Complete, FailTask
from longshore.core.tasks.failures import ErrorCategory, Failure
from longshore.core.tasks.states import Priority
from longshore.errors import BackendUnavailable
from longshore.services import spill
from longshore.services.sweeper import SweeperPolicy
from longshore.services.worker.group import WorkerGroup
from longshore.testing.fake_runner import FakeRunner, Script, fails, prints, succeeds
from longshore.wiring import lambdas
from longshore.wiring import services as wired_services
from longshore.wiring.services import Services
from tests.adapters.alerts.server import Server
from tests.aws.backends import create_resources
from tests.aws.call_faults import Call
from tests.aws.deploy.installation import DeployedInstallation, create_user
from tests.aws.deploy.permissions import RolePolicies
from tests.aws.functions.gateway_requests import create_api_key, request, send_request
from tests.aws.functions.installation import (
    QUEUE,
    TENANT,
    WORKER,
    FunctionInstallation,
    create_undelivered_queue,
    installation_on,
)
from tests.aws.functions.mappings import failed_ids
from tests.unit.services.harness import make_task

NAMES = Names(stage="scenes", bucket="longshore-scenes-blobs")
ROLES = ("dispatcher", "sweeper", "health-check", "api", WORKER)
"""Who acts; what others do besides, a person does."""
LARGE = "x" * 1_100  # beyond what a row holds
_LONG = "k" * 120  # nine tasks of such names make a graph that a row does not hold
_PART_BYTES = blobs.PART_BYTES
_NO_TIME = timedelta(0)
_SECRET = "the-secret-that-signs-what-is-sent-0123456789"


class ProcessDied(Exception):
    """As if the process had."""


@dataclass(frozen=True)
class RareScenarios:
    """Where the scenes are played."""

    installation: FunctionInstallation
    patch: pytest.MonkeyPatch

    def crash_midway(self, work: Callable[[Services], Awaitable[Any]]) -> None:
        """Somebody does something, and dies when the first of its rows is written."""
        house = self.installation
        house.run(lambda _: asyncio.sleep(0))
        way = house.client_by_role[None]

        async def dies(call: Call) -> AwsResponse:
            raise ProcessDied

        async def last(call: Call) -> AwsResponse:
            way.inject("update_item", dies)
            return await call()

        way.inject("update_item", last)
        with pytest.raises(ProcessDied):
            house.run(work)

    @contextmanager
    def lose_upload(self, role: str) -> Iterator[None]:
        """The next blob of a role is large, and when its parts are to be joined they are gone."""

        async def gone(call: Call) -> AwsResponse:
            self.patch.setattr(blobs, "PART_BYTES", _PART_BYTES)
            raise CallRefused("NoSuchUpload", {})

        way = self.installation.client_by_role[role]
        before = way.count("abort_multipart_upload")
        way.inject("complete_multipart_upload", gone)
        # S3 does not join parts as small as this, and is not asked to.
        self.patch.setattr(blobs, "PART_BYTES", 200)
        yield
        assert way.count("abort_multipart_upload") == before + 1

    @contextmanager
    def large_events(self) -> Iterator[None]:
        """As those of jobs of thousands of tasks are."""
        with self.patch.context() as here:
            here.setattr(spill, "overflow_of", partial(overflow_of, limit=0))
            yield

    def send(self, queue: str, body: str) -> None:
        mappings = self.installation.mappings
        mappings.call("sqs", "send_message", QueueUrl=mappings.url(queue), MessageBody=body)

    def send_dead_letter(self, body: str) -> None:
        """A message was received too often."""
        self.send(self.installation.names.dead_letter_queue(QUEUE, Priority.NORMAL), body)

    def fail(self, task_id: str) -> None:
        """A task fails, and nobody has heard of it yet."""
        why = Failure(category=ErrorCategory.NETWORK, message="broke")
        command = FailTask(failure=why, source="dlq", margin=_NO_TIME)
        self.installation.run(lambda all_: all_.transitions.apply_to_task(task_id, command))

    def complete(self, task_id: str) -> None:
        """A task completes, and nobody has heard of it yet."""
        row = self.installation.claim(task_id)
        assert row.lease is not None
        command = Complete(fence=row.lease.fence, result=None, duration=_NO_TIME)
        self.installation.run(lambda all_: all_.transitions.apply_to_task(task_id, command))

    def submit(self, name: str, *tasks: dict[str, Any]) -> str:
        return self.installation.submit(*tasks, request_id=name).job.id


def run_rare_scenarios(installation: DeployedInstallation, folder: Path) -> None:
    """All scenes, once."""
    people = Server()
    with pytest.MonkeyPatch.context() as patch, people.running():
        credentials = asyncio.run(_prepare(installation, people.url))
        for name, value in {"OUTPUT_FLUSH": "0s", "RENEW_EVERY": "100ms"}.items():
            patch.setenv(f"LONGSHORE_WORKER_{name}", value)
        with installation_on(
            installation.client_options(), NAMES, folder / "scenes", patch, credentials
        ) as house:
            for scene in (_run_dispatcher, _run_sweeper, _run_health_check, _run_api, _run_worker):
                scene(RareScenarios(house, patch))
    assert people.received


async def _prepare(deployed: DeployedInstallation, alert_server: str) -> dict[str, tuple[str, str]]:
    """The stage; credentials of those who act there."""
    aws, names = deployed.aws(), NAMES
    try:
        await create_resources(aws, names, (QUEUE,), ("history", "dispatcher"))
        await create_undelivered_queue(aws, names)
        for name, value in {"webhook_url": alert_server, "webhook_secrets": _SECRET}.items():
            place = f"/longshore/{names.stage}/alerts.{name}"
            await aws.call("ssm", "put_parameter", Name=place, Value=value, Type="SecureString")
        policies = {role: RolePolicies.for_stage(names).policy_document(role) for role in ROLES}
        return {
            role: await create_user(aws, f"{names.stage}-{role}", item)
            for role, item in policies.items()
        }
    finally:
        await aws.close()


def _with_large_input(key: str, **more: str) -> dict[str, Any]:
    return make_task(key, input={"argv": ["true", LARGE]}, **more)


def _run_dispatcher(scenarios: RareScenarios) -> None:
    """Tasks end: one that another waits for, and one of a job whose graph and end are large."""
    house = scenarios.installation
    scenarios.complete(f"{scenarios.submit('moved on', make_task('a'), make_task('b', 'a'))}_a")
    behind = [make_task(f"{_LONG}{number}", "first") for number in range(9)]
    job = scenarios.submit("dispatched", make_task("first"), *behind)
    scenarios.fail(f"{job}_first")
    while house.mappings.feed_stream(house.handler("relay")):
        pass
    house.invoke("dispatcher", {"Records": []})
    queue = house.names.consumer("dispatcher")
    event = house.mappings.queue_event(queue)
    with scenarios.large_events():
        with scenarios.lose_upload("dispatcher"):
            assert failed_ids(house.invoke("dispatcher", event))
        assert failed_ids(house.invoke("dispatcher", event)) == []
    assert house.blobs(f"events/{job}/")


def _run_sweeper(scenarios: RareScenarios) -> None:
    """Whoever submits, cancels or dispatches dies in the middle of it."""
    house, names = scenarios.installation, scenarios.installation.names
    # Not half a minute later, in which a dispatcher might still have done it by itself.
    at_once = partial(SweeperPolicy, settle_after=_NO_TIME)
    scenarios.patch.setattr(wired_services, "SweeperPolicy", at_once)
    house.invoke("sweeper", {})
    own = Definition(name="own", runner=RunnerKind.COMMAND)
    house.run(lambda all_: all_.backend.definitions.put(TENANT, own))
    tasks = [_with_large_input(key, name="own") for key in "ab"]
    scenarios.crash_midway(lambda all_: all_.producer.submit(TENANT, "half", {"tasks": tasks}))
    with scenarios.lose_upload("sweeper"), pytest.raises(BackendUnavailable):
        house.invoke("sweeper", {})
    assert house.invoke("sweeper", {})["repaired"]["intents_finished"] == 1

    held = scenarios.submit("held", make_task("a"), make_task("b"))
    house.claim(f"{held}_a")
    scenarios.crash_midway(lambda all_: all_.canceller.cancel_job(held, by="test"))
    failed = scenarios.submit(
        "failed", make_task("a"), make_task(f"b{_LONG}"), make_task(f"c{_LONG}")
    )
    scenarios.fail(f"{failed}_a")
    scenarios.send_dead_letter(json.dumps({"requestId": f"{failed}_a"}))
    with scenarios.large_events():
        with scenarios.lose_upload("sweeper"), pytest.raises(BackendUnavailable):
            house.invoke("sweeper", {})
        house.invoke("sweeper", {})
    assert house.blobs(f"events/{failed}/")
    assert house.mappings.message_count(names.dead_letter_queue(QUEUE, Priority.NORMAL)) == 0


def _run_health_check(scenarios: RareScenarios) -> None:
    """A dead letter of a row that cannot be read: people are told of it, until it is gone."""
    house = scenarios.installation
    house.run(lambda all_: all_.dead_letters.replay_matching(TENANT, by="test"))
    job = scenarios.submit("checked", make_task("a"))
    place = {"bucket": {"S": job[len("job-")]}, "id": {"S": f"{job}_a"}}
    house.mappings.call(
        "dynamodb",
        "update_item",
        TableName=house.names.ledger,
        Key=place,
        UpdateExpression="SET #row = :broken",
        ExpressionAttributeNames={"#row": "row"},
        ExpressionAttributeValues={":broken": {"B": b"\x01\x02\x03"}},
    )
    dead = house.names.dead_letter_queue(QUEUE, Priority.NORMAL)
    scenarios.send_dead_letter(json.dumps({"requestId": f"{job}_a"}))
    house.invoke("health-check", {})
    assert house.blobs("health/")
    house.mappings.call("sqs", "purge_queue", QueueUrl=house.mappings.url(dead))
    house.invoke("health-check", {})
    assert not house.blobs("health/")
    house.mappings.call("dynamodb", "delete_item", TableName=house.names.ledger, Key=place)


def _run_api(scenarios: RareScenarios) -> None:
    """A very large job by the API, and the dead letter that a person forgets."""
    house, key = scenarios.installation, {"x-api-key": create_api_key(scenarios.installation)}

    def asked(method: str, path: str, body: Any = None, code: int = 200) -> Any:
        status, answer = send_request(house, request(method, f"/v1{path}", body, **key))
        assert status == code, answer
        return answer

    asked("GET", "/keys")
    small, large = {"tasks": [make_task(_LONG)]}, {"tasks": [_with_large_input("a")]}
    with scenarios.lose_upload("api"):
        asked("POST", "/jobs", large, 503)
    with scenarios.large_events():
        with scenarios.lose_upload("api"):
            asked("POST", "/jobs", small, 503)
        job = asked("POST", "/jobs", small, 201)["jobId"]
    house.deliver_all()
    first = asked("GET", f"/jobs/{job}/events")["events"][0]
    assert first["properties"]["tasks"][0]["taskId"] == _LONG

    scenarios.send_dead_letter("nobody can read this")
    asked("POST", "/health-check", {})
    assert house.blobs("health/")
    (letter,) = asked("GET", "/dead-letters")["deadLetters"]
    asked("DELETE", f"/dead-letters/{letter['id']}")
    asked("POST", "/health-check", {})
    assert not house.blobs("health/")


def _run_worker(scenarios: RareScenarios) -> None:
    """Attempts that fail, last or leave much, messages that lead nowhere, a worker that died."""
    house, queue = (
        scenarios.installation,
        scenarios.installation.names.queue(QUEUE, Priority.NORMAL),
    )
    # What the scenes before have left is not for this worker.
    house.mappings.call("sqs", "purge_queue", QueueUrl=house.mappings.url(queue))
    # Of more tasks than that, a worker forgets how far the output of the oldest went.
    scenarios.patch.setattr(output_log, "_TASKS_CACHED", 1)
    (house.folder / "workers" / "dead-1.lock").write_text(f"serves {QUEUE}\n")
    house.claim(f"{scenarios.submit('died', make_task('a'))}_a", worker_id="dead-1")
    scenarios.send(queue, "nobody can read this")
    says = [prints("a line\n"), timedelta(milliseconds=60)] * 4
    scripts = {
        "again": Script(ending=fails()),
        "lasts": Script(reports=says),
        "talks": Script(reports=says),
        "result": Script(ending=succeeds(LARGE)),
        "files": Script(files={"artifacts/report": LARGE}),
    }
    asyncio.run(
        _work_with_scripts(scenarios, scripts, ("again", "lasts", "talks", "result"), ("files",))
    )


async def _work_with_scripts(
    scenarios: RareScenarios, scripts: dict[str, Script], *parts: Sequence[str]
) -> None:
    """A worker, as on ECS. In each part one task leaves something large, whose upload vanishes."""
    house = scenarios.installation
    async with AsyncExitStack() as stack:
        with house.as_role(WORKER):
            services = await stack.enter_async_context(lambdas.open_lambda_services())
        with house.as_role(None):
            person = await stack.enter_async_context(lambdas.open_lambda_services())
        runner = FakeRunner(services.backend.clock, folder=house.folder / "attempts")
        for key, script in scripts.items():
            runner.set_scripts(key, script)
        worker = services.worker_with_runner(runner, "worker-1", process_id=1, roll=lambda: 0.5)
        crew = WorkerGroup(
            worker=worker,
            dispatcher=None,
            sweeper=services.sweeper,
            worker_registry=services.worker_registry,
        )
        async with crew:
            for keys in parts:
                with scenarios.lose_upload(WORKER):
                    await _submit_and_wait(person, keys)


async def _submit_and_wait(services: Services, keys: Sequence[str]) -> None:
    """Tasks are submitted, and have ended or wait to be tried again."""
    ids = []
    for key in keys:
        accepted = await services.producer.submit(TENANT, key, {"tasks": [make_task(key)]})
        ids.append(f"{accepted.job.id}_{key}")
    rows = await services.backend.ledger.get_tasks(ids)
    while not all(row.state.terminal or row.attempts_used for row in rows):
        await asyncio.sleep(0.05)
        rows = await services.backend.ledger.get_tasks(ids)
