"""A supervisor and its workers as real processes: they die, drain and are replaced."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import TaskState
from longshore.settings import Settings
from longshore.wiring.services import Services, open_services
from tests.acceptance.conftest import wait_until
from tests.acceptance.supervisor_process import SupervisorProcess, alive, wait_until_gone

Supervise = Callable[..., SupervisorProcess]
QUICKLY = {"supervisor_restart_delay": "50ms"}


@pytest.fixture
def supervise(settings: Settings) -> Iterator[Supervise]:
    started = []

    def start(*options: str, **environment: str) -> SupervisorProcess:
        supervised = SupervisorProcess(settings.data_dir, *options, **{**QUICKLY, **environment})
        started.append(supervised)
        return supervised

    yield start
    for supervised in started:
        supervised.kill_all()


@pytest.fixture
def marker_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "marker_dir"
    folder.mkdir()
    return folder


def make_job(marker_dir: Path, count: int) -> dict:
    """Tasks that note that they have begun, and wait for a word to go on."""
    script = f"touch {marker_dir}/begun-$1; while [ ! -e {marker_dir}/go ]; do sleep 0.02; done"
    return {
        "tasks": [
            {
                "taskId": f"t{number}",
                "name": "command",
                "input": {"argv": ["sh", "-c", script, "sh", f"t{number}"]},
            }
            for number in range(count)
        ]
    }


async def row_of(services: Services, job_id: str, key: str) -> TaskRow:
    row = await services.backend.ledger.get_task(f"{job_id}_{key}")
    assert row is not None
    return row


async def wait_until_started(marker_dir: Path, *keys: str) -> None:
    async def begun() -> bool:
        return all((marker_dir / f"begun-{key}").exists() for key in keys)

    await wait_until(begun)


async def wait_until_completed(services: Services, job_id: str, key: str) -> TaskRow:
    async def completed() -> TaskRow | None:
        row = await row_of(services, job_id, key)
        return row if row.state is TaskState.COMPLETED else None

    row = await wait_until(completed)
    assert isinstance(row, TaskRow)
    return row


def test_a_killed_worker_is_replaced_and_its_task_is_done_all_the_same(
    settings: Settings, supervise: Supervise, marker_dir: Path
) -> None:
    async def run_scenario() -> None:
        supervised = supervise("--processes", "2")
        await supervised.wait_for_text("serving", 2)
        async with open_services(settings) as services:
            accepted = await services.producer.submit("default", "r", make_job(marker_dir, 1))
            await wait_until_started(marker_dir, "t0")
            row = await row_of(services, accepted.job.id, "t0")
            assert row.lease is not None
            (busy,) = [pid for pid in supervised.process_ids if f"-{pid}-" in row.lease.worker_id]

            os.kill(busy, signal.SIGKILL)

            await supervised.wait_for_record("worker.started", 3)
            (marker_dir / "go").touch()
            await wait_until_completed(services, accepted.job.id, "t0")
        (ended,) = supervised.log_records("worker.ended")
        again = supervised.log_records("worker.started")[-1]
        assert (ended["pid"], ended["code"]) == (busy, -signal.SIGKILL)
        assert again["worker"] == ended["worker"]
        supervised.signal(signal.SIGTERM)
        assert supervised.wait() == 0

    asyncio.run(run_scenario())


def test_the_supervisor_itself_opens_nothing_in_the_data_folder(
    settings: Settings, supervise: Supervise
) -> None:
    async def run_scenario() -> None:
        supervised = supervise("--processes", "1")
        await supervised.wait_for_text("serving")

        def opened_by(process_id: int) -> list[str]:
            result = []
            for link in Path(f"/proc/{process_id}/fd").iterdir():
                with contextlib.suppress(FileNotFoundError):  # closed since it was listed
                    result.append(link.readlink())
            return [file.name for file in result if settings.data_dir in file.parents]

        assert opened_by(supervised.process_ids[0]) != []
        assert opened_by(supervised.process.pid) == []
        supervised.signal(signal.SIGTERM)
        assert supervised.wait() == 0

    asyncio.run(run_scenario())


def test_sigterm_lets_every_worker_finish_what_it_runs_and_take_nothing_new(
    settings: Settings, supervise: Supervise, marker_dir: Path
) -> None:
    async def run_scenario() -> None:
        supervised = supervise("--processes", "2", "--concurrency", "1")
        await supervised.wait_for_text("serving", 2)
        async with open_services(settings) as services:
            accepted = await services.producer.submit("default", "r", make_job(marker_dir, 3))
            await wait_until_started(marker_dir, "t0", "t1")

            supervised.signal(signal.SIGTERM)

            await supervised.wait_for_text("for 1 running task", 2)
            (marker_dir / "go").touch()
            assert supervised.wait() == 0
            rows = [await row_of(services, accepted.job.id, f"t{n}") for n in range(3)]
            assert [row.state for row in rows] == [
                TaskState.COMPLETED,
                TaskState.COMPLETED,
                TaskState.PENDING,
            ]
            assert not any(alive(process_id) for process_id in supervised.process_ids)

    asyncio.run(run_scenario())


def test_a_second_signal_gives_everything_back_at_once(
    settings: Settings, supervise: Supervise, marker_dir: Path
) -> None:
    async def run_scenario() -> None:
        supervised = supervise("--processes", "2", "--concurrency", "1")
        await supervised.wait_for_text("serving", 2)
        async with open_services(settings) as services:
            accepted = await services.producer.submit("default", "r", make_job(marker_dir, 2))
            await wait_until_started(marker_dir, "t0", "t1")
            supervised.signal(signal.SIGTERM)
            await supervised.wait_for_text("for 1 running task", 2)

            supervised.signal(signal.SIGTERM)

            assert supervised.wait() == 128 + signal.SIGTERM
            rows = [await row_of(services, accepted.job.id, f"t{n}") for n in range(2)]
            assert [row.state for row in rows] == [TaskState.PENDING, TaskState.PENDING]
            assert [record["code"] for record in supervised.log_records("worker.ended")] == [
                143,
                143,
            ]

    asyncio.run(run_scenario())


def test_sigkill_of_the_supervisor_leaves_no_worker_and_loses_no_work(
    settings: Settings, supervise: Supervise, marker_dir: Path
) -> None:
    async def run_scenario() -> None:
        supervised = supervise("--processes", "2", "--concurrency", "1")
        await supervised.wait_for_text("serving", 2)
        async with open_services(settings) as services:
            accepted = await services.producer.submit("default", "r", make_job(marker_dir, 1))
            await wait_until_started(marker_dir, "t0")
            row = await row_of(services, accepted.job.id, "t0")
            assert row.lease is not None
            workers = supervised.process_ids
            (busy,) = [pid for pid in workers if f"-{pid}-" in row.lease.worker_id]

            supervised.signal(signal.SIGKILL)
            supervised.process.wait()

            await wait_until_gone([pid for pid in workers if pid != busy])
            assert alive(busy)
            (marker_dir / "go").touch()
            done = await wait_until_completed(services, accepted.job.id, "t0")
            assert done.attempt == 1
            await wait_until_gone(workers)

    asyncio.run(run_scenario())


def test_workers_that_keep_ending_shortly_after_their_start_are_given_up(
    settings: Settings, supervise: Supervise
) -> None:
    settings.data_dir.mkdir()
    (settings.data_dir / "longshore.db").write_bytes(b"this is no database\n" * 500)

    supervised = supervise("--processes", "1", supervisor_restart_limit="2")
    code = supervised.wait()

    assert code == 1
    assert [record["code"] for record in supervised.log_records("worker.ended")] == [5, 5, 5]
    assert (
        supervised.count_lines(
            "gave up: worker 1 exited within 10 s of its start 2 times in a row,"
        )
        == 1
    )
    assert (
        supervised.count_lines("the last time with exit code 5; its last output: longshore: ") == 1
    )


def test_giving_up_one_worker_drains_the_others(
    settings: Settings, supervise: Supervise, marker_dir: Path
) -> None:
    async def run_scenario() -> None:
        supervised = supervise("--processes", "2", supervisor_restart_limit="1")
        await supervised.wait_for_text("serving", 2)
        async with open_services(settings) as services:
            accepted = await services.producer.submit("default", "r", make_job(marker_dir, 1))
            await wait_until_started(marker_dir, "t0")
            row = await row_of(services, accepted.job.id, "t0")
            assert row.lease is not None
            first = supervised.log_records("worker.started")
            (idle,) = [
                item["pid"] for item in first if f"-{item['pid']}-" not in row.lease.worker_id
            ]
            os.kill(idle, signal.SIGKILL)
            await supervised.wait_for_record("worker.started", 3)
            os.kill(supervised.process_ids[-1], signal.SIGKILL)

            await supervised.wait_for_text("for 1 running task")
            (marker_dir / "go").touch()

            assert supervised.wait() == 1
            assert supervised.count_lines("the last time with SIGKILL") == 1
            assert (await row_of(services, accepted.job.id, "t0")).state is TaskState.COMPLETED

    asyncio.run(run_scenario())


def test_sighup_replaces_every_worker_and_disturbs_no_task(
    settings: Settings, supervise: Supervise, marker_dir: Path
) -> None:
    async def run_scenario() -> None:
        supervised = supervise("--processes", "2", "--concurrency", "1")
        await supervised.wait_for_text("serving", 2)
        async with open_services(settings) as services:
            accepted = await services.producer.submit("default", "r", make_job(marker_dir, 2))
            await wait_until_started(marker_dir, "t0", "t1")

            supervised.signal(signal.SIGHUP)

            # The next begins while the old one still runs its task; the second waits its turn.
            await supervised.wait_for_text("serving", 3)
            assert supervised.log_records("worker.ended") == []
            await supervised.wait_for_record("worker.draining")
            assert len(supervised.log_records("worker.draining")) == 1
            (marker_dir / "go").touch()
            await supervised.wait_for_record("worker.ended", 2)
            await supervised.wait_for_text("serving", 4)
            for key in ("t0", "t1"):
                assert (await wait_until_completed(services, accepted.job.id, key)).attempt == 1
        assert [record["worker"] for record in supervised.log_records("worker.started")] == [
            1,
            2,
            1,
            2,
        ]
        supervised.signal(signal.SIGTERM)
        assert supervised.wait() == 0

    asyncio.run(run_scenario())


def test_a_worker_over_the_memory_ceiling_is_replaced_by_draining(supervise: Supervise) -> None:
    async def run_scenario() -> None:
        supervised = supervise("--processes", "1", supervisor_memory_ceiling="1MiB")

        await supervised.wait_for_record("worker.ended")

        draining, ended = (
            supervised.log_records("worker.draining")[0],
            supervised.log_records("worker.ended")[0],
        )
        assert draining["reason"] == "memory"
        assert (ended["pid"], ended["code"]) == (draining["pid"], 0)
        await supervised.wait_for_record("worker.started", 2)
        supervised.signal(signal.SIGTERM)
        assert supervised.wait() == 0

    asyncio.run(run_scenario())


def test_a_ceiling_that_no_worker_can_keep_to_is_given_up(supervise: Supervise) -> None:
    supervised = supervise(
        "--processes", "1", supervisor_memory_ceiling="1MiB", supervisor_restart_limit="1"
    )

    assert supervised.wait() == 1
    assert (
        supervised.count_lines("exceeded 1.0 MB (supervisor.memory_ceiling) soon after its start")
        == 1
    )


def test_a_burst_of_several_workers_ends_when_nothing_is_left(
    settings: Settings, supervise: Supervise, marker_dir: Path
) -> None:
    async def run_scenario() -> None:
        (marker_dir / "go").touch()
        async with open_services(settings) as services:
            accepted = await services.producer.submit("default", "r", make_job(marker_dir, 5))

            supervised = supervise("--processes", "2", "--burst")

            assert supervised.wait() == 0
            assert len(supervised.process_ids) == 2
            job = await services.backend.ledger.get_job(accepted.job.id)
            assert job is not None
            assert len(job.completed) == 5

    asyncio.run(run_scenario())
