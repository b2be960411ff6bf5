"""Workers die without a word; nothing is lost, nothing completes twice."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from longshore.core.definitions.definition import Definition, Isolation, RunnerKind
from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import JobState, TaskState
from longshore.execution.host.registry import page_path
from longshore.settings import Settings
from longshore.wiring.services import Services, open_services
from tests.acceptance.conftest import WorkerProcess, wait_until
from tests.interfaces.command_line import is_alive

ROOT = Path(__file__).parents[2]
KILLS = 50
# A message that a worker had taken when it was killed, and not yet claimed the task of, is seen
# again after ``extend_by``; by default that is half a minute.
SOON_SEEN_AGAIN = {
    "worker.renew_every": "1s",
    "worker.extend_by": "4s",
    "worker.kill_grace": "1s",
    "worker.skew_margin": "500ms",
}


def make_job(marker_dir: Path, count: int = 1) -> dict:
    """Tasks that note when they begin and end, and wait in between for a word to go on."""
    script = (
        f"echo begin $LONGSHORE_ATTEMPT $$ >> {marker_dir}/$1;"
        f" while [ ! -e {marker_dir}/go-$1 ]; do sleep 0.02; done; echo end >> {marker_dir}/$1"
    )
    return {
        "tasks": [
            {
                "taskId": f"t{number}",
                "name": "command",
                "input": {"argv": ["sh", "-c", script, "sh", f"t{number}"]},
                "maxAttempts": KILLS + 10,
            }
            for number in range(count)
        ]
    }


async def begun(marker_dir: Path, key: str, times: int) -> bool:
    path = marker_dir / key
    return path.exists() and path.read_text().count("begin") >= times


async def row_of(services: Services, job_id: str, key: str) -> TaskRow:
    row = await services.backend.ledger.get_task(f"{job_id}_{key}")
    assert row is not None
    return row


@pytest.mark.timeout(600)
def test_a_worker_killed_in_mid_task_fifty_times_leaves_every_task_completed_once(
    settings: Settings, start_worker: Callable[..., WorkerProcess], tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()

    async def scenario() -> None:
        async with open_services(settings) as services:
            accepted = await services.producer.submit("default", "r", make_job(marks))
            for kill in range(1, KILLS + 1):
                worker = start_worker()
                await wait_until(lambda n=kill: begun(marks, "t0", n))
                worker.kill()
            # The last child must not get the word that is meant for the next.
            last = int((marks / "t0").read_text().split()[-1])
            await wait_until(lambda: gone(last))
            (marks / "go-t0").touch()
            start_worker()
            await wait_until(lambda: ended(services, accepted.job.id))

            row = await row_of(services, accepted.job.id, "t0")
            history = await services.backend.events.history("default", f"TASK#{row.id}")
            types = [event.type for event in history]
            assert row.state is TaskState.COMPLETED
            assert types.count("Task Completed") == 1
            assert types.count("Task Processing Started") == KILLS + 1
            assert [event.sequence for event in history] == list(range(1, len(history) + 1))
            assert (marks / "t0").read_text().count("end") == 1

    asyncio.run(scenario())


async def ended(services: Services, job_id: str) -> bool:
    job = await services.backend.ledger.get_job(job_id)
    return job is not None and job.state.terminal


@pytest.mark.parametrize("hides", [False, True], ids=["in its session", "hidden"])
def test_the_children_of_a_killed_worker_die_with_it(
    settings: Settings,
    start_worker: Callable[..., WorkerProcess],
    tmp_path: Path,
    *,
    hides: bool,
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    script = _HIDE + _NOTE_PID if hides else _NOTE_PID
    function = {"argv": [sys.executable, "-c", script, str(marks / "pid")]}

    async def scenario() -> None:
        async with open_services(settings) as services:
            document = {"tasks": [{"taskId": "a", "name": "command", "input": function}]}
            await services.producer.submit("default", "r", document)
            worker = start_worker()
            await wait_until(lambda: written(marks / "pid"))
            child = int((marks / "pid").read_text())
            assert is_alive(child)

            worker.kill()

            await wait_until(lambda: gone(child))

    asyncio.run(scenario())


# Another session, another parent, no pipe, nothing in its environment.
_HIDE = """
import os, sys, threading
if "hidden" not in sys.argv:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            code = open("/proc/self/cmdline").read().split("\\0")[2]
            os.closerange(0, 100)
            os.execve(sys.executable, [sys.executable, "-c", code, *sys.argv[1:], "hidden"], {})
        os._exit(0)
    threading.Event().wait()
