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

from longshore import wiring
from longshore.adapters.aws import blobs, output
from longshore.adapters.aws.calls import Answer, Refused
from longshore.adapters.aws.names import Names
from longshore.core.commands import Complete, FailTask
from longshore.core.definition import Definition, RunnerKind
from longshore.core.failures import ErrorCategory, Failure
from longshore.core.overflow import split
from longshore.core.states import Priority
from longshore.errors import BackendUnavailable
from longshore.services import documents
from longshore.services.crew import Crew
from longshore.services.sweeper import SweeperPolicy
from longshore.testing.runner import FakeRunner, Script, fails, prints, succeeds
from longshore.wiring import Services, functions
from tests.adapters.alerts.server import Server
from tests.aws.backends import provide
from tests.aws.deploy.installation import Installation, user
from tests.aws.deploy.rights import Rights
from tests.aws.functions.asking import a_key, ask, request
from tests.aws.functions.house import (
    QUEUE,
    TENANT,
    WORKER,
    House,
    house_on,
    with_a_queue_for_the_undelivered,
)
from tests.aws.functions.mappings import failed_in
from tests.aws.trouble import Call
from tests.unit.services.stage import a_task

SCENES = Names(stage="scenes", bucket="longshore-scenes-blobs")
ROLES = ("dispatcher", "sweeper", "health-check", "api", WORKER)
"""Who acts; what others do besides, a person does."""
LARGE = "x" * 1_100  # beyond what a row holds
_LONG = "k" * 120  # nine tasks of such names make a graph that a row does not hold
_PART_BYTES = blobs.PART_BYTES
_NO_TIME = timedelta(0)
_SECRET = "the-secret-that-signs-what-is-sent-0123456789"


class Died(Exception):
    """As if the process had."""


@dataclass(frozen=True)
class Stage:
    """Where the scenes are played."""

    house: House
    patch: pytest.MonkeyPatch

    def half(self, work: Callable[[Services], Awaitable[Any]]) -> None:
        """Somebody does something, and dies when the first of its rows is written."""
        house = self.house
        house.do(lambda _: asyncio.sleep(0))
        way = house.ways[None]

        async def dies(call: Call) -> Answer:
            raise Died

        async def last(call: Call) -> Answer:
            way.meet("update_item", dies)
            return await call()

        way.meet("update_item", last)
        with pytest.raises(Died):
            house.do(work)

    @contextmanager
    def upload_vanishes(self, role: str) -> Iterator[None]:
        """The next blob of a role is large, and when its parts are to be joined they are gone."""

        async def gone(call: Call) -> Answer:
            self.patch.setattr(blobs, "PART_BYTES", _PART_BYTES)
            raise Refused("NoSuchUpload", {})

        way = self.house.ways[role]
        before = way.count("abort_multipart_upload")
        way.meet("complete_multipart_upload", gone)
        # S3 does not join parts as small as this, and is not asked to.
        self.patch.setattr(blobs, "PART_BYTES", 200)
        yield
        assert way.count("abort_multipart_upload") == before + 1

    @contextmanager
    def events_are_large(self) -> Iterator[None]:
        """As those of jobs of thousands of tasks are."""
        with self.patch.context() as here:
            here.setattr(documents, "split", partial(split, limit=0))
            yield

    def send(self, queue: str, body: str) -> None:
        mappings = self.house.mappings
        mappings.call("sqs", "send_message", QueueUrl=mappings.url(queue), MessageBody=body)

    def die(self, body: str) -> None:
        """A message was received too often."""
        self.send(self.house.names.dead(QUEUE, Priority.NORMAL), body)

    def fail(self, task_id: str) -> None:
        """A task fails, and nobody has heard of it yet."""
        why = Failure(category=ErrorCategory.NETWORK, message="broke")
        command = FailTask(failure=why, source="dlq", margin=_NO_TIME)
        self.house.do(lambda all_: all_.transitions.task(task_id, command))

    def complete(self, task_id: str) -> None:
        """A task completes, and nobody has heard of it yet."""
        row = self.house.claim(task_id)
        assert row.lease is not None
        command = Complete(fence=row.lease.fence, result=None, duration=_NO_TIME)
        self.house.do(lambda all_: all_.transitions.task(task_id, command))

    def submit(self, name: str, *tasks: dict[str, Any]) -> str:
        return self.house.submit(*tasks, request_id=name).job.id


