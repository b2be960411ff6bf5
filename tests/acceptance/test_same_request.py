"""The same request, from everywhere at once, is one job."""

import asyncio
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from longshore.errors import AlreadyExists
from longshore.settings import Settings, load_settings
from longshore.wiring.services import open_services

DOCUMENT = {"tasks": [{"taskId": "a", "name": "command", "input": {"argv": ["true"]}}]}
_SUBMIT = """
import asyncio, json, sys
from longshore.settings import load_settings
from longshore.wiring.services import open_services

async def main(folder, document, times):
    async with open_services(load_settings({"data_dir": folder})) as services:
        submits = (services.producer.submit("default", "same", document) for _ in range(times))
        for accepted in await asyncio.gather(*submits):
            print(accepted.job.id, accepted.created)

sys.stdin.readline()  # everybody begins together
asyncio.run(main(sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])))
"""
PROCESSES, THREADS, CALLS_PER_PROCESS = 5, 10, 10


async def submit(folder: str) -> tuple[str, bool]:
    async with open_services(load_settings({"data_dir": folder})) as services:
        accepted = await services.producer.submit("default", "same", DOCUMENT)
        return accepted.job.id, accepted.created


def test_a_hundred_submits_at_once_from_threads_and_processes_give_one_job(
    settings: Settings,
) -> None:
    folder = str(settings.data_dir)
    arguments = [
        sys.executable,
        "-c",
        _SUBMIT,
        folder,
        json.dumps(DOCUMENT),
        str(CALLS_PER_PROCESS),
    ]
    processes = [
        subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(PROCESSES)
    ]
    with ThreadPoolExecutor(THREADS) as threads:
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        answers = [
            future.result()
            for future in [threads.submit(asyncio.run, submit(folder)) for _ in range(50)]
        ]
    for process in processes:
        printed, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        for line in printed.splitlines():
            job_id, created = line.split()
            answers.append((job_id, created == "True"))

    async def rows() -> tuple[int, int, int]:
        async with open_services(settings) as services:
            jobs = await services.backend.ledger.list_jobs("default")
            tasks = await services.backend.ledger.list_tasks("default")
            depth = await services.source.depth("default")
            return len(jobs.items), len(tasks.items), depth.ready

    assert len(answers) == 50 + PROCESSES * CALLS_PER_PROCESS
    assert len({job_id for job_id, _ in answers}) == 1
    assert [created for _, created in answers].count(True) == 1
    assert asyncio.run(rows()) == (1, 1, 1)


def test_the_same_request_with_another_body_is_refused_and_changes_nothing(
    settings: Settings,
) -> None:
    other = {"tasks": [{"taskId": "b", "name": "command", "input": {"argv": ["false"]}}]}

    async def scenario() -> None:
        async with open_services(settings) as services:
            await services.producer.submit("default", "same", DOCUMENT)

            with pytest.raises(AlreadyExists):
                await services.producer.submit("default", "same", other)

            tasks = await services.backend.ledger.list_tasks("default")
            assert [task.spec.key for task in tasks.items] == ["a"]

    asyncio.run(scenario())


def test_the_same_request_of_another_tenant_is_another_job(settings: Settings) -> None:
    async def scenario() -> None:
        async with open_services(settings) as services:
            ours = await services.producer.submit("default", "same", DOCUMENT)
            theirs = await services.producer.submit("other", "same", DOCUMENT)

            assert ours.job.id != theirs.job.id
            assert theirs.created

    asyncio.run(scenario())
