"""Everything that an installation can be asked for, once: by its API, its queues, its functions.

What each function calls on the way is compared with what its policy allows, so whatever a function
is allowed has to happen here.
"""

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

from longshore.adapters.aws.names import Names
from longshore.core.states import Priority
from tests.aws.deploy.installation import PATIENCE_S, Installation

LARGE = "x" * 5_000  # beyond what a row holds: it is kept as a blob
_LOOK_EVERY_S = 0.1
_SAYS_MUCH = "head -c 3000 /dev/zero | tr '\\0' y"
_RESULT = (
    f"""echo '{{"type": "result", "value": "'$({_SAYS_MUCH})'"}}' >&$LONGSHORE_ATTEMPT_CHANNEL"""
)
FoundT = TypeVar("FoundT")


class Door:
    """The API, by its gateway or by a server."""

    def __init__(self, url: str, key: str, host: str | None = None) -> None:
        self._url = f"{url}/v1"
        self._headers = {"x-api-key": key, **({"host": host} if host else {})}

    def ask(self, method: str, path: str, body: Any = None, *, codes: tuple[int, ...] = ()) -> Any:
        """The answer; it must tell of success, or have one of these codes."""
        answer = httpx.request(
            method, f"{self._url}{path}", json=body, headers=self._headers, timeout=PATIENCE_S
        )
        well = answer.is_success or answer.status_code in codes
        assert well, f"{method} {path}: {answer.status_code} {answer.text}"
        is_json = "json" in answer.headers.get("content-type", "")
        return answer.json() if answer.content and is_json else None

    def until(self, path: str, *states: str) -> dict[str, Any]:
        """What is there as soon as it is in one of these states."""
        found: dict[str, Any] = until(
            lambda: self.ask("GET", path), lambda found: found["status"] in states
        )
        return found


def until(look: Callable[[], FoundT], is_so: Callable[[FoundT], bool]) -> FoundT:
    """What is found as soon as it is so; other processes are at work, and nothing tells."""
    ends = time.monotonic() + PATIENCE_S
    while not is_so(found := look()):
        assert time.monotonic() < ends, found
        time.sleep(_LOOK_EVERY_S)  # noqa: TID251
    return found


def command(task: str, script: str, *after: str, name: str = "command") -> dict[str, Any]:
    """A task that runs a script."""
    argv = ["sh", "-ec", script, LARGE]
    return {"taskId": task, "name": name, "input": {"argv": argv}, "dependsOn": [*after]}


@dataclass(kw_only=True)
class Tour:
    """What was done, by name."""

    installation: Installation
    door: Door
    key: str
    jobs: dict[str, str] = field(default_factory=dict)

    def submit(self, name: str, *tasks: dict[str, Any]) -> str:
        accepted = self.door.ask("POST", "/jobs", {"name": name, "tasks": list(tasks)})
        self.jobs[name] = str(accepted["jobId"])
        return self.jobs[name]

    @property
    def names(self) -> Names:
        here = self.installation
        return Names(stage=here.stage, bucket=here.outputs["Bucket"])

    def send(self, queue: str, body: str) -> None:
        here = self.installation
        url = here.call("sqs", "get_queue_url", QueueName=queue)["QueueUrl"]
        here.call("sqs", "send_message", QueueUrl=url, MessageBody=body)

    def blobs(self, prefix: str) -> list[str]:
        here = self.installation
        found = here.call("s3", "list_objects_v2", Bucket=self.names.bucket, Prefix=prefix)
        return [one["Key"] for one in found.get("Contents", [])]


def begin(here: Installation) -> Tour:
    """With a key, at the API behind its gateway."""
    made = here.run("keys", "create", "tour", "--scope", "admin", "-o", "json", **here.of_stage)
    key = json.loads(made)["key"]
    found = re.match(r"https://(\w+)\.", here.outputs["Api"])
    assert found
    port = here.endpoint.rpartition(":")[2]
    # The stand-in's gateway goes by the name, which leads to AWS everywhere but here.
    door = Door(here.endpoint, key, f"{found[1]}.execute-api.localhost:{port}")
    return Tour(installation=here, door=door, key=key)


