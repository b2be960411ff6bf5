"""What a worker's settings keep from its tasks."""

from pathlib import Path

from tests.interfaces.command_line import Cli


def test_the_processes_of_an_attempt_are_limited(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    many = ("sh", "-c", "sleep 1000 & sleep 1000 & sleep 1000 & wait")

    ended = cli("run", "--", *many, env={"LONGSHORE_WORKER_MAX_PROCESSES": "3"})
    tasks = cli("tasks", "-o", "json")

    assert ended.code != 0
    assert "more than 3 processes" in ended.err + tasks.out
    assert "LONGSHORE_WORKER_MAX_PROCESSES" not in ended.err
    assert "1000" in cli("settings").out.split("worker.max_processes")[1].splitlines()[0]