def play_scenes(here: Installation, folder: Path) -> None:
    """All scenes, once."""
    people = Server()
    with pytest.MonkeyPatch.context() as patch, people.running():
        credentials = asyncio.run(_build(here, people.url))
        for name, value in {"OUTPUT_FLUSH": "0s", "RENEW_EVERY": "100ms"}.items():
            patch.setenv(f"LONGSHORE_WORKER_{name}", value)
        with house_on(here.place(), SCENES, folder / "scenes", patch, credentials) as house:
            for scene in (_dispatching, _sweeping, _checking, _asking, _working):
                scene(Stage(house, patch))
    assert people.received


async def _build(here: Installation, people: str) -> dict[str, tuple[str, str]]:
    """The stage; credentials of those who act there."""
    aws, names = here.aws(), SCENES
    try:
        await provide(aws, names, (QUEUE,), ("history", "dispatcher"))
        await with_a_queue_for_the_undelivered(aws, names)
        for name, value in {"webhook_url": people, "webhook_secrets": _SECRET}.items():
            place = f"/longshore/{names.stage}/alerts.{name}"
            await aws.call("ssm", "put_parameter", Name=place, Value=value, Type="SecureString")
        policies = {role: Rights.of(names).policy_of(role) for role in ROLES}
        return {
            role: await user(aws, f"{names.stage}-{role}", one) for role, one in policies.items()
        }
    finally:
        await aws.close()


def _with_large_input(key: str, **more: str) -> dict[str, Any]:
    return a_task(key, input={"argv": ["true", LARGE]}, **more)


def _dispatching(stage: Stage) -> None:
    """Tasks end: one that another waits for, and one of a job whose graph and end are large."""
    house = stage.house
    stage.complete(f"{stage.submit('moved on', a_task('a'), a_task('b', 'a'))}_a")
    behind = [a_task(f"{_LONG}{number}", "first") for number in range(9)]
    job = stage.submit("dispatched", a_task("first"), *behind)
    stage.fail(f"{job}_first")
    while house.mappings.feed_stream(house.handler("relay")):
        pass
    house.invoke("dispatcher", {"Records": []})
    queue = house.names.consumer("dispatcher")
    event = house.mappings.queue_event(queue)
    with stage.events_are_large():
        with stage.upload_vanishes("dispatcher"):
            assert failed_in(house.invoke("dispatcher", event))
        assert failed_in(house.invoke("dispatcher", event)) == []
    assert house.blobs(f"events/{job}/")


def _sweeping(stage: Stage) -> None:
    """Whoever submits, cancels or dispatches dies in the middle of it."""
    house, names = stage.house, stage.house.names
    # Not half a minute later, in which a dispatcher might still have done it by itself.
    stage.patch.setattr(wiring, "SweeperPolicy", partial(SweeperPolicy, settle_after=_NO_TIME))
    house.invoke("sweeper", {})
    own = Definition(name="own", runner=RunnerKind.COMMAND)
    house.do(lambda all_: all_.backend.definitions.put(TENANT, own))
    tasks = [_with_large_input(key, name="own") for key in "ab"]
    stage.half(lambda all_: all_.producer.submit(TENANT, "half", {"tasks": tasks}))
    with stage.upload_vanishes("sweeper"), pytest.raises(BackendUnavailable):
        house.invoke("sweeper", {})
    assert house.invoke("sweeper", {})["repaired"]["intents_finished"] == 1

    held = stage.submit("held", a_task("a"), a_task("b"))
    house.claim(f"{held}_a")
    stage.half(lambda all_: all_.cancelling.cancel(held, by="test"))
    failed = stage.submit("failed", a_task("a"), a_task(f"b{_LONG}"), a_task(f"c{_LONG}"))
    stage.fail(f"{failed}_a")
    stage.die(json.dumps({"requestId": f"{failed}_a"}))
    with stage.events_are_large():
        with stage.upload_vanishes("sweeper"), pytest.raises(BackendUnavailable):
            house.invoke("sweeper", {})
        house.invoke("sweeper", {})
    assert house.blobs(f"events/{failed}/")
    assert house.mappings.waiting(names.dead(QUEUE, Priority.NORMAL)) == 0


