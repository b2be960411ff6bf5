"""Rare situations: crashes half way, very large jobs, uploads that vanish, alerts.

The functions run in this process, in a separate stage, with the permissions of their roles: the
stand-in denies them what no policy allows and records their calls, as in the walkthrough. Here a
test can interrupt them at any call, and lower the limits above which something counts as large.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from longshore.adapters.aws import blobs
from longshore.adapters.aws.client import AwsResponse, CallRefused
from longshore.adapters.aws.names import Names
from longshore.core.dead_letters import DeadLetterFilter
from longshore.core.definitions.definition import Definition, RunnerKind
from longshore.core.documents import job_blob_prefixes
from longshore.core.events.codec import overflow_of
from longshore.core.tasks.commands import Complete, FailTask
from longshore.core.tasks.failures import ErrorCategory, Failure
from longshore.core.tasks.states import Priority
from longshore.errors import BackendUnavailable
from longshore.ports.output import OutputChunk, Stream
from longshore.services import retention, spill
from longshore.services.retention import JobRetention
from longshore.services.sweeper import Sweeper
from longshore.services.worker.group import WorkerGroup
from longshore.testing.fake_runner import FakeRunner, Script, fails, prints, succeeds
from longshore.wiring import lambdas
from longshore.wiring import services as wired_services
from longshore.wiring.services import Intervals, Services
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

NAMES = Names(stage="rare", bucket="longshore-rare-blobs")
ROLES = ("dispatcher", "sweeper", "health-check", "api", WORKER)
"""The roles that act; a person does everything else."""
LARGE = "x" * 1_100  # beyond what a row holds
_LONG = "k" * 120  # nine tasks of such names make a graph that a row does not hold
_PART_BYTES = blobs.PART_BYTES
_NO_TIME = timedelta(0)
_TICK = timedelta(milliseconds=1)
_SECRET = "the-secret-that-signs-what-is-sent-0123456789"


class ProcessDied(Exception):
    """Simulates the death of the process."""


@dataclass(frozen=True)
class RareScenarios:
    """The installation in which the scenarios run."""

    installation: FunctionInstallation
    patch: pytest.MonkeyPatch

    def crash_midway(self, work: Callable[[Services], Awaitable[Any]]) -> None:
        """Run some work whose process dies after it has written its first row."""
        self.installation.run(lambda _: asyncio.sleep(0))
        client = self.installation.client_by_role[None]

        async def dies(call: Call) -> AwsResponse:
            raise ProcessDied

        async def last(call: Call) -> AwsResponse:
            client.inject("update_item", dies)
            return await call()

        client.inject("update_item", last)
        with pytest.raises(ProcessDied):
            self.installation.run(work)

    @contextmanager
    def lose_upload(self, role: str) -> Iterator[None]:
        """A role uploads its next blob in parts, and the parts are gone before they are joined."""

        async def gone(call: Call) -> AwsResponse:
            self.patch.setattr(blobs, "PART_BYTES", _PART_BYTES)
            raise CallRefused("NoSuchUpload", {})

        client = self.installation.client_by_role[role]
        before = client.count("abort_multipart_upload")
        client.inject("complete_multipart_upload", gone)
        # S3 refuses to join parts as small as this, but is never asked to.
        self.patch.setattr(blobs, "PART_BYTES", 200)
        yield
        assert client.count("abort_multipart_upload") == before + 1

    @contextmanager
    def large_events(self) -> Iterator[None]:
        """Treat events as large, like those of jobs with thousands of tasks."""
        with self.patch.context() as here:
            here.setattr(spill, "overflow_of", partial(overflow_of, limit=0))
            yield

    def send(self, queue: str, body: str) -> None:
        mappings = self.installation.mappings
        mappings.call("sqs", "send_message", QueueUrl=mappings.url(queue), MessageBody=body)

    def send_dead_letter(self, body: str) -> None:
        """Send a message to the dead-letter queue, as SQS does after too many receives."""
        self.send(self.installation.names.dead_letter_queue(QUEUE, Priority.NORMAL), body)

    def fail(self, task_id: str) -> None:
        """Let a task fail, without delivering the event."""
        why = Failure(category=ErrorCategory.NETWORK, message="broke")
        command = FailTask(failure=why, source="dlq", margin=_NO_TIME)
        self.installation.run(lambda all_: all_.transitions.apply_to_task(task_id, command))

    def complete(self, task_id: str) -> None:
        """Complete a task, without delivering the event."""
        row = self.installation.claim(task_id)
        assert row.lease is not None
        command = Complete(fence=row.lease.fence, result=None, duration=_NO_TIME)
        self.installation.run(lambda all_: all_.transitions.apply_to_task(task_id, command))

    def submit(self, name: str, *tasks: dict[str, Any]) -> str:
        return self.installation.submit(*tasks, request_id=name).job.id


def run_rare_scenarios(deployed: DeployedInstallation, folder: Path) -> None:
    """Run each scenario once."""
    alert_server = Server()
    with pytest.MonkeyPatch.context() as patch, alert_server.running():
        credentials = asyncio.run(_prepare(deployed, alert_server.url))
        patch.setenv("LONGSHORE_WORKER_RENEW_EVERY", "100ms")
        with installation_on(
            deployed.client_options(), NAMES, folder / "rare", patch, credentials
        ) as installation:
            for scenario in (
                _run_dispatcher,
                _run_sweeper,
                _run_health_check,
                _run_api,
                _run_worker,
                _run_retention,
            ):
                scenario(RareScenarios(installation, patch))
    assert alert_server.received


async def _prepare(deployed: DeployedInstallation, alert_url: str) -> dict[str, tuple[str, str]]:
    """Create the stage, and return the credentials of its roles."""
    aws, names = deployed.aws(), NAMES
    try:
        await create_resources(aws, names, (QUEUE,), ("history", "dispatcher"))
        await create_undelivered_queue(aws, names)
        for name, value in {"webhook_url": alert_url, "webhook_secrets": _SECRET}.items():
            parameter = f"/longshore/{names.stage}/alerts.{name}"
            await aws.call("ssm", "put_parameter", Name=parameter, Value=value, Type="SecureString")
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
    """Two tasks end: one has a dependent task, the other belongs to a job with a large graph."""
    installation = scenarios.installation
    scenarios.complete(f"{scenarios.submit('moved on', make_task('a'), make_task('b', 'a'))}_a")
    behind = [make_task(f"{_LONG}{number}", "first") for number in range(9)]
    job = scenarios.submit("dispatched", make_task("first"), *behind)
    scenarios.fail(f"{job}_first")
    while installation.mappings.feed_stream(installation.handler("relay")):
        pass
    installation.invoke("dispatcher", {"Records": []})
    queue = installation.names.consumer("dispatcher")
    event = installation.mappings.queue_event(queue)
    with scenarios.large_events():
        with scenarios.lose_upload("dispatcher"):
            assert failed_ids(installation.invoke("dispatcher", event))
        assert failed_ids(installation.invoke("dispatcher", event)) == []
    assert installation.blobs(f"events/{job}/")


@dataclass(slots=True, kw_only=True)
class _SweeperAtOnce(Sweeper):
    """A sweeper without the half minute that it leaves to the dispatcher."""

    settle_after: timedelta = _NO_TIME


def _run_sweeper(scenarios: RareScenarios) -> None:
    """A process dies in the middle of a submission, a cancellation and a dispatch."""
    installation, names = scenarios.installation, scenarios.installation.names
    scenarios.patch.setattr(wired_services, "Sweeper", _SweeperAtOnce)
    installation.invoke("sweeper", {})
    own = Definition(name="own", runner=RunnerKind.COMMAND, overridable=("argv",))
    installation.run(lambda all_: all_.backend.definitions.put(TENANT, own))
    tasks = [_with_large_input(key, name="own") for key in "ab"]
    scenarios.crash_midway(lambda all_: all_.producer.submit(TENANT, "half", {"tasks": tasks}))
    with scenarios.lose_upload("sweeper"), pytest.raises(BackendUnavailable):
        installation.invoke("sweeper", {})
    assert installation.invoke("sweeper", {})["repaired"]["intents_finished"] == 1

    cancelled = scenarios.submit("cancelled", make_task("a"), make_task("b"))
    installation.claim(f"{cancelled}_a")
    scenarios.crash_midway(lambda all_: all_.operator_commands.cancel_job(cancelled, by="test"))
    failed = scenarios.submit(
        "failed", make_task("a"), make_task(f"b{_LONG}"), make_task(f"c{_LONG}")
    )
    scenarios.fail(f"{failed}_a")
    scenarios.send_dead_letter(json.dumps({"requestId": f"{failed}_a"}))
    with scenarios.large_events():
        with scenarios.lose_upload("sweeper"), pytest.raises(BackendUnavailable):
            installation.invoke("sweeper", {})
        installation.invoke("sweeper", {})
    assert installation.blobs(f"events/{failed}/")
    assert installation.mappings.message_count(names.dead_letter_queue(QUEUE, Priority.NORMAL)) == 0


def _run_health_check(scenarios: RareScenarios) -> None:
    """A dead letter of an unreadable row raises an alert, which ends when the letter is gone."""
    installation = scenarios.installation
    installation.run(lambda all_: all_.dead_letters.replay(TENANT, DeadLetterFilter(), by="test"))
    job = scenarios.submit("checked", make_task("a"))
    row_key = {"bucket": {"S": job[-1]}, "id": {"S": f"{job}_a"}}
    installation.mappings.call(
        "dynamodb",
        "update_item",
        TableName=installation.names.ledger,
        Key=row_key,
        UpdateExpression="SET #row = :broken",
        ExpressionAttributeNames={"#row": "row"},
        ExpressionAttributeValues={":broken": {"B": b"\x01\x02\x03"}},
    )
    dead = installation.names.dead_letter_queue(QUEUE, Priority.NORMAL)
    scenarios.send_dead_letter(json.dumps({"requestId": f"{job}_a"}))
    installation.invoke("health-check", {})
    assert installation.blobs("health/")
    installation.mappings.call("sqs", "purge_queue", QueueUrl=installation.mappings.url(dead))
    installation.invoke("health-check", {})
    assert not installation.blobs("health/")
    installation.mappings.call(
        "dynamodb", "delete_item", TableName=installation.names.ledger, Key=row_key
    )


def _run_api(scenarios: RareScenarios) -> None:
    """A very large job is submitted by the API, and a person discards a dead letter."""
    installation = scenarios.installation
    key = {"x-api-key": create_api_key(installation)}

    def call_api(method: str, path: str, body: Any = None, code: int = 200) -> Any:
        status, answer = send_request(installation, request(method, f"/v1{path}", body, **key))
        assert status == code, answer
        return answer

    call_api("GET", "/keys")
    small, large = {"tasks": [make_task(_LONG)]}, {"tasks": [_with_large_input("a")]}
    with scenarios.lose_upload("api"):
        call_api("POST", "/jobs", large, 503)
    with scenarios.large_events():
        with scenarios.lose_upload("api"):
            call_api("POST", "/jobs", small, 503)
        job = call_api("POST", "/jobs", small, 201)["jobId"]
    installation.deliver_all()
    first = call_api("GET", f"/jobs/{job}/events")["events"][0]
    assert first["properties"]["tasks"][0]["taskId"] == _LONG

    scenarios.send_dead_letter("not a task message")
    call_api("POST", "/health-check", {})
    assert installation.blobs("health/")
    (letter,) = call_api("GET", "/dead-letters")["deadLetters"]
    call_api("DELETE", f"/dead-letters/{letter['id']}")
    call_api("POST", "/health-check", {})
    assert not installation.blobs("health/")


def _run_worker(scenarios: RareScenarios) -> None:
    """Failed, long and large attempts, messages without a task, and a worker that died."""
    installation = scenarios.installation
    queue = installation.names.queue(QUEUE, Priority.NORMAL)
    # The worker must not take messages of the previous scenarios.
    installation.mappings.call("sqs", "purge_queue", QueueUrl=installation.mappings.url(queue))
    workers = installation.folder / "workers"
    workers.mkdir(parents=True, exist_ok=True)
    (workers / "dead-1.lock").write_text(f"serves {QUEUE}\n")
    installation.claim(f"{scenarios.submit('died', make_task('a'))}_a", worker_id="dead-1")
    scenarios.send(queue, "not a task message")
    reports = [prints("a line\n"), timedelta(milliseconds=60)] * 4
    scripts = {
        "again": Script(ending=fails()),
        "lasts": Script(reports=reports),
        "talks": Script(reports=reports),
        "result": Script(ending=succeeds(LARGE)),
        "files": Script(files={"artifacts/report": LARGE}),
    }
    asyncio.run(
        _work_with_scripts(scenarios, scripts, ("again", "lasts", "talks", "result"), ("files",))
    )


def _run_retention(scenarios: RareScenarios) -> None:
    """A job with documents, artifacts, large events and output is removed, then its tombstone."""
    installation = scenarios.installation
    scenarios.patch.setattr(retention, "_SHORTEST_MEMORY", _NO_TIME)
    installation.run(
        lambda all_: JobRetention(backend=all_.backend, keep_for=_TICK).remove_expired()
    )
    for role in ("sweeper", "api"):
        job = scenarios.submit(f"removed by {role}", _with_large_input("a"))
        scenarios.complete(f"{job}_a")
        installation.deliver_all()
        installation.run(partial(_add_parts, job))
        asyncio.run(_remove_as(scenarios, role))
        assert not installation.blobs(f"jobs/{job}/")
        assert installation.run(lambda all_, job=job: all_.backend.ledger.get_job(job)) is None


async def _add_parts(job: str, services: Services) -> None:
    chunk = OutputChunk(
        attempt=1, sequence=1, at=services.now(), stream=Stream.STDOUT, data=b"line"
    )
    await services.backend.output.append(f"{job}_a", [chunk])
    for prefix in job_blob_prefixes(job):
        await services.backend.blobs.put(f"{prefix}part", b"x")


async def _remove_as(scenarios: RareScenarios, role: str) -> None:
    """Remove what has ended, with the permissions of a role."""
    with scenarios.installation.as_role(role):
        opened = lambdas.open_lambda_services()
        async with opened as services:
            job_retention = JobRetention(backend=services.backend, keep_for=_TICK)
            for _ in range(2):
                await asyncio.sleep(2 * _TICK.total_seconds())
                await job_retention.remove_expired()


async def _work_with_scripts(
    scenarios: RareScenarios, scripts: dict[str, Script], *parts: Sequence[str]
) -> None:
    """Run a worker as on ECS. In each part one task produces a large blob whose upload is lost."""
    installation = scenarios.installation
    async with AsyncExitStack() as stack:
        with installation.as_role(WORKER):
            opened = await stack.enter_async_context(lambdas.open_lambda_services())
        services = replace(opened, intervals=Intervals(output_flush=_NO_TIME))
        with installation.as_role(None):
            person = await stack.enter_async_context(lambdas.open_lambda_services())
        runner = FakeRunner(services.backend.clock, folder=installation.folder / "attempts")
        for key, script in scripts.items():
            runner.set_scripts(key, script)
        worker = services.worker_with_runner(runner, "worker-1", process_id=1, roll=lambda: 0.5)
        group = WorkerGroup(
            worker=worker,
            dispatcher=None,
            sweeper=services.sweeper,
        )
        async with group:
            for keys in parts:
                with scenarios.lose_upload(WORKER):
                    await _submit_and_wait(person, keys)


async def _submit_and_wait(services: Services, keys: Sequence[str]) -> None:
    """Submit tasks, and wait until each has ended or waits for a retry."""
    ids = []
    for key in keys:
        accepted = await services.producer.submit(TENANT, key, {"tasks": [make_task(key)]})
        ids.append(f"{accepted.job.id}_{key}")
    rows = await services.backend.ledger.get_tasks(ids)
    while not all(row.state.terminal or row.attempts_used for row in rows):
        await asyncio.sleep(0.05)
        rows = await services.backend.ledger.get_tasks(ids)
