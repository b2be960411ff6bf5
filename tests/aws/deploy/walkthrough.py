"""Uses every feature of an installation once: by its API, its queues and its functions.

The calls of each function are compared with its policy, so every permission has to be used
here.
"""

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx2

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
        """The answer; its status must be a success or one of these codes."""
        answer = httpx2.request(
            method, f"{self._url}{path}", json=body, headers=self._headers, timeout=TIMEOUT_S
        )
        ok = answer.is_success or answer.status_code in codes
        assert ok, f"{method} {path}: {answer.status_code} {answer.text}"
        is_json = "json" in answer.headers.get("content-type", "")
        return answer.json() if answer.content and is_json else None

    def wait_for_state(self, path: str, *states: str) -> dict[str, Any]:
        """The job or task as soon as it is in one of these states."""
        result: dict[str, Any] = wait_until(
            lambda: self.request("GET", path), lambda result: result["status"] in states
        )
        return result


def wait_until(read: Callable[[], ValueT], condition: Callable[[ValueT], bool]) -> ValueT:
    """The first result that meets a condition; other processes work on it, so this polls."""
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
    """An installation, a key for it, and the jobs that were submitted, by name."""

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
        installation = self.installation
        return Names(stage=installation.stage, bucket=installation.outputs["Bucket"])

    def send(self, queue: str, body: str) -> None:
        installation = self.installation
        url = installation.call("sqs", "get_queue_url", QueueName=queue)["QueueUrl"]
        installation.call("sqs", "send_message", QueueUrl=url, MessageBody=body)

    def blobs(self, prefix: str) -> list[str]:
        installation = self.installation
        result = installation.call("s3", "list_objects_v2", Bucket=self.names.bucket, Prefix=prefix)
        return [item["Key"] for item in result.get("Contents", [])]


def start(installation: DeployedInstallation) -> Walkthrough:
    """Create a key, and open the API behind its gateway."""
    output = installation.run(
        *("keys", "create", "walkthrough", "--scope", "admin", "-o", "json"),
        **installation.stage_variables,
    )
    key = json.loads(output)["key"]
    result = re.match(r"https://(\w+)\.", installation.outputs["Api"])
    assert result
    port = installation.endpoint.rpartition(":")[2]
    # The stand-in's gateway chooses the API by the host name, which would resolve to AWS.
    api = ApiClient(installation.endpoint, key, f"{result[1]}.execute-api.localhost:{port}")
    return Walkthrough(installation=installation, api=api, key=key)


def run_jobs(walkthrough: Walkthrough) -> None:
    """Run jobs with a worker that has its role's permissions; the functions do the rest."""
    api = walkthrough.api
    api.request(
        "PUT",
        "/task-definitions/reviewed",
        {"runner": "command", "overridable": ["argv"], "requiresReview": True},
    )
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
        api.wait_for_state(f"/jobs/{slow}/tasks/sleeps", "processing")
        walkthrough.installation.invoke("health-check", {})
        api.request("POST", f"/jobs/{slow}/cancel", {})
        api.wait_for_state(f"/jobs/{slow}", "cancelled")
        assert api.wait_for_state(f"/jobs/{dag}", "completed", "failed")["status"] == "completed"
        api.wait_for_state(f"/jobs/{bad}", "failed")
        api.wait_for_state(f"/jobs/{review}/tasks/look", "in_review")
    api.request("POST", f"/jobs/{review}/tasks/look/approve", {})
    api.wait_for_state(f"/jobs/{review}/tasks/after", "pending")


def read_everything(api: ApiClient, job: str, task: str, *, jobs: str) -> None:
    """Read everything that the API offers."""
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
    """Send every operator command."""
    review, bad, api = walkthrough.jobs["review"], walkthrough.jobs["bad"], walkthrough.api
    created = api.request("POST", "/keys", {"name": "short", "scopes": ["read"]})
    for method, path, body in (
        ("POST", f"/jobs/{review}/tasks", {"tasks": [command("more", "true")]}),
        ("POST", f"/jobs/{review}/cancel", {}),
        ("POST", f"/jobs/{review}/resume", {}),
        ("POST", "/queues/default/pause", {"reason": "walkthrough"}),
        ("POST", "/queues/default/resume", {}),
        ("DELETE", f"/keys/{created['id']}", None),
        ("GET", "/task-definitions/reviewed/versions", None),
        ("DELETE", "/task-definitions/reviewed", None),
        ("POST", "/dead-letters/replay", {"ids": [f"{bad}_fails"]}),
        ("POST", "/health-check", {}),
        ("GET", "/health-check", None),
    ):
        api.request(method, path, body)


def cause_failures(walkthrough: Walkthrough) -> None:
    """Cause rare failures: dead letters, and a stream record that cannot be read."""
    installation, names = walkthrough.installation, walkthrough.names
    dead = names.dead_letter_queue("default", Priority.NORMAL)
    walkthrough.send(dead, "not a task message")
    walkthrough.send(dead, json.dumps({"requestId": f"{walkthrough.jobs['review']}_more"}))
    row = installation.call("dynamodb", "scan", TableName=names.ledger, Limit=1)["Items"][0]
    # A new item, in no index, whose row the relay cannot read.
    installation.call(
        "dynamodb",
        "put_item",
        TableName=names.ledger,
        Item={
            "bucket": row["bucket"],
            "id": {"S": "task-broken"},
            "row": {"B": b"\x01\x02\x03"},
        },
    )
    installation.invoke("sweeper", {})
    installation.invoke("health-check-single", {"taskId": f"{walkthrough.jobs['review']}_look"})
    wait_until(lambda: walkthrough.blobs("undelivered/"), bool)
    walkthrough.api.wait_for_state(f"/jobs/{walkthrough.jobs['review']}/tasks/more", "failed")
    wait_until(lambda: walkthrough.blobs("dead/"), bool)


def run_server(walkthrough: Walkthrough) -> None:
    """Run a server with its role's permissions, and read everything by it."""
    installation = walkthrough.installation
    variables = {"LONGSHORE_API_PORT": "0", "LONGSHORE_HEALTH_ENABLED": "false"}
    variables |= installation.service_variables("server")
    with installation.start("up", "--no-worker", **variables) as server:
        assert server.stdout is not None
        result = re.search(r"http://[\w.]+:\d+", server.stdout.readline())
        assert result
        read_everything(
            ApiClient(result[0], walkthrough.key), walkthrough.jobs["dag"], "keep", jobs="dag"
        )
