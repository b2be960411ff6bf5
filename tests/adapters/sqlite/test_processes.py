"""Several processes on one file: none starves, none gets "locked", and wake-ups arrive."""

import asyncio
import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

from longshore.adapters.sqlite.backend import sqlite_backend
from longshore.adapters.sqlite.database import SqliteOptions
from longshore.adapters.system import SystemClock
from longshore.core.claims import Room
from longshore.ports.task_source import WorkerInstance
from longshore.testing.contracts.samples import commit, new_task
from longshore.testing.contracts.suite import running
from longshore.testing.contracts.task_source import join, source_of

PROCESSES = 4
CALLERS = 8
_HAMMER = """
import asyncio, json, sys
from pathlib import Path
from longshore.adapters.sqlite.database import Database, SqliteOptions
from longshore.adapters.system import SystemClock

folder, name, stop = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
callers = int(sys.argv[4])

def add(connection):
    connection.execute(
        "INSERT INTO meta (name, value) VALUES (?, '1')"
        " ON CONFLICT (name) DO UPDATE SET value = value + 1", (name,))
    connection.execute(
        "INSERT INTO meta (name, value) VALUES ('all', '1')"
        " ON CONFLICT (name) DO UPDATE SET value = value + 1")

async def main():
    database = Database(folder, SystemClock(), SqliteOptions())
    print("ready", flush=True)
    sys.stdin.readline()
    done = 0

    async def caller():
        nonlocal done
        while not stop.exists():
            await database.write(add, durable=False)
            done += 1

    await asyncio.gather(*(caller() for _ in range(callers)))
    await database.close()
    print(json.dumps({"name": name, "done": done}))

asyncio.run(main())
"""


def started(folder: Path, name: str, stop: Path) -> subprocess.Popen:
    process = subprocess.Popen(
        [sys.executable, "-c", _HAMMER, str(folder), name, str(stop), str(CALLERS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    return process


def test_four_processes_that_write_without_pause_all_get_their_turn(tmp_path: Path) -> None:
    folder, stop = tmp_path / "data", tmp_path / "stop"
    processes = [started(folder, f"p{number}", stop) for number in range(PROCESSES)]
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()

    async def until_enough() -> None:
        async with sqlite_backend(folder, SystemClock()) as backend:
            database = backend.ledger._database
            async with asyncio.timeout(60):
                while True:
                    rows = database.point("SELECT value FROM meta WHERE name = 'all'")
                    if rows and int(rows[0][0]) >= 2000:
                        return
                    await asyncio.sleep(0.01)

    asyncio.run(until_enough())
    stop.touch()
    answers = [json.loads(process.communicate(timeout=60)[0]) for process in processes]

    assert [process.returncode for process in processes] == [0] * PROCESSES
    counts = [answer["done"] for answer in answers]
    # They take turns, and a turn commits one change of each caller at most.
    assert min(counts) * CALLERS > max(counts), counts

    async def recorded() -> dict[str, int]:
        async with sqlite_backend(folder, SystemClock()) as backend:
            rows = backend.ledger._database.point("SELECT name, value FROM meta")
            return {name: int(value) for name, value in rows if name[0] in "ap"}

    stored = asyncio.run(recorded())
    assert stored == {**{a["name"]: a["done"] for a in answers}, "all": sum(counts)}


_SEND = """
import asyncio, sys
from pathlib import Path
from longshore.adapters.sqlite.backend import sqlite_backend
from longshore.adapters.system import SystemClock
from longshore.testing.contracts.samples import commit, new_task

async def main():
    async with sqlite_backend(Path(sys.argv[1]), SystemClock()) as backend:
        for number, line in enumerate(sys.stdin):
            task = new_task(line.strip(), number=number, now=backend.clock.now())
            await commit(backend, task)

asyncio.run(main())
"""


def test_a_claim_is_woken_by_a_new_task_of_another_process(tmp_path: Path) -> None:
    # Without polling and without the wake-up, this would wait for an hour and time out.
    options = SqliteOptions(slow_poll=timedelta(hours=1))
    sender = subprocess.Popen(
        [sys.executable, "-c", _SEND, str(tmp_path)], stdin=subprocess.PIPE, text=True
    )

    async def scenario() -> list[str]:
        keys = []
        async with sqlite_backend(tmp_path, SystemClock(), options) as backend:
            source = backend.source
            worker = await source.join(
                WorkerInstance(
                    worker_id="w1",
                    queues=("default",),
                    process_id=1,
                    lease_duration=timedelta(hours=1),
                )
            )
            for number in range(20):
                claiming = asyncio.ensure_future(
                    source.claim(
                        worker,
                        Room(slots=1),
                        turn_id=f"turn-{number:02}",
                        wait=timedelta(hours=1),
                    )
                )
                await asyncio.sleep(0)
                sender.stdin.write(f"task-{number}\n")
                sender.stdin.flush()
                async with asyncio.timeout(30):
                    (task,) = await claiming
                keys.append(task.row.spec.key)
        return keys

    try:
        assert asyncio.run(scenario()) == [f"task-{number}" for number in range(20)]
    finally:
        sender.stdin.close()
        sender.wait(timeout=30)


def test_the_pipes_of_dead_processes_are_removed(tmp_path: Path) -> None:
    dead = subprocess.Popen(
        [sys.executable, "-c", _SEND, str(tmp_path)], stdin=subprocess.PIPE, text=True
    )

    async def scenario() -> None:
        async with sqlite_backend(tmp_path, SystemClock()) as backend:
            async with asyncio.timeout(30):
                while len(list((tmp_path / "wakeups").iterdir())) < 2:
                    await asyncio.sleep(0.01)
            dead.kill()
            dead.wait()

            # A commit wakes other processes only if there is a waiter.
            worker = await join(source_of(backend))
            async with running(worker.claim(wait=timedelta(hours=1))):
                await commit(backend, new_task("x", number=0))

            assert len(list((tmp_path / "wakeups").iterdir())) == 1

    asyncio.run(scenario())
    dead.stdin.close()
