"""What AWS has stored is found in order, and what was forged in its tables is not."""

import asyncio
import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from longshore.adapters.aws.attributes import compress_text, decompress_text
from longshore.adapters.aws.client import CallRefused
from longshore.adapters.system import SystemClock
from longshore.audit import dynamo_reader, memory_reader
from longshore.audit.audit import audit
from longshore.audit.store_snapshot import StoreSnapshot
from longshore.audit.vocabulary import job_id_of
from longshore.core.inspection import CheckStatus
from longshore.interfaces.cli.commands.doctor import audit_aws
from longshore.settings import Settings
from longshore.settings.model import AwsSettings
from longshore.testing.clock import FakeClock
from longshore.testing.memory.backend import memory_backend
from tests.audit.dynamo_recording import (
    Forge,
    Item,
    RecordedInstallation,
    record_installation,
    run_some_jobs,
)
from tests.audit.workload import run_open_jobs
from tests.aws.stand_in import REGION, stand_in
from tests.unit.services.harness import TENANT, ServiceHarness, scenario

PIPELINE = job_id_of(TENANT, "pipeline")
TASK = f"{PIPELINE}_b"
ENTITY = f"TASK#{TASK}"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> RecordedInstallation:
    return record_installation(tmp_path_factory.mktemp("aws"))


def test_a_real_history_is_in_order(stored: RecordedInstallation) -> None:
    assert audit(stored.settled) == []
    assert audit(stored.unsettled) == []
    assert stored.audit_forged(lambda _, items: items) == []


@scenario
async def test_aws_gives_the_evidence_that_memory_gives(stored: RecordedInstallation) -> None:
    backend = memory_backend(FakeClock())  # which also takes one change a commit
    await run_some_jobs(ServiceHarness(backend))
    assert _plain(stored.settled) == _plain(memory_reader.read_snapshot(backend, settled=True))
    await run_open_jobs(ServiceHarness(backend))
    assert _plain(stored.unsettled) == _plain(memory_reader.read_snapshot(backend))


def _plain(snapshot: StoreSnapshot) -> dict[str, Any]:
    """Without what may differ: the upper half of fences, and places in an order."""

    def lower(value: Any) -> Any:
        return value & 0xFFFF_FFFF if isinstance(value, int) else value

    tasks = [
        task._replace(
            fence=lower(task.fence),
            lease=task.lease and task.lease._replace(fence=lower(task.lease.fence)),
        )
        for task in snapshot.tasks
    ]
    events = [
        event._replace(
            position=0,
            properties={**event.properties, "fence": lower(event.properties.get("fence"))},
        )
        for event in snapshot.events
    ]
    return {
        "jobs": sorted(snapshot.jobs),
        "tasks": sorted(tasks, key=lambda task: task.id),
        "events": sorted(events, key=lambda event: (event.tenant, event.entity, event.sequence)),
        "output": sorted(snapshot.output),
    }


def forge_event(change: Callable[[Item], list[Item]], sequence: int, entity: str = ENTITY) -> Forge:
    """Change one event of the task; what it becomes is there instead."""

    def forge(table: str, items: list[Item]) -> list[Item]:
        changed: list[Item] = []
        for item in items:
            fits = table == "events" and item["sequence"]["N"] == str(sequence)
            if fits and f"{item['entityType']['S']}#{item['entityId']['S']}" == entity:
                changed += change(item)
            else:
                changed.append(item)
        return changed

    return forge


def forge_row(row_id: str, change: Callable[[Item], object]) -> Forge:
    """Change a row."""

    def forge(table: str, items: list[Item]) -> list[Item]:
        for item in items:
            if table == "ledger" and item["id"]["S"] == row_id:
                change(item)
        return items

    return forge


def forge_body(**fields: Any) -> Callable[[Item], None]:
    def change(item: Item) -> None:
        spec, body, events = decompress_text(item["row"]["B"]).split("\n")
        text = json.dumps({**json.loads(body), **fields})
        item["row"]["B"] = compress_text(f"{spec}\n{text}\n{events}")

    return change


