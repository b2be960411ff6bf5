"""``longshore run``: a command's output, its exit code, its record, and its end by Ctrl-C."""

import signal
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest

from longshore.core.tasks.states import JobState
from longshore.execution.host.registry import FileWorkerRegistry
from longshore.interfaces.cli.exit_codes import ExitCode
from longshore.services.dispatcher import CONSUMER
from tests.interfaces.command_line import (
    LONGSHORE,
    SCRIPT,
    TIMEOUT_S,
    Cli,
    is_alive,
    needs_mounts,
    send_signal,
)


def test_the_output_and_the_exit_code_of_the_command_are_passed_through(cli: Cli) -> None:
    ended = subprocess.run(
        [SCRIPT, "run", "--", "sh", "-c", "echo out; echo err >&2; exit 3"],
        cwd=cli.folder,
        env=cli.environment,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )

    assert (ended.stdout, ended.stderr, ended.returncode) == (b"out\n", b"err\n", 3)
    (job,) = cli("jobs", "-o", "json").json["jobs"]
    assert (job["status"], job["exitCode"], job["totalTasks"]) == ("failed", 3, 1)


def test_the_command_runs_in_the_current_folder_and_its_bytes_are_unchanged(cli: Cli) -> None:
    ended = subprocess.run(
        [*LONGSHORE, "run", "--", "sh", "-c", r"pwd; printf 'a\377\000\r\033[31mb'"],
        cwd=cli.folder,
        env=cli.environment,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )

    assert ended.stdout == f"{cli.folder}\n".encode() + b"a\xff\x00\r\x1b[31mb"
    assert ended.returncode == 0


def test_a_command_runs_in_the_current_folder_and_its_environment_names_it(cli: Cli) -> None:
    answer = cli("run", "--", "/usr/bin/env")

    assert f"PWD={cli.folder}\n" in answer.out


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("--", "sh", "-c", "kill -9 $$"), 128 + signal.SIGKILL, "SIGKILL"),
        (("--timeout", "300ms", "--", "sleep", "60"), ExitCode.TIMED_OUT, "--timeout"),
        (("--", "no-such-command"), ExitCode.COMMAND_NOT_FOUND, "PATH"),
        (("--", "./plain.txt"), ExitCode.NOT_EXECUTABLE, "not executable"),
    ],
)
def test_an_end_without_an_exit_code_gives_the_exit_code_of_a_shell(
    cli: Cli, arguments: tuple[str, ...], code: int, expected: str
) -> None:
    (cli.folder / "plain.txt").write_text("")

    answer = cli("run", *arguments)

    assert answer.code == code
    assert expected in answer.err
    assert len(answer.err.splitlines()) == 1


def test_output_appears_while_the_command_runs(cli: Cli) -> None:
    gate = cli.make_fifo("gate")

    with cli.start("run", "--", "sh", "-c", f"echo first; read line < {gate}; echo $line") as run:
        first = run.stdout.readline()
        gate.write_text("second\n")
        rest, _ = run.communicate(timeout=TIMEOUT_S)

    assert (first, rest, run.returncode) == ("first\n", "second\n", 0)


def test_the_same_request_runs_once_and_prints_its_record_again(cli: Cli) -> None:
    command = ("run", "--request-id", "nightly", "--", "sh", "-c")
    script = "echo ran >> traces; echo out; echo err >&2; exit 6"
    first = cli(*command, script)

    second = cli(*command, script)

    assert (cli.folder / "traces").read_text() == "ran\n"
    assert (first.code, first.out) == (6, "out\n")
    assert (second.code, second.out) == (6, "out\n")
    assert second.err.splitlines() == [
        "longshore: request 'nightly' was run before; this is its record",
        "err",
    ]


def test_another_command_under_the_same_request_id_is_refused(cli: Cli) -> None:
    cli("run", "--request-id", "nightly", "--", "true")

    answer = cli("run", "--request-id", "nightly", "--", "false")

    assert answer.code == ExitCode.REFUSED
    assert "--request-id" in answer.err
    assert cli.only_job_state() is JobState.COMPLETED


