"""``longshore worker --processes``: what it prints, where it logs, and what SIGHUP does."""

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from longshore.interfaces.cli.exit_codes import ExitCode
from tests.interfaces.command_line import TIMEOUT_S, Cli, CommandResult, Terminal, send_signal

Inside = Callable[..., CommandResult]


def hang_up(terminal: Terminal) -> None:
    """Close the terminal's window."""
    os.close(terminal._master)
    terminal._master = os.open(os.devnull, os.O_RDONLY)


def test_the_first_line_says_what_is_supervised(cli: Cli) -> None:
    arguments = ("--queue", "mail", "--concurrency", "1", "--processes", "2", "--burst")

    answer = cli("worker", *arguments)

    (line,) = answer.out.splitlines()
    assert answer.code == 0
    assert line.startswith("supervisor ")
    assert "2 workers; serving mail; 1 task at once each; " in line
    assert line.endswith(f"{cli.folder / '.longshore'}; until its queues are empty")


def test_workers_get_the_options_and_their_lines_are_numbered(cli: Cli) -> None:
    (cli.folder / "shop.py").touch()
    options = ("--queue", "mail", "--queue", "post", "--concurrency", "7", "--app", "shop")
    folder_options = ("--data-dir", "some where", "--tenant", "acme")

    answer = cli("worker", "--processes", "2", "--burst", *options, *folder_options)

    lines = [line for line in answer.err.splitlines() if ": serving" in line]
    assert sorted(line[:11] for line in lines) == ["[1] worker ", "[2] worker "]
    assert all("serving mail, post; 7 tasks at once" in line for line in lines)
    assert all(str(cli.folder / "some where") in line for line in lines)
    records = [json.loads(line) for line in answer.err.splitlines() if line.startswith("{")]
    assert {record["worker"] for record in records} == {1, 2}


def test_the_setting_for_processes_does_not_apply_to_the_workers_themselves(
    cli: Cli,
) -> None:
    answer = cli("worker", "--burst", env={"LONGSHORE_SUPERVISOR_PROCESSES": "2"})

    assert answer.code == 0
    assert answer.out.startswith("supervisor ")
    assert answer.err.count("] worker ") == 2
    assert answer.err.count("worker.started") == 2


def test_a_supervisor_logs_the_lines_of_its_workers_to_a_file(cli: Cli) -> None:
    answer = cli("worker", "--processes", "2", "--burst", "--log-file", "work.log")

    log = (cli.folder / "work.log").read_text()
    assert answer.err == ""
    assert log.count("worker.started") == 2
    assert log.count("[1] worker ") == 1
    assert log.count("[2] worker ") == 1


def test_a_worker_alone_logs_to_a_file_too(cli: Cli) -> None:
    with cli.start("worker", "--log-file", "work.log", "--log-format", "text", "-vv") as worker:
        worker.stdout.readline()
        send_signal(worker, signal.SIGTERM)
        code = worker.wait(TIMEOUT_S)
        errors = worker.stderr.read()

    assert code == 0
    assert errors == ""
    assert (cli.folder / "work.log").exists()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--recycle-at", "03:30"), "--recycle-at needs --processes"),
        (("--processes", "0"), "'--processes': must be greater"),
        (("--processes", "2", "--recycle-at", "noon"), "'noon' is not a time of day"),
        (("--log-format", "xml"), "log_format: "),
        (("--log-file", "/dev/null/at/all.log"), "log_file: '/dev/null/at/all.log' cannot be"),
        (("--parent-fd", "2"), "'--parent-fd': must be greater"),
        (("--parent-fd", "999"), "--parent-fd 999 is not a socket"),
    ],
)
def test_invalid_options_are_rejected_before_anything_starts(
    cli: Cli, inside: Inside, arguments: tuple[str, ...], problem: str
) -> None:
    answer = inside("worker", *arguments, "--data-dir", str(cli.folder / ".longshore"))

    assert answer.code == ExitCode.USAGE
    assert problem in answer.err
    assert list(cli.folder.iterdir()) == []


def test_in_a_terminal_ctrl_c_drains_the_workers_and_the_log_is_text(cli: Cli) -> None:
    with cli.terminal("worker", "--processes", "2") as terminal:
        terminal.read_until("[1] worker ")
        terminal.read_until("[2] worker ")
        process_ids = re.findall(r"worker\.started .*pid=(\d+)", terminal.text)
        commands = [Path(f"/proc/{pid}/cmdline").read_text().split("\0") for pid in process_ids]

        terminal.press("\x03")

        assert terminal.wait() == 0
        assert "stopping 2 workers, within 35 s; press Ctrl-C again to stop now" in terminal.text
        assert terminal.text.count("worker.ended") == 2
        assert terminal.text.count("code=0") == 2
        assert "{" not in terminal.text
        # A worker has no terminal; the supervisor sets its log format.
        assert [command[command.index("--log-format") + 1] for command in commands] == ["text"] * 2


def test_sighup_replaces_the_workers(cli: Cli) -> None:
    with cli.terminal("worker", "--processes", "1") as terminal:
        terminal.read_until("[1] worker ")

        os.kill(terminal.process.pid, signal.SIGHUP)

        terminal.read_until("reason=requested")
        terminal.read_until("code=0")
        assert terminal.text.count("worker.started") == 2
        os.kill(terminal.process.pid, signal.SIGTERM)
        assert terminal.wait() == 0


def test_closing_the_terminal_stops_everything(cli: Cli) -> None:
    with cli.terminal("worker", "--processes", "1", "--log-file", "work.log") as terminal:
        # The start of the workers is shown only in the log.
        terminal.read_until("Ctrl-C stops")

        hang_up(terminal)

        terminal.process.wait(TIMEOUT_S)
    log = (cli.folder / "work.log").read_text()
    assert '"reason": "stop"' in log
    assert '"reason": "requested"' not in log
    assert log.count("worker.ended") == 1