def forge_output(change: Callable[[list[Item]], list[Item]]) -> Forge:
    def forge(table: str, items: list[Item]) -> list[Item]:
        ours = [item for item in items if item.get("task", {}).get("S") == TASK]
        return change(items) if table == "output" and ours and len(ours) == len(items) else items

    return forge


def shift_time(item: Item, **words: Any) -> Item:
    """The same event at another moment, under another key."""
    at = int(item["timestamp"]["N"]) + 1
    copy = deepcopy(item)
    copy["timestamp"] = {"N": str(at)}
    copy["SK"] = {"S": f"TIMESTAMP#{at}#EVENT#{item['eventId']['S']}"}
    copy["properties"]["M"].update(words)
    return copy


def change_properties(**words: Any) -> Callable[[Item], list[Item]]:
    def change(item: Item) -> list[Item]:
        item["properties"]["M"].update(words)
        return [item]

    return change


def change_owner(**parts: str) -> Callable[[Item], list[Item]]:
    def change(item: Item) -> list[Item]:
        item.update({name: {"S": text} for name, text in parts.items()})
        return [item]

    return change


FORGED: dict[str, tuple[int, str, Forge]] = {
    "a lost event": (5, "event 3 is missing from its history", forge_event(lambda _: [], 3)),
    "the last event, which was never relayed": (
        5,
        "event 6 is missing from the end",
        forge_event(lambda _: [], 6),
    ),
    "a sequence that is there twice": (
        5,
        "there are two events 3",
        forge_event(lambda item: [item, shift_time(item)], 3),
    ),
    "a fence that is issued twice": (
        2,
        "is given out after fence",
        forge_event(change_properties(fence={"N": str((1 << 32) + 1)}), 4),
    ),
    "a fence of an epoch to come": (
        2,
        "of an epoch that the store has not seen",
        forge_row(TASK, forge_body(fence=9 << 32)),
    ),
    "an event that says other than its row has": (
        5,
        "event 6 has another properties than its row has",
        forge_event(change_properties(attemptNumber={"N": "1"}), 6),
    ),
    "a row whose state no event has": (
        5,
        "its events add up to state 'completed'",
        forge_row(TASK, forge_body(state="in_review")),
    ),
    "a row that readers think is older": (
        5,
        "it is found by last event 5",
        forge_row(TASK, lambda item: item.update(last={"N": "5"})),
    ),
    "a pending task that the sweeper does not find": (
        5,
        "it is found by state None",
        forge_row(f"{job_id_of(TENANT, 'late')}_a", lambda item: [item.pop("g2"), item.pop("s2")]),
    ),
    "an event under another tenant's key": (
        5,
        "event 2 is found by tenant 'TENANT#other'",
        forge_event(change_owner(PK="TENANT#other"), 2),
    ),
    "an event of another tenant": (
        13,
        "event 2 is 'other''s",
        forge_event(change_owner(PK="TENANT#other", tenantId="other"), 2),
    ),
    "a row in another tenant's listing": (
        5,
        "it is found by tenant ['T', 'other']",
        forge_row(TASK, lambda item: item.update(g1={"S": "T#other#0"})),
    ),
    "a hole in the output": (
        8,
        "is missing from its output",
        forge_output(
            lambda items: [items[0] | {"position": {"S": f"{1:019d}.{2:019d}"}}, *items[1:]]
        ),
    ),
    "output that overlaps": (
        8,
        "is there twice",
        forge_output(lambda items: [*items, items[0] | {"position": {"S": f"{1:019d}.{1:019d}"}}]),
    ),
    "a child that began before its parent ended": (
        6,
        "came before 'a' had completed",
        forge_event(
            lambda item: [
                item | {"timestamp": {"N": str(int(item["timestamp"]["N"]) + 3_600_000)}}
            ],
            5,
            f"TASK#{PIPELINE}_a",
        ),
    ),
    "a task that is gone": (
        1,
        "task 'b' was accepted and is gone",
        lambda _, items: [item for item in items if item.get("id", {}).get("S") != TASK],
    ),
    "events of a job that is gone": (
        5,
        "there is no row of this job",
        lambda table, items: [
            item for item in items if table != "ledger" or not item["id"]["S"].startswith(PIPELINE)
        ],
    ),
    "what cannot be read": (
        5,
        "cannot be understood: its tenant is None",
        forge_row(TASK, lambda item: item.update(row={"B": b"x"})),
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_item_is_found(stored: RecordedInstallation, name: str) -> None:
    invariant, words, forge = FORGED[name]

    violations = stored.audit_forged(forge)

    fitting = [
        violation
        for violation in violations
        if violation.invariant == invariant and words in violation.text
    ]
    assert fitting, "\n".join(map(str, violations)) or "nothing was found"


def test_a_missing_document_is_a_violation(stored: RecordedInstallation) -> None:
    async def call(service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        if service == "s3":
            code = "404" if operation == "head_object" else "NoSuchKey"
            raise CallRefused(code, {})
        return await stored.call(service, operation, **arguments)

    violations = audit(asyncio.run(dynamo_reader.read_snapshot(call, stored.names, pauses=())))

    assert any(
        violation.invariant == 1 and "that is not there" in violation.text
        for violation in violations
    )


def test_a_late_event_is_awaited(stored: RecordedInstallation) -> None:
    looks = 0

    async def call(service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        nonlocal looks
        answer = await stored.call(service, operation, **arguments)
        if arguments.get("ExpressionAttributeValues") == {":k": {"S": ENTITY}}:
            looks += 1
            if looks == 1:
                answer["Items"].pop()
        return answer

    violations = audit(
        asyncio.run(
            dynamo_reader.read_snapshot(
                call, stored.names, taken_at_us=stored.unsettled.taken_at_us, pauses=(0.0,)
            )
        )
    )

    assert (violations, looks) == ([], 2)


def test_a_job_that_changes_all_the_time_is_counted_and_left_out(
    stored: RecordedInstallation,
) -> None:
    looks = 0

    async def call(service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        nonlocal looks
        answer = await stored.call(service, operation, **arguments)
        if arguments.get("ExpressionAttributeValues", {}).get(":id") == {"S": PIPELINE}:
            looks += 1
            answer["Items"][0]["v"] = {"N": str(looks)}
        return answer

    async def pieces() -> list[dynamo_reader.DynamoChunk]:
        walk = dynamo_reader.read_chunks(call, stored.names, pauses=(0.0,))
        return [piece async for piece in walk]

    violations = asyncio.run(pieces())

    assert sum(piece.skipped for piece in violations) == 1
    assert sum(piece.jobs for piece in violations) == len(stored.unsettled.jobs) - 1
    assert not any(audit(piece.snapshot) for piece in violations)


def test_the_doctor_audits_an_installation(
    stored: RecordedInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    suffix = stored.names.ledger.split("-")[1]
    aws = AwsSettings(region=REGION, endpoint_url=stand_in().endpoint, bucket=stored.names.bucket)
    settings = Settings(backend="aws", environment=suffix, aws=aws)

    summary = asyncio.run(audit_aws(settings, SystemClock().elapsed))
    missing = asyncio.run(audit_aws(replace(settings, environment="none"), SystemClock().elapsed))

    assert (summary.findings, summary.unstable_jobs, summary.unreadable) == ([], 0, None)
    assert summary.jobs == len(stored.unsettled.jobs)
    assert summary.events == len(stored.unsettled.events)
    assert "no problems found" in summary.check().detail
    assert missing.check().status is CheckStatus.FAIL
    assert "cannot be read" in missing.check().detail