def test_the_command_is_retried_until_an_attempt_succeeds(cli: Cli) -> None:
    script = "echo try; test -e done || { touch done; exit 4; }"

    answer = cli("run", "--attempts", "3", "--name", "stubborn", "--", "sh", "-c", script)

    assert (answer.code, answer.out) == (0, "try\ntry\n")
    assert "attempt 1 of 3 failed" in answer.err
    assert [job.spec.name for job in cli.jobs()] == ["stubborn"]


def test_a_run_whose_process_was_killed_is_taken_over_by_the_same_request(cli: Cli) -> None:
    started = cli.make_fifo("started")
    script = f"test -e begun && exec echo done; touch begun; echo $$ > {started}; exec sleep 600"
    command = ("run", "--request-id", "long", "--attempts", "2", "--", "sh", "-c", script)
    with cli.start(*command) as first:
        child = int(started.read_text())
        send_signal(first, signal.SIGKILL)

    answer = cli(*command)

    assert (answer.code, answer.out) == (0, "done\n")
    assert not is_alive(child)
    assert cli.only_job_state() is JobState.COMPLETED


def test_the_job_has_ended_when_run_exits_even_without_a_dispatcher(cli: Cli) -> None:
    with closing(FileWorkerRegistry(cli.folder / ".longshore")) as registry:
        # The holder of this role dispatches for all processes; this test dispatches nothing.
        assert registry.acquire_role(CONSUMER)

        answer = cli("run", "--", "true")

    assert answer.code == 0
    assert cli.only_job_state() is JobState.COMPLETED


def test_each_run_has_its_own_queue(cli: Cli) -> None:
    cli("run", "--", "true")
    cli("run", "--queue", "shared", "--", "true")

    tasks = cli("tasks", "-o", "json").json["tasks"]

    assert [task["queue"].partition("-")[0] for task in tasks] == ["shared", "run"]
    assert [task["exitCode"] for task in tasks] == [0, 0]


def test_ctrl_c_cancels_the_command_and_records_it(cli: Cli) -> None:
    with cli.terminal("run", "--", "sh", "-c", "echo pid=$$; exec sleep 600") as terminal:
        terminal.read_until("pid=")
        terminal.read_until("\n")
        child = int(terminal.text.partition("pid=")[2].split()[0])
        terminal.press("\x03")
        code = terminal.wait()

    assert code == ExitCode.INTERRUPTED
    assert "cancelling" in terminal.text
    assert not is_alive(child)
    assert cli.only_job_state() is JobState.CANCELLED


def test_a_second_ctrl_c_kills_a_command_that_ignores_the_first(cli: Cli) -> None:
    script = "trap 'echo never' TERM; echo deaf; while true; do sleep 0.1; done"

    with cli.terminal("run", "--", "sh", "-c", script) as terminal:
        terminal.read_until("deaf")
        terminal.press("\x03")
        terminal.read_until("never")
        began = time.monotonic()
        terminal.press("\x03")
        code = terminal.wait()

    # Otherwise it would have a grace period of five seconds.
    assert time.monotonic() - began < 4
    assert code == ExitCode.INTERRUPTED
    assert cli.only_job_state() is JobState.CANCELLED


def test_a_termination_signal_cancels_too(cli: Cli) -> None:
    with cli.start("run", "--", "sh", "-c", "echo ready; exec sleep 600") as run:
        run.stdout.readline()
        send_signal(run, signal.SIGTERM)
        code = run.wait(TIMEOUT_S)

    assert code == 128 + signal.SIGTERM
    assert cli.only_job_state() is JobState.CANCELLED


def test_a_command_is_cancelled_when_its_output_pipe_is_closed(cli: Cli) -> None:
    with cli.start("run", "--", "yes") as run:
        run.stdout.readline()
        run.stdout.close()
        code = run.wait(TIMEOUT_S)
        errors = run.stderr.read()

    assert (code, errors) == (ExitCode.BROKEN_PIPE, "")
    assert cli.only_job_state() is JobState.CANCELLED


