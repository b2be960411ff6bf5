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
from longshore.core.tasks.states import Priority
from tests.aws.deploy.installation import TIMEOUT_S, DeployedInstallation

LARGE = "x" * 5_000  # beyond what a row holds: it is kept as a blob
_POLL_S = 0.1
_LONG_OUTPUT = "head -c 3000 /dev/zero | tr '\\0' y"
_RESULT = (
    f"""echo '{{"type": "result", "value": "'$({_LONG_OUTPUT})'"}}' >&$LONGSHORE_ATTEMPT_CHANNEL"""
)
ValueT = TypeVar("ValueT")


class ApiClient:
    """The API, by its gateway or by a server."""

    def __init__(self, url: str, key: str, host: str | None = None) -> None:
        self._url = f"{url}/v1"
        self._headers = {"x-api-key": key, **({"host": host} if host else {})}

    def request(
        self, method: str, path: str, body: Any = None, *, codes: tuple[int, ...] = ()
    ) -> Any:
        """The answer; it must tell of success, or have one of these codes."""
        answer = httpx.request(
            method, f"{self._url}{path}", json=body, headers=self._headers, timeout=TIMEOUT_S
        )
        well = answer.is_success or answer.status_code in codes
        assert well, f"{method} {path}: {answer.status_code} {answer.text}"
        is_json = "json" in answer.headers.get("content-type", "")
        return answer.json() if answer.content and is_json else None

    def wait_for_state(self, path: str, *states: str) -> dict[str, Any]:
        """What is there as soon as it is in one of these states."""
        result: dict[str, Any] = wait_until(
            lambda: self.request("GET", path), lambda result: result["status"] in states
        )
        return result


def wait_until(read: Callable[[], ValueT], condition: Callable[[ValueT], bool]) -> ValueT:
    """What is found as soon as it is so; other processes are at work, and nothing tells."""
    ends = time.monotonic() + TIMEOUT_S
    while not condition(result := read()):
        assert time.monotonic() < ends, result
        time.sleep(_POLL_S)  # noqa: TID251
    return result


def command(task: str, script: str, *after: str, name: str = "command") -> dict[str, Any]:
    """A task that runs a script."""
    argv = ["sh", "-ec", script, LARGE]
    return {"taskId": task, "name": name, "input": {"argv": argv}, "dependsOn": [*after]}


@dataclass(kw_only=True)
class Walkthrough:
    """What was done, by name."""

    installation: DeployedInstallation
    api: ApiClient
    key: str
    jobs: dict[str, str] = field(default_factory=dict)

    def submit(self, name: str, *tasks: dict[str, Any]) -> str:
        accepted = self.api.request("POST", "/jobs", {"name": name, "tasks": list(tasks)})
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
        result = here.call("s3", "list_objects_v2", Bucket=self.names.bucket, Prefix=prefix)
        return [item["Key"] for item in result.get("Contents", [])]


def start(installation: DeployedInstallation) -> Walkthrough:
    """With a key, at the API behind its gateway."""
    made = installation.run(
        "keys", "create", "tour", "--scope", "admin", "-o", "json", **installation.stage_variables
    )
    key = json.loads(made)["key"]
    result = re.match(r"https://(\w+)\.", installation.outputs["Api"])
    assert result
    port = installation.endpoint.rpartition(":")[2]
    # The stand-in's gateway goes by the name, which leads to AWS everywhere but here.
    door = ApiClient(installation.endpoint, key, f"{result[1]}.execute-api.localhost:{port}")
    return Walkthrough(installation=installation, api=door, key=key)


