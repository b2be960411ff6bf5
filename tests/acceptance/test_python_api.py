"""What a user writes in Python, run by real workers in real children."""

import asyncio
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

import longshore
from longshore.core.tasks.states import JobState, TaskState
from longshore.errors import TaskCancelledError, TaskFailedError
from longshore.settings import Settings
from tests.acceptance.api_tasks import (
    NOON,
    forked_opens,
    in_steps,
    needing,
    noting,
    opens,
    pooled,
    pooled_opens,
    spawned,
    spawned_opens,
    urls,
    visit,
    waiting,
)
from tests.acceptance.conftest import TIMEOUT_S, WorkerProcess, wait_until

SCRIPT = """
import longshore

@longshore.task
def shout(word: str) -> str:
    return word.upper()

if __name__ == "__main__":
    print(longshore.run(shout.of("ahoy")))
"""


@pytest.fixture
def folder(settings: Settings) -> Path:
    return settings.data_dir


def test_values_keep_their_types_from_the_program_through_two_children_and_back(
    folder: Path,
) -> None:
    with longshore.Client(folder, worker=True) as client:
        visits = [visit.of(url, NOON) for url in ("a", "b")]
        job = client.submit(urls.of(visits))

        assert job.result(timeout=TIMEOUT_S) == dict.fromkeys("ab", NOON + timedelta(days=1))
        first, second = (job.result(item) for item in visits)
        assert len({first.process, second.process, os.getpid()}) == 3
        assert job.results() == {"visit-1": first, "visit-2": second, "urls": job.result()}
        assert "".join(piece.text for piece in job.output("visit-2")) == "visiting b\n"


@pytest.mark.parametrize("task", [spawned, pooled], ids=["spawn", "pool"])
def test_a_typed_task_runs_in_every_kind_of_child(task: object, folder: Path) -> None:
    assert longshore.run(task.of(task.of(1)), data_dir=folder) == 3


@pytest.mark.parametrize(
    "task", [forked_opens, pooled_opens, spawned_opens], ids=["fork", "pool", "spawn"]
)
def test_a_store_that_is_not_named_is_refused_inside_a_task(task: object, folder: Path) -> None:
    assert longshore.run(task.of(), data_dir=folder) == []


def test_a_store_that_is_named_can_be_used_inside_a_task(folder: Path, tmp_path: Path) -> None:
    assert longshore.run(opens.of(tmp_path / "other"), data_dir=folder) == 1


def test_output_is_seen_while_the_task_runs_and_ends_with_the_job(
    folder: Path, tmp_path: Path
) -> None:
    with longshore.Client(folder, worker=True) as client:
        job = client.submit(waiting.of(tmp_path))
        seen = []
        for piece in job.output():
            seen.append((piece.key, piece.attempt, piece.stream.value, piece.text))
            assert job.status().tasks["waiting"].state is TaskState.PROCESSING
            (tmp_path / "go").touch()

        assert seen == [("waiting", 1, "stdout", "waiting\n")]
        assert job.wait(timeout=TIMEOUT_S) is JobState.COMPLETED