def test_a_backend_for_tests_is_refused(cli: Cli) -> None:
    answer = cli("run", "--", "echo", "hello", env={"LONGSHORE_BACKEND": "memory"})

    assert (answer.code, answer.out) == (ExitCode.USAGE, "")
    assert "must be 'sqlite' or 'aws'" in answer.err
    assert list(cli.folder.iterdir()) == []


def test_a_slow_reader_does_not_cost_the_lease(cli: Cli) -> None:
    # With leases of 1.5 s, a process that blocks on its output would lose the lease.
    short = {
        "LONGSHORE_WORKER_RENEW_EVERY": "200ms",
        "LONGSHORE_WORKER_EXTEND_BY": "1s",
        "LONGSHORE_WORKER_KILL_GRACE": "100ms",
        "LONGSHORE_WORKER_SKEW_MARGIN": "100ms",
    }
    ready = cli.make_fifo("ready")
    script = f"seq 100000; sleep 2; echo go > {ready}; echo last"
    with subprocess.Popen(
        [*LONGSHORE, "run", "--", "sh", "-c", script],
        cwd=cli.folder,
        env={**cli.environment, **short},
        stdout=subprocess.PIPE,
        text=True,
    ) as run:
        ready.read_text()
        out, _ = run.communicate(timeout=TIMEOUT_S)

    assert run.returncode == 0
    assert out.splitlines() == [*(str(number) for number in range(1, 100001)), "last"]


_SHORT_LEASE = """
[worker]
renew_every = "500ms"
extend_by = "2s"
kill_grace = "100ms"
skew_margin = "0s"
"""
# Ends when the disk of the data folder is full, so that its outcome cannot be stored.
_FILLING = "sh -c 'dd if=/dev/zero of=.longshore/filler bs=4k status=none; echo filled > begun'"


@needs_mounts
def test_a_disk_that_stays_full_is_named_and_ends_the_run(cli: Cli) -> None:
    (cli.folder / "longshore.toml").write_text(_SHORT_LEASE)

    with cli.on_small_disk(f"exec $LONGSHORE run -- {_FILLING}") as run:
        _, printed = run.communicate(timeout=TIMEOUT_S)

    assert run.returncode == ExitCode.BACKEND
    assert f"disk full: {cli.folder}/.longshore has 0 bytes free" in printed


@needs_mounts
def test_a_disk_that_is_full_from_the_start_is_named(cli: Cli) -> None:
    with cli.on_small_disk("fill; exec $LONGSHORE run -- true") as run:
        _, printed = run.communicate(timeout=TIMEOUT_S)

    assert run.returncode == ExitCode.BACKEND
    assert "disk full: " in printed


@needs_mounts
def test_a_signal_ends_a_run_on_a_full_disk(cli: Cli) -> None:
    (cli.folder / "longshore.toml").write_text(_SHORT_LEASE)
    begun = cli.make_fifo("begun")
    argv = _FILLING.replace("begun'", "begun; exec sleep 99'")

    with cli.on_small_disk(f"exec $LONGSHORE run -- {argv}") as run:
        begun.read_text()
        send_signal(run, signal.SIGTERM)

        code = run.wait(TIMEOUT_S / 2)

    assert code in {128 + signal.SIGTERM, ExitCode.BACKEND, ExitCode.STOP_OVERDUE}


@needs_mounts
def test_a_run_continues_when_the_full_disk_has_room_again(cli: Cli) -> None:
    begun = cli.make_fifo("begun")
    with cli.on_small_disk(f"exec $LONGSHORE -v run -- {_FILLING}") as run:
        begun.read_text()
        next(line for line in run.stderr if "disk full" in line)
        Path(f"/proc/{run.pid}/root{cli.folder}/.longshore/filler").unlink()
        run.communicate(timeout=TIMEOUT_S)

    assert run.returncode == 0