"""
_NOTE_PID = """
import os, sys, threading
path = sys.argv[1]
with open(path + ".draft", "w") as file:
    file.write(str(os.getpid()))
os.rename(path + ".draft", path)
threading.Event().wait()
"""


async def written(path: Path) -> bool:
    return path.exists()


async def gone(process_id: int) -> bool:
    return not is_alive(process_id)


def test_another_worker_takes_over_without_waiting_for_the_lease_to_run_out(
    settings: Settings, start_worker: Callable[..., WorkerProcess], tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()

    async def scenario() -> None:
        async with open_services(settings) as services:
            accepted = await services.producer.submit("default", "r", make_job(marks))
            first = start_worker()
            await wait_until(lambda: begun(marks, "t0", 1))
            claimed = await row_of(services, accepted.job.id, "t0")
            start_worker()

            first.kill()
            await wait_until(lambda: begun(marks, "t0", 2))

            taken = await row_of(services, accepted.job.id, "t0")
            assert claimed.lease is not None
            assert taken.lease is not None
            assert taken.started_at < claimed.lease.expires_at
            assert taken.lease.fence > claimed.lease.fence
            (marks / "go-t0").touch()
            await wait_until(lambda: ended(services, accepted.job.id))

    asyncio.run(scenario())


def test_a_job_whose_worker_dies_between_tasks_goes_on_with_the_next_worker(
    settings: Settings, start_worker: Callable[..., WorkerProcess], tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    document = make_job(marks, 3)
    document["tasks"][1]["dependsOn"] = ["t0"]
    document["tasks"][2]["dependsOn"] = ["t1"]

    async def scenario() -> None:
        async with open_services(settings) as services:
            accepted = await services.producer.submit("default", "r", document)
            for key in ("t0", "t1", "t2"):
                worker = start_worker(**SOON_SEEN_AGAIN)
                (marks / f"go-{key}").touch()
                await wait_until(lambda key=key: completed(services, accepted.job.id, key))
                worker.kill()
            start_worker(**SOON_SEEN_AGAIN)
            await wait_until(lambda: ended(services, accepted.job.id))

            job = await services.backend.ledger.get_job(accepted.job.id)
            assert job is not None
            assert job.state is JobState.COMPLETED
            for key in ("t0", "t1", "t2"):
                assert (marks / key).read_text().count("end") == 1

    asyncio.run(scenario())


async def completed(services: Services, job_id: str, key: str) -> bool:
    return (await row_of(services, job_id, key)).state is TaskState.COMPLETED


def test_only_what_a_killed_worker_had_begun_uses_an_attempt(
    settings: Settings, start_worker: Callable[..., WorkerProcess], tmp_path: Path
) -> None:
    function = "tests.acceptance.attempt_tasks:kills_a_worker"

    def make_tasks(prefix: str) -> dict:
        keys = [f"{prefix}{number}" for number in range(20)]
        calls = {key: {"function": function, "args": [str(tmp_path), key]} for key in keys}
        return {
            "tasks": [{"taskId": key, "name": "short", "input": calls[key]} for key in keys],
        }

    async def scenario() -> None:
        async with open_services(settings) as services:
            definition = Definition(
                name="short",
                runner=RunnerKind.PYTHON,
                isolation=Isolation.POOL,
                options={"path": [str(ROOT)]},
                overridable=("function",),
            )
            await services.backend.definitions.put("default", definition)
            first = await services.producer.submit("default", "first", make_tasks("a"))
            worker = start_worker(**{"worker.concurrency": 1})
            await wait_until(lambda: ended(services, first.job.id))
            draft = tmp_path / "draft"
            draft.write_text(str(worker.process.pid))
            draft.rename(tmp_path / "worker")

            second = await services.producer.submit("default", "second", make_tasks("b"))
            worker.process.wait()
            await wait_until(lambda: is_dead(services, worker.id))
            leased = await services.backend.ledger.leased_tasks(limit=100)
            await services.sweeper.reap_dead_workers()

            rows = [
                await services.backend.ledger.get_task(f"{second.job.id}_b{n}") for n in range(20)
            ]
            used = {row.spec.key for row in rows if row.attempts_used}
            begun = {path.name.removeprefix("begun-") for path in tmp_path.glob("begun-b*")}
            assert len(leased) > 1
            assert used == begun
            assert len(begun) == 1
            assert all(row.state is TaskState.PENDING for row in rows)
            assert not page_path(settings.data_dir, worker.id).exists()

    asyncio.run(scenario())


async def is_dead(services: Services, worker_id: str) -> bool:
    return services.worker_registry.is_dead(worker_id)
