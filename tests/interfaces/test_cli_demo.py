"""``longshore demo``: it succeeds, leaves nothing behind, and reports what went wrong."""

import re
import signal
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from longshore.core.events import types as e
from longshore.core.events.event import Event
from longshore.interfaces.cli.commands.demo import report_of
from longshore.interfaces.cli.exit_codes import ExitCode
from tests.interfaces.command_line import TIMEOUT_S, Cli, send_signal

NOON = datetime(2030, 1, 7, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def _processes_in(folder: Path) -> list[str]:
    """Command lines of all processes that name this folder."""
    command_lines = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = line.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(folder) in text:
            command_lines.append(text)
    return command_lines


def test_the_demo_loses_nothing_and_completes_nothing_twice(cli: Cli) -> None:
    temporary = cli.folder / "tmp"
    temporary.mkdir()

    answer = cli("demo", env={"TMPDIR": str(temporary), "LONGSHORE_BACKEND": "aws"})

    report = dict(re.findall(r"^(\S[^\n]*?)  +(\S[^\n]*)$", answer.out, re.MULTILINE))
    assert answer.code == 0, answer.out + answer.err
    assert re.search(r"killed worker [12] with SIGKILL in the middle of analyse", answer.out)
    assert report["tasks completed"] == "5 of 5"
    assert (report["lost"], report["completed twice"]) == ("0", "0")
    assert (report["gaps in the history"], report["workers killed"]) == ("0", "1 with SIGKILL")
    assert float(report["recovered"].split()[0]) < 10
    assert "longshore run" in report["your own command"]
    assert "\x1b" not in answer.out
    assert list(temporary.iterdir()) == []
    assert _processes_in(temporary) == []


def test_on_a_terminal_the_picture_moves_and_ctrl_c_leaves_nothing_behind(cli: Cli) -> None:
    temporary = cli.folder / "tmp"
    temporary.mkdir()

    with cli.terminal("demo", env={"TMPDIR": str(temporary)}) as terminal:
        terminal.read_until("analyse")
        terminal.read_until("processing")
        terminal.press("\x03")
        code = terminal.wait()

    assert code == ExitCode.INTERRUPTED
    # The cursor went up to draw again, was hidden meanwhile, and is back.
    assert "\x1b[1A" in terminal.shown
    assert terminal.shown.rindex("\x1b[?25h") > terminal.shown.rindex("\x1b[?25l")
    assert "its workers have been ended" in terminal.text
    assert list(temporary.iterdir()) == []
    assert _processes_in(temporary) == []


def test_a_signal_before_the_workers_have_started_leaves_nothing_behind(cli: Cli) -> None:
    folder = cli.folder / "folder"

    with cli.start("demo", "--data-dir", str(folder)) as demo:
        demo.stdout.readline()
        send_signal(demo, signal.SIGTERM)
        code = demo.wait(TIMEOUT_S)

    assert code == ExitCode.INTERRUPTED
    assert folder.is_dir()
    assert _processes_in(folder) == []


def _event(key: str, sequence: int, second: int, body: e.EventBody) -> Event:
    return Event(
        entity_type=body.ENTITY,
        entity_id=f"job-a_{key}",
        tenant="default",
        app="demo",
        sequence=sequence,
        at=NOON + second * SECOND,
        body=body,
    )


def _started(key: str, sequence: int, second: int, worker: str) -> Event:
    body = e.TaskProcessingStarted(
        task_id=f"job-a_{key}",
        job_id="job-a",
        started_at=NOON,
        effective_until=NOON,
        worker_id=worker,
        process_id=1,
        attempt_number=sequence,
        fence=sequence,
    )
    return _event(key, sequence, second, body)


def _completed(key: str, sequence: int, second: int) -> Event:
    body = e.TaskCompleted(
        task_id=f"job-a_{key}", job_id="job-a", attempt_number=1, output=None, duration=SECOND
    )
    return _event(key, sequence, second, body)


EVENTS = [
    _started("a", 1, 0, "w1"),
    _completed("a", 2, 1),
    _started("b", 1, 2, "w1"),
    _started("b", 2, 5, "w2"),
    _completed("b", 3, 6),
]
KILLED = ("w1", NOON + 3 * SECOND)


def test_the_report_is_good_if_nothing_was_lost() -> None:
    report = report_of(EVENTS, total=2, killed=KILLED)

    assert report.good
    assert (report.completed, report.recovery) == (2, 2 * SECOND)


@pytest.mark.parametrize(
    ("events", "total", "wrong"),
    [
        (EVENTS, 3, "lost"),
        (EVENTS[:4], 2, "lost"),
        ([*EVENTS, _completed("a", 3, 7)], 2, "completed_twice"),
        ([replace(EVENTS[0], sequence=2), *EVENTS[1:]], 2, "gaps"),
    ],
)
def test_the_report_names_what_went_wrong(events: list[Event], total: int, wrong: str) -> None:
    report = report_of(events, total=total, killed=KILLED)

    assert not report.good
    assert getattr(report, wrong) == 1


def test_without_a_later_attempt_there_is_no_recovery() -> None:
    events = [event for event in EVENTS if "w2" not in repr(event)]

    report = report_of(events, total=2, killed=KILLED)

    assert (report.recovery, report.good) == (None, False)


def test_without_a_kill_the_report_is_not_good() -> None:
    assert not report_of(EVENTS, total=2, killed=None).good