def run_jobs(walkthrough: Walkthrough) -> None:
    """Jobs, with a worker that may do what its role may; what it leaves is for the functions."""
    door = walkthrough.api
    door.request("PUT", "/task-definitions/reviewed", {"runner": "command", "requiresReview": True})
    dag = walkthrough.submit(
        "dag",
        command("fetch", f"echo fetched; {_RESULT}; head -c 99999 /dev/urandom | base64"),
        command("count", "wc -c < $LONGSHORE_ATTEMPT_DEPENDENCIES", "fetch"),
        command("keep", "mkdir -p artifacts; echo all is well > artifacts/report"),
    )
    review = walkthrough.submit(
        "review", command("look", "echo look", name="reviewed"), command("after", "true", "look")
    )
    bad = walkthrough.submit("bad", command("fails", "exit 3"))
    with walkthrough.installation.start(
        "worker", **walkthrough.installation.service_variables("worker")
    ):
        slow = walkthrough.submit("slow", command("sleeps", "exec sleep 600"))
        door.wait_for_state(f"/jobs/{slow}/tasks/sleeps", "processing")
        walkthrough.installation.invoke("health-check", {})
        door.request("POST", f"/jobs/{slow}/cancel", {})
        door.wait_for_state(f"/jobs/{slow}", "cancelled")
        assert door.wait_for_state(f"/jobs/{dag}", "completed", "failed")["status"] == "completed"
        door.wait_for_state(f"/jobs/{bad}", "failed")
        door.wait_for_state(f"/jobs/{review}/tasks/look", "in_review")
    door.request("POST", f"/jobs/{review}/tasks/look/approve", {})
    door.wait_for_state(f"/jobs/{review}/tasks/after", "pending")


def read_everything(api: ApiClient, job: str, task: str, *, jobs: str) -> None:
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
        api.request("GET", path)
    for item in api.request("GET", f"{of_task}/artifacts")["artifacts"]:
        api.request("GET", f"{of_task}/artifacts/{item['name']}", codes=(302, 307))
    api.request("GET", "/health-check", codes=(404,))  # nothing has checked yet


def send_operator_commands(walkthrough: Walkthrough) -> None:
    """Whatever can be asked for."""
    review, bad, door = walkthrough.jobs["review"], walkthrough.jobs["bad"], walkthrough.api
    made = door.request("POST", "/keys", {"name": "short", "scopes": ["read"]})
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
        door.request(method, path, body)


def cause_failures(walkthrough: Walkthrough) -> None:
    """What comes seldom: messages that were received too often, records that nobody can read."""
    here, names = walkthrough.installation, walkthrough.names
    dead = names.dead_letter_queue("default", Priority.NORMAL)
    walkthrough.send(dead, "nobody can read this")
    walkthrough.send(dead, json.dumps({"requestId": f"{walkthrough.jobs['review']}_more"}))
    row = here.call("dynamodb", "scan", TableName=names.ledger, Limit=1)["Items"][0]
    # A new item, with what the relay tells of broken.
    here.call(
        "dynamodb",
        "put_item",
        TableName=names.ledger,
        Item={**row, "id": {"S": "task-broken"}, "row": {"B": b"\x01\x02\x03"}},
    )
    here.invoke("sweeper", {})
    here.invoke("health-check-single", {"taskId": f"{walkthrough.jobs['review']}_look"})
    wait_until(lambda: walkthrough.blobs("undelivered/"), bool)
    walkthrough.api.wait_for_state(f"/jobs/{walkthrough.jobs['review']}/tasks/more", "failed")
    wait_until(lambda: walkthrough.blobs("dead/"), bool)


def run_server(walkthrough: Walkthrough) -> None:
    """The server, with what its role may."""
    here = walkthrough.installation
    more = {"LONGSHORE_API_PORT": "0", "LONGSHORE_HEALTH_ENABLED": "false"}
    more |= here.service_variables("server")
    with here.start("up", "--no-worker", **more) as server:
        assert server.stdout is not None
        result = re.search(r"http://[\w.]+:\d+", server.stdout.readline())
        assert result
        read_everything(
            ApiClient(result[0], walkthrough.key), walkthrough.jobs["dag"], "keep", jobs="dag"
        )