def test_a_failure_names_the_task_the_reason_and_where_to_look(
    folder: Path, tmp_path: Path
) -> None:
    with longshore.Client(folder, worker=True) as client:
        read = needing.of(tmp_path / "missing").with_options(key="read")
        job = client.submit(needing.of(read))

        with pytest.raises(TaskFailedError) as failed:
            job.result(timeout=TIMEOUT_S)

    assert failed.value.task_id == f"{job.id}_read"
    assert failed.value.category == "not-found"
    assert "missing" in failed.value.message
    _, *arguments = shlex.split(failed.value.inspect_command)
    shown = subprocess.run(
        [sys.executable, "-m", "longshore", *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    assert "FileNotFoundError" in shown.stdout + shown.stderr


def test_input_that_does_not_fit_is_refused_in_the_child_too(folder: Path) -> None:
    with longshore.Client(folder, worker=True) as client:
        client.submit(spawned.of(1)).wait(timeout=TIMEOUT_S)
        task = {"taskId": "a", "name": spawned.name, "input": {"kwargs": {"number": "many"}}}
        job = client.submit({"tasks": [task]})

        with pytest.raises(
            TaskFailedError, match="number: Input should be a valid integer"
        ) as failed:
            job.result(timeout=TIMEOUT_S)

    assert failed.value.category == "validation"


def test_a_failed_job_goes_on_after_a_resume_and_does_not_repeat_what_completed(
    folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    with longshore.Client(folder, worker=True) as client:
        note = noting.of(tmp_path)
        read = needing.of(file).with_options(after=[note])
        job = client.submit(read)
        assert job.wait(timeout=TIMEOUT_S) is JobState.FAILED

        file.write_text("now it is here")
        assert job.resume(read) == ["needing"]

        assert job.result(timeout=TIMEOUT_S) == "now it is here"
        assert job.result(note) == 1
        assert (tmp_path / "notes").read_text() == "x"
        assert job.status().round == 2


def test_cancelling_kills_what_runs(folder: Path, tmp_path: Path) -> None:
    with longshore.Client(folder, worker=True) as client:
        job = client.submit(noting.of(tmp_path).with_options(after=[waiting.of(tmp_path)]))
        next(job.output())

        job.cancel("enough")

        assert job.wait(timeout=TIMEOUT_S) is JobState.CANCELLED
        with pytest.raises(TaskCancelledError):
            job.result()
    (child,) = (int(path.name.removeprefix("pid-")) for path in tmp_path.glob("pid-*"))
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    assert not (tmp_path / "notes").exists()


def test_the_same_request_is_run_once_and_answered_again(folder: Path, tmp_path: Path) -> None:
    first = longshore.run(noting.of(tmp_path), data_dir=folder, request_id="once")
    again = longshore.run(noting.of(tmp_path), data_dir=folder, request_id="once")

    assert first == again == 1
    assert longshore.run(noting.of(tmp_path), data_dir=folder) == 2


def test_running_here_raises_what_went_wrong(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(TaskFailedError, match="not-found"):
        longshore.run([noting.of(tmp_path), needing.of(tmp_path / "missing")], data_dir=folder)


def test_a_job_goes_on_without_its_client(
    folder: Path, tmp_path: Path, start_worker: Callable[..., WorkerProcess]
) -> None:
    with longshore.Client(folder) as client:
        job = client.submit(noting.of(tmp_path))

    start_worker()

    with longshore.Client(folder) as client:
        assert client.job(job.id).result(timeout=TIMEOUT_S) == 1


def test_a_function_in_steps_goes_on_after_the_step_that_was_kept(
    folder: Path, tmp_path: Path, start_worker: Callable[..., WorkerProcess]
) -> None:
    with longshore.Client(folder) as client:
        job = client.submit(in_steps.of(tmp_path))
        worker = start_worker()
        next(job.output())

        worker.kill()
        (tmp_path / "go").touch()
        start_worker()

        assert job.result(timeout=TIMEOUT_S) == [1, 2]
        assert job.status().tasks["in_steps"].attempt == 2


def test_a_program_that_is_interrupted_gives_back_what_it_runs(
    folder: Path, tmp_path: Path
) -> None:
    def interrupted() -> None:
        with longshore.Client(folder, worker=True) as client:
            job = client.submit(waiting.of(tmp_path), request_id="r")
            next(job.output())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    (tmp_path / "go").touch()
    assert longshore.run(waiting.of(tmp_path), data_dir=folder, request_id="r") == "gone on"


def test_a_script_runs_its_own_functions(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)

    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )

    assert (done.stdout, done.stderr, done.returncode) == ("AHOY\n", "", 0)


def test_a_script_that_would_run_itself_again_in_its_child_is_refused(tmp_path: Path) -> None:
    unguarded = SCRIPT.replace("if __name__ ==", "if True or __name__ ==")
    (tmp_path / "script.py").write_text(unguarded)

    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )

    assert done.returncode == 1
    assert "runs the program under `if __name__" in done.stderr


def test_a_script_that_is_interrupted_leaves_its_job_to_other_workers(
    folder: Path, tmp_path: Path
) -> None:
    program = (
        "import sys, longshore; from pathlib import Path;"
        " from tests.acceptance.api_tasks import waiting;"
        " longshore.run(waiting.of(sys.argv[2]), data_dir=sys.argv[1], request_id='r')"
    )

    async def begun() -> bool:
        return any(tmp_path.glob("pid-*"))

    with subprocess.Popen([sys.executable, "-c", program, folder, tmp_path]) as running:
        try:
            asyncio.run(wait_until(begun))
            running.send_signal(signal.SIGINT)
            assert running.wait(TIMEOUT_S) != 0
        finally:
            running.kill()

    (tmp_path / "go").touch()
    assert longshore.run(waiting.of(tmp_path), data_dir=folder, request_id="r") == "gone on"


def test_the_asynchronous_client_works_too(folder: Path) -> None:
    async def scenario() -> list[str]:
        async with longshore.AsyncClient(folder, worker=True) as client:
            job = await client.submit(visit.of("a", NOON))
            assert (await job.result(timeout=TIMEOUT_S)).url == "a"
            return [piece.text async for piece in job.output()]

    assert asyncio.run(scenario()) == ["visiting a\n"]