def work(tour: Tour) -> None:
    """Jobs, with a worker that may do what its role may; what it leaves is for the functions."""
    door = tour.door
    door.ask("PUT", "/task-definitions/reviewed", {"runner": "command", "requiresReview": True})
    dag = tour.submit(
        "dag",
        command("fetch", f"echo fetched; {_RESULT}; head -c 99999 /dev/urandom | base64"),
        command("count", "wc -c < $LONGSHORE_ATTEMPT_DEPENDENCIES", "fetch"),
        command("keep", "mkdir -p artifacts; echo all is well > artifacts/report"),
    )
    review = tour.submit(
        "review", command("look", "echo look", name="reviewed"), command("after", "true", "look")
    )
    bad = tour.submit("bad", command("fails", "exit 3"))
    with tour.installation.running("worker", **tour.installation.as_service("worker")):
        slow = tour.submit("slow", command("sleeps", "exec sleep 600"))
        door.until(f"/jobs/{slow}/tasks/sleeps", "processing")
        tour.installation.invoke("health-check", {})
        door.ask("POST", f"/jobs/{slow}/cancel", {})
        door.until(f"/jobs/{slow}", "cancelled")
        assert door.until(f"/jobs/{dag}", "completed", "failed")["status"] == "completed"
        door.until(f"/jobs/{bad}", "failed")
        door.until(f"/jobs/{review}/tasks/look", "in_review")
    door.ask("POST", f"/jobs/{review}/tasks/look/approve", {})
    door.until(f"/jobs/{review}/tasks/after", "pending")


def look(door: Door, job: str, task: str, *, jobs: str) -> None:
    """Whatever can be read."""
    of_task = f"/jobs/{job}/tasks/{task}"
    entity = f"entity=TASK%23{job}_{task}"
    paths = [
        *("/jobs", f"/jobs?name={jobs}", "/jobs?status=completed", f"/ids?prefix={job[:8]}"),
        *(f"/jobs/{job}{rest}" for rest in ("", "/tasks", "/statuses", "/why", "/events")),
        f"/jobs/{job}/output/stream?follow=false",
        *(f"{of_task}{rest}" for rest in ("", "/why", "/result", "/health", "/artifacts")),
        *("/tasks", "/tasks?status=failed", "/events", f"/events?{entity}"),
        *("/dead-letters", "/dead-letters/counts", "/task-definitions", "/queues", "/keys"),
    ]
    for path in paths:
        door.ask("GET", path)
    for one in door.ask("GET", f"{of_task}/artifacts")["artifacts"]:
        door.ask("GET", f"{of_task}/artifacts/{one['name']}", codes=(302, 307))
    door.ask("GET", "/health-check", codes=(404,))  # nothing has checked yet


def wish(tour: Tour) -> None:
    """Whatever can be asked for."""
    review, bad, door = tour.jobs["review"], tour.jobs["bad"], tour.door
    made = door.ask("POST", "/keys", {"name": "short", "scopes": ["read"]})
    for method, path, body in (
        ("POST", f"/jobs/{review}/tasks", {"tasks": [command("more", "true")]}),
        ("POST", f"/jobs/{review}/cancel", {}),
        ("POST", f"/jobs/{review}/resume", {}),
        ("POST", "/queues/default/pause", {"reason": "tour"}),
        ("POST", "/queues/default/resume", {}),
        ("DELETE", f"/keys/{made['id']}", None),
        ("GET", "/task-definitions/reviewed/versions", None),
        ("DELETE", "/task-definitions/reviewed", None),
        ("POST", "/dead-letters/replay", {"ids": [f"{bad}_fails"]}),
        ("POST", "/health-check", {}),
        ("GET", "/health-check", None),
    ):
        door.ask(method, path, body)


def go_wrong(tour: Tour) -> None:
    """What comes seldom: messages that were received too often, records that nobody can read."""
    here, names = tour.installation, tour.names
    dead = names.dead("default", Priority.NORMAL)
    tour.send(dead, "nobody can read this")
    tour.send(dead, json.dumps({"requestId": f"{tour.jobs['review']}_more"}))
    row = here.call("dynamodb", "scan", TableName=names.ledger, Limit=1)["Items"][0]
    # A new item, with what the relay tells of broken.
    here.call(
        "dynamodb",
        "put_item",
        TableName=names.ledger,
        Item={**row, "id": {"S": "task-broken"}, "row": {"B": b"\x01\x02\x03"}},
    )
    here.invoke("sweeper", {})
    here.invoke("health-check-single", {"taskId": f"{tour.jobs['review']}_look"})
    until(lambda: tour.blobs("undelivered/"), bool)
    tour.door.until(f"/jobs/{tour.jobs['review']}/tasks/more", "failed")
    until(lambda: tour.blobs("dead/"), bool)


def serve(tour: Tour) -> None:
    """The server, with what its role may."""
    here = tour.installation
    more = {"LONGSHORE_API_PORT": "0", "LONGSHORE_HEALTH_ENABLED": "false"}
    more |= here.as_service("server")
    with here.running("up", "--no-worker", **more) as server:
        assert server.stdout is not None
        found = re.search(r"http://[\w.]+:\d+", server.stdout.readline())
        assert found
        look(Door(found[0], tour.key), tour.jobs["dag"], "keep", jobs="dag")