def _checking(stage: Stage) -> None:
    """A dead letter of a row that cannot be read: people are told of it, until it is gone."""
    house = stage.house
    house.do(lambda all_: all_.dead_letters.replay_matching(TENANT, by="test"))
    job = stage.submit("checked", a_task("a"))
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
    dead = house.names.dead(QUEUE, Priority.NORMAL)
    stage.die(json.dumps({"requestId": f"{job}_a"}))
    house.invoke("health_check", {})
    assert house.blobs("health/")
    house.mappings.call("sqs", "purge_queue", QueueUrl=house.mappings.url(dead))
    house.invoke("health_check", {})
    assert not house.blobs("health/")
    house.mappings.call("dynamodb", "delete_item", TableName=house.names.ledger, Key=place)


def _asking(stage: Stage) -> None:
    """A very large job by the API, and the dead letter that a person forgets."""
    house, key = stage.house, {"x-api-key": a_key(stage.house)}

    def asked(method: str, path: str, body: Any = None, code: int = 200) -> Any:
        status, answer = ask(house, request(method, f"/v1{path}", body, **key))
        assert status == code, answer
        return answer

    asked("GET", "/keys")
    small, large = {"tasks": [a_task(_LONG)]}, {"tasks": [_with_large_input("a")]}
    with stage.upload_vanishes("api"):
        asked("POST", "/jobs", large, 503)
    with stage.events_are_large():
        with stage.upload_vanishes("api"):
            asked("POST", "/jobs", small, 503)
        job = asked("POST", "/jobs", small, 201)["jobId"]
    house.tell_all()
    first = asked("GET", f"/jobs/{job}/events")["events"][0]
    assert first["properties"]["tasks"][0]["taskId"] == _LONG

    stage.die("nobody can read this")
    asked("POST", "/health-check", {})
    assert house.blobs("health/")
    (letter,) = asked("GET", "/dead-letters")["deadLetters"]
    asked("DELETE", f"/dead-letters/{letter['id']}")
    asked("POST", "/health-check", {})
    assert not house.blobs("health/")


def _working(stage: Stage) -> None:
    """Attempts that fail, last or leave much, messages that lead nowhere, a worker that died."""
    house, queue = stage.house, stage.house.names.queue(QUEUE, Priority.NORMAL)
    # What the scenes before have left is not for this worker.
    house.mappings.call("sqs", "purge_queue", QueueUrl=house.mappings.url(queue))
    # Of more tasks than that, a worker forgets how far the output of the oldest went.
    stage.patch.setattr(output, "_TASKS_KNOWN", 1)
    (house.folder / "workers" / "dead-1.lock").write_text(f"serves {QUEUE}\n")
    house.claim(f"{stage.submit('died', a_task('a'))}_a", by="dead-1")
    stage.send(queue, "nobody can read this")
    says = [prints("a line\n"), timedelta(milliseconds=60)] * 4
    scripts = {
        "again": Script(ending=fails()),
        "lasts": Script(says=says),
        "talks": Script(says=says),
        "result": Script(ending=succeeds(LARGE)),
        "files": Script(leaves={"artifacts/report": LARGE}),
    }
    asyncio.run(_work(stage, scripts, ("again", "lasts", "talks", "result"), ("files",)))


async def _work(stage: Stage, scripts: dict[str, Script], *parts: Sequence[str]) -> None:
    """A worker, as on ECS. In each part one task leaves something large, whose upload vanishes."""
    house = stage.house
    async with AsyncExitStack() as stack:
        with house.acting(WORKER):
            services = (await stack.enter_async_context(functions.wired())).services
        with house.acting(None):
            person = (await stack.enter_async_context(functions.wired())).services
        runner = FakeRunner(services.backend.clock, folder=house.folder / "attempts")
        for key, script in scripts.items():
            runner.plays(key, script)
        worker = services.worker_with(runner, "worker-1", process_id=1, roll=lambda: 0.5)
        crew = Crew(
            worker=worker, dispatcher=None, sweeper=services.sweeper, presence=services.presence
        )
        async with crew:
            for keys in parts:
                with stage.upload_vanishes(WORKER):
                    await _tried(person, keys)


async def _tried(person: Services, keys: Sequence[str]) -> None:
    """Tasks are submitted, and have ended or wait to be tried again."""
    ids = []
    for key in keys:
        accepted = await person.producer.submit(TENANT, key, {"tasks": [a_task(key)]})
        ids.append(f"{accepted.job.id}_{key}")
    rows = await person.backend.ledger.tasks(ids)
    while not all(row.state.terminal or row.attempts_used for row in rows):
        await asyncio.sleep(0.05)
        rows = await person.backend.ledger.tasks(ids)
