"""Attempts in real child processes: results, deaths, streams, folders, and nothing left behind."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.adapters.process.attempt import ProcessAttempt
from longshore.adapters.process.runner import ProcessRunner
from longshore.adapters.process.table import alive, group_members
from longshore.adapters.system.clock import SystemClock
from longshore.core.events.types import Usage
from longshore.core.failures import ErrorCategory
from longshore.errors import BackendUnavailable, UsageError
from longshore.ports.output import Stream
from longshore.ports.runner import Active, StepDone, Used, WorkOrder
from tests.adapters.process.conftest import (
    NO_GRACE,
    a_call,
    a_command,
    a_script,
    printed,
    reports_of,
    run,
    scenario,
    until,
)

PATIENT = timedelta(seconds=20)


@asynccontextmanager
async def started(runner: ProcessRunner, order: WorkOrder) -> AsyncIterator[ProcessAttempt]:
    attempt = await runner.start(order)
    try:
        yield attempt
    finally:
        await attempt.stop(grace=NO_GRACE)


@scenario
async def test_a_command_that_ends_well_has_its_exit_code_as_its_result(
    runner: ProcessRunner,
) -> None:
    ending, reports = await run(runner, a_command("echo", "hello", "world"))

    assert ending.failure is None
    assert (ending.result, ending.exit_code, ending.signal) == ({"exitCode": 0}, 0, None)
    assert printed(reports) == "hello world\n"


@pytest.mark.parametrize(("codes", "retryable"), [((), False), ((3, 75), True)])
@scenario
async def test_an_exit_code_is_final_unless_the_definition_names_it(
    runner: ProcessRunner, codes: tuple[int, ...], retryable: bool
) -> None:
    order = a_script("exit 3", definition={"retryable_exit_codes": codes})

    ending, _ = await run(runner, order)

    assert ending.failure is not None
    assert ending.failure.category is ErrorCategory.EXIT_CODE
    assert ending.failure.retryable is retryable
    assert ending.exit_code == ending.failure.exit_code == 3


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (11, "SIGSEGV"), (40, "signal 40")])
@scenario
async def test_a_command_that_a_signal_ends_has_crashed(
    runner: ProcessRunner, number: int, name: str
) -> None:
    ending, _ = await run(runner, a_script(f"kill -{number} $$"))

    assert ending.failure is not None
    assert ending.failure.category is ErrorCategory.CRASH
    assert ending.failure.retryable
    assert (ending.exit_code, ending.signal, ending.failure.signal) == (None, name, name)


@scenario
async def test_a_command_that_does_not_exist_is_not_tried_again(runner: ProcessRunner) -> None:
    ending, _ = await run(runner, a_command("no-such-command-here"))

    assert ending.failure is not None
    assert ending.failure.category is ErrorCategory.NOT_FOUND
    assert not ending.failure.retryable
    assert "no-such-command-here" in ending.failure.message


@pytest.mark.parametrize("function", ["add", "add_later"])
@scenario
async def test_a_function_s_result_comes_back_be_it_async_or_not(
    runner: ProcessRunner, function: str
) -> None:
    ending, reports = await run(runner, a_call(function, 40, 2))

    assert ending.failure is None
    assert (ending.result, ending.exit_code) == (42, 0)
    assert printed(reports, Stream.STDERR) == ""


@scenario
async def test_options_of_the_definition_are_used_and_the_input_stands_over_them(
    runner: ProcessRunner,
) -> None:
    order = a_call(
        "add", 1, input={"kwargs": {"b": 5}}, definition={"options": {"kwargs": {"b": 9}}}
    )

    ending, _ = await run(runner, order)

    assert ending.result == 6


@pytest.mark.parametrize(
    ("name", "category", "retryable"),
    [
        ("value", ErrorCategory.VALIDATION, False),
        ("key", ErrorCategory.PROGRAMMING, False),
        ("connection", ErrorCategory.NETWORK, True),
        ("timeout", ErrorCategory.TIMEOUT, True),
        ("file", ErrorCategory.NOT_FOUND, False),
        ("memory", ErrorCategory.OUT_OF_MEMORY, True),
        ("retry", ErrorCategory.UNKNOWN, True),
        ("fail", ErrorCategory.AUTH, False),
        ("exit", ErrorCategory.EXIT_CODE, False),
        ("interrupt", ErrorCategory.UNKNOWN, False),
    ],
)
@scenario
async def test_what_a_function_raises_is_told_with_its_category(
    runner: ProcessRunner, name: str, category: ErrorCategory, retryable: bool
) -> None:
    ending, _ = await run(runner, a_call("raises", name))

    assert ending.failure is not None
    assert ending.failure.category is category
    assert ending.failure.retryable is retryable
    assert ending.exit_code == 1


@scenario
async def test_a_function_may_say_when_to_try_again_and_its_trace_is_in_the_output(
    runner: ProcessRunner,
) -> None:
    ending, reports = await run(runner, a_call("raises", "retry"))

    assert ending.failure is not None
    assert ending.failure.retry_after == timedelta(seconds=7)
    assert ending.failure.message == "later"
    assert "Traceback" in printed(reports, Stream.STDERR)


@scenario
async def test_both_streams_arrive_each_in_its_order(runner: ProcessRunner) -> None:
    _, reports = await run(runner, a_call("talks"))

    assert printed(reports, Stream.STDOUT) == "out 0\nout 1\nout 2\n"
    assert printed(reports, Stream.STDERR) == "err 0\nerr 1\nerr 2\n"


@pytest.mark.parametrize("function", ["no_json", "not_a_number"])
@scenario
async def test_a_result_that_is_no_json_is_a_failure_that_says_so(
    runner: ProcessRunner, function: str
) -> None:
    ending, _ = await run(runner, a_call(function))

    assert ending.failure is not None
    assert not ending.failure.retryable
    assert "JSON" in ending.failure.message


@pytest.mark.parametrize("code", [0, 5])
@scenario
async def test_a_function_that_ends_without_a_word_has_crashed(
    runner: ProcessRunner, code: int
) -> None:
    ending, _ = await run(runner, a_call("vanishes", code))

    assert ending.failure is not None
    assert ending.failure.category is ErrorCategory.CRASH
    assert ending.failure.retryable
    assert ending.exit_code == code


@scenario
async def test_a_function_that_a_signal_ends_has_crashed(runner: ProcessRunner) -> None:
    ending, _ = await run(runner, a_call("dies", signal.SIGKILL))

    assert ending.failure is not None
    assert ending.failure.category is ErrorCategory.CRASH
    assert ending.signal == "SIGKILL"


@scenario
async def test_a_function_that_is_not_there_is_a_failure(runner: ProcessRunner) -> None:
    ending, _ = await run(runner, a_call("nobody"))

    assert ending.failure is not None
    assert ending.failure.category is ErrorCategory.PROGRAMMING


@scenario
async def test_a_child_sees_only_what_it_may_and_finds_its_input_in_a_private_file(
    runner: ProcessRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_PARENT", "s3cr3t")
    order = a_call("sees", input={"env": {"OWN": "1"}, "note": "a secret of the task"})

    ending, _ = await run(runner, order)

    seen = ending.result
    assert "SECRET_OF_THE_PARENT" not in seen["environment"]
    assert seen["environment"]["OWN"] == "1"
    assert seen["environment"]["LONGSHORE_ATTEMPT_TASK"] == "job-a_a"
    assert seen["environment"]["LONGSHORE_ATTEMPT"] == "1"
    unexpected = set(seen["environment"]) - {"PATH", "PWD", "OWN", "LC_CTYPE"}
    assert all(name.startswith("LONGSHORE_ATTEMPT") for name in unexpected)
    assert not any("secret" in argument for argument in seen["argv"])
    assert json.loads(seen["input"])["note"] == "a secret of the task"
    assert (seen["folder_mode"], seen["file_modes"]) == (0o700, [0o600])
    assert seen["session"]
    assert Path(seen["folder"]).is_relative_to(tmp_path)


@scenario
async def test_the_work_folder_is_removed_with_all_that_is_in_it(
    runner: ProcessRunner, tmp_path: Path
) -> None:
    ending, _ = await run(runner, a_script("mkdir -p a/b && echo x > a/b/c"))

    assert ending.failure is None
    assert list((tmp_path / "work").iterdir()) == []


@scenario
async def test_the_work_folder_can_be_kept(tmp_path: Path) -> None:
    runner = ProcessRunner(tmp_path, {"PATH": "/usr/bin:/bin"}, SystemClock(), keep_folders=True)

    await run(runner, a_script("echo x > kept"))

    assert (tmp_path / "work" / "job-a_a" / "attempt-1" / "kept").read_text() == "x\n"


@scenario
async def test_a_megabyte_and_more_arrives_whole_on_both_streams(runner: ProcessRunner) -> None:
    script = "head -c 3000000 /dev/zero | tr '\\0' x; head -c 2000000 /dev/zero | tr '\\0' y >&2"

    ending, reports = await run(runner, a_script(script))

    assert ending.failure is None
    assert printed(reports, Stream.STDOUT) == "x" * 3_000_000
    assert printed(reports, Stream.STDERR) == "y" * 2_000_000


@scenario
async def test_output_waits_for_a_slow_store_also_after_the_child_has_ended(
    runner: ProcessRunner,
) -> None:
    script = """
    for number in $(seq 200); do echo '{"type": "log", "text": "x"}' >&3; done
    head -c 60000 /dev/zero; echo end >&2
    """
    async with started(runner, a_script(script)) as attempt:
        await until(lambda: not alive(attempt.process_id))
        # Longer than anybody is given to let go of the pipes.
        await asyncio.sleep(1.3)
        got = await reports_of(attempt)

    assert printed(got, Stream.LOG) == "x\n" * 200
    assert printed(got) == "\0" * 60_000
    assert printed(got, Stream.STDERR) == "end\n"


@scenario
async def test_a_grandchild_that_holds_the_pipes_does_not_hang_us_and_is_killed(
    runner: ProcessRunner,
) -> None:
    ending, reports = await run(runner, a_script("sleep 1000 & echo $!"))

    assert ending.failure is None
    assert not alive(int(printed(reports)))


@scenario
async def test_a_grandchild_in_a_group_of_its_own_is_killed_too(runner: ProcessRunner) -> None:
    script = "set -m; sleep 1000 >/dev/null 2>&1 & echo $!"

    _, reports = await run(runner, a_command("bash", "-c", script))

    assert not alive(int(printed(reports)))


@scenario
async def test_one_who_left_the_session_with_the_pipes_does_not_hang_us(
    runner: ProcessRunner,
) -> None:
    # It cannot be found by its group any more; that its output is not waited for is the point.
    script = (
        "setsid sh -c 'echo $$; while :; do echo noise; sleep 0.01; done' & sleep 0.2; echo end"
    )
    async with started(runner, a_script(script)) as attempt:
        reports = await reports_of(attempt)
        ending = await attempt.ending()
    text = printed(reports)
    try:
        assert ending.failure is None
        assert "end\n" in text
    finally:
        os.kill(int(text.split()[0]), signal.SIGKILL)


@scenario
async def test_stopping_asks_the_whole_group_first(runner: ProcessRunner) -> None:
    script = "trap 'echo bye; exit 0' TERM; sleep 1000 & echo $!; wait"
    async with started(runner, a_script(script)) as attempt:
        reports = attempt.reports()
        grandchild = int(printed([await anext(reports)]))

        ended_by = await attempt.stop(grace=PATIENT)
        rest = [report async for report in reports]

    assert ended_by == "SIGTERM"
    assert printed(rest) == "bye\n"
    assert not alive(attempt.process_id)
    assert not alive(grandchild)


@scenario
async def test_one_that_ignores_the_request_is_killed_after_the_grace(
    runner: ProcessRunner,
) -> None:
    async with started(runner, a_call("ignores_sigterm")) as attempt:
        reports = attempt.reports()
        ready = printed([await anext(reports)])

        ended_by = await attempt.stop(grace=timedelta(milliseconds=100))
        ending = await attempt.ending()

    assert ready == "ready\n"
    assert ended_by == "SIGKILL"
    assert ending.signal == "SIGKILL"
    assert group_members(attempt.process_id) == []


@scenario
async def test_a_second_less_patient_stop_does_not_wait_for_the_first(
    runner: ProcessRunner,
) -> None:
    async with started(runner, a_call("ignores_sigterm")) as attempt:
        await anext(attempt.reports())
        patient = asyncio.ensure_future(attempt.stop(grace=timedelta(hours=1)))
        await asyncio.sleep(0)

        ended_by = await attempt.stop(grace=NO_GRACE)

        assert ended_by == "SIGKILL"
        assert await patient == "SIGKILL"


@scenario
async def test_stopping_one_that_has_ended_is_nothing(runner: ProcessRunner) -> None:
    async with started(runner, a_command("true")) as attempt:
        await reports_of(attempt)

        await attempt.stop(grace=PATIENT)
        ending = await attempt.ending()

    assert ending.failure is None


@scenario
async def test_one_whose_reports_nobody_wants_is_not_held_up_and_can_be_stopped(
    runner: ProcessRunner,
) -> None:
    async with started(runner, a_command("yes")) as attempt:
        reports = attempt.reports()
        await anext(reports)
        await until(stuck(attempt.process_id))
        held_up_at = written_by(attempt.process_id)

        await reports.aclose()
        await until(lambda: written_by(attempt.process_id) > held_up_at + 20_000_000)
        async with asyncio.timeout(10):
            await attempt.stop(grace=NO_GRACE)

    assert not alive(attempt.process_id)


def stuck(process_id: int) -> Callable[[], bool]:
    """Whether it has written nothing for some looks: its pipe is full."""
    seen: list[int] = []

    def look() -> bool:
        seen.append(written_by(process_id))
        return len(seen) > 10 and len(set(seen[-10:])) == 1

    return look


def written_by(process_id: int) -> int:
    """Bytes that the process has written so far."""
    lines = Path(f"/proc/{process_id}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


@scenario
async def test_memory_of_a_living_child_is_known(runner: ProcessRunner) -> None:
    async with started(runner, a_call("ignores_sigterm")) as attempt:
        await anext(attempt.reports())
        living = attempt.rss_bytes()
        await attempt.stop(grace=NO_GRACE)

    assert living > 1_000_000
    assert attempt.rss_bytes() == 0


@scenario
async def test_steps_are_reported_and_waited_for_and_later_ones_skipped(
    runner: ProcessRunner,
) -> None:
    said: list[Any] = []
    order = a_call("steps", dependency_outputs={"p": 1}, checkpoints={"one": "kept before"})
    async with started(runner, order) as attempt:
        async for report in attempt.reports():
            said.append(report)
            if isinstance(report, StepDone):
                await attempt.step_kept(report.name)
        ending = await attempt.ending()

    assert [report for report in said if isinstance(report, StepDone)] == [StepDone("two", "TWO")]
    assert printed(said, Stream.LOG) == "begin\n"
    doing = [report.activity for report in said if isinstance(report, Active)]
    assert [(one.type, one.step_name) for one in doing] == [("step_running", "two")]
    assert ending.result == ["kept before", "TWO", {"p": 1}, 1, "job-a_a"]


@scenario
async def test_a_step_that_is_kept_after_the_child_s_death_is_said_to_nobody(
    runner: ProcessRunner, tmp_path: Path
) -> None:
    async with started(runner, a_call("takes_one_step_and_waits")) as attempt:
        reports = attempt.reports()
        while not isinstance(await anext(reports), StepDone):
            pass
        await attempt.stop(grace=NO_GRACE)
        # Whatever is opened now gets the numbers of the pipes that were closed.
        paths = [tmp_path / f"file-{number}" for number in range(30)]
        files = [path.open("w") for path in paths]

        await attempt.step_kept("one")

        for file in files:
            file.close()
    assert [path.read_text() for path in paths] == [""] * 30


@scenario
async def test_a_child_that_never_reads_its_replies_does_not_block_us(
    runner: ProcessRunner,
) -> None:
    async with started(runner, a_script("echo ready; sleep 1000")) as attempt:
        await anext(attempt.reports())

        for _ in range(10_000):
            await attempt.step_kept("some step")

        assert alive(attempt.process_id)


SAYS = """
say() { echo "$1" >&$LONGSHORE_ATTEMPT_CHANNEL; }
say 'no json'
say '[1, 2]'
say '{"type": "unheard-of"}'
say '{"type": "usage", "inputTokens": "many", "turns": null, "costUsd": NaN}'
say '{"type": "usage", "inputTokens": 1e999, "outputTokens": -5, "turns": [1]}'
say '{"type": "usage", "inputTokens": 5, "turns": 2, "costUsd": 0.25}'
say '{"type": "activity", "activity": "sdk_query", "step": 7}'
say '{"type": "activity", "activity": "x", "step": "half \\ud800 of a pair"}'
say '{"type": "log", "text": "hello"}'
say '{"type": "result", "value": {"n": 42}}'
"""


@scenario
async def test_a_script_may_report_by_hand_and_nonsense_does_not_silence_it(
    runner: ProcessRunner,
) -> None:
    ending, reports = await run(runner, a_script(SAYS))

    used = [report.usage for report in reports if isinstance(report, Used)]
    doing = [report.activity for report in reports if isinstance(report, Active)]
    assert ending.result == {"n": 42}
    assert used == [Usage(), Usage(), Usage(input_tokens=5, turns=2, cost_usd=0.25)]
    assert [(one.type, one.step_name) for one in doing] == [
        ("sdk_query", "7"),
        ("x", "half ? of a pair"),
    ]
    assert printed(reports, Stream.LOG) == "hello\n"


@pytest.mark.parametrize(
    "said",
    [
        '{"type": "error", "category": "network", "message": "m", "retryAfter": 1e999}',
        '{"type": "error", "category": "network", "message": "m", "retryAfter": "soon"}',
        '{"type": "error", "category": "network", "message": "m", "exitCode": "x"}',
        '{"type": "error", "category": "network", "message": "m", "retry": "maybe"}',
    ],
)
@scenario
async def test_an_error_said_by_hand_is_taken_as_far_as_it_makes_sense(
    runner: ProcessRunner, said: str
) -> None:
    ending, _ = await run(runner, a_script(f"echo '{said}' >&$LONGSHORE_ATTEMPT_CHANNEL; exit 1"))

    assert ending.failure is not None
    assert ending.failure.category is ErrorCategory.NETWORK
    assert ending.failure.retryable
    assert ending.failure.message == "m"
    assert ending.failure.retry_after is None
    assert ending.failure.exit_code is None


@scenario
async def test_a_script_may_take_steps_by_hand(runner: ProcessRunner) -> None:
    script = """
    echo '{"type": "step", "name": "one", "result": 1}' >&3
    read answer <&4
    echo "$answer"
    """
    got = []
    async with started(runner, a_script(script)) as attempt:
        async for report in attempt.reports():
            got.append(report)
            if isinstance(report, StepDone):
                await attempt.step_kept(report.name)

    assert printed(got) == '{"kept": "one"}\n'


WRONG: list[tuple[str, WorkOrder]] = [
    ("no argv", a_command()),
    ("argv of numbers", a_command(3)),  # type: ignore[arg-type]
    ("NUL in argv", a_command("echo", "a\0b")),
    ("input no object", replace(a_command("true"), input=["true"])),
    ("env no object", a_command("true", input={"env": "A=1"})),
    ("env of numbers", a_command("true", input={"env": {"A": 1}})),
    ("NUL in env", a_command("true", input={"env": {"A": "\0"}})),
    ("NUL in a name", a_command("true", input={"env": {"A\0": "1"}})),
    ("= in a name", a_command("true", input={"env": {"A=B": "1"}})),
    ("half a character", a_command("true", input={"env": {"A": "\ud800"}})),
    ("no function", a_call("add", input={"function": None})),
    ("a function without a module", a_call("add", input={"function": "add"})),
]


@pytest.mark.parametrize("order", [row[1] for row in WRONG], ids=[row[0] for row in WRONG])
@scenario
async def test_an_order_that_can_never_be_carried_out_is_refused(
    runner: ProcessRunner, order: WorkOrder, tmp_path: Path
) -> None:
    with pytest.raises(UsageError):
        await runner.start(order)

    assert not any((tmp_path / "work").glob("*"))


@scenario
async def test_a_machine_that_cannot_start_a_child_now_is_out_of_reach(tmp_path: Path) -> None:
    (tmp_path / "work").write_text("in the way")
    runner = ProcessRunner(tmp_path, {}, SystemClock())

    with pytest.raises(BackendUnavailable):
        await runner.start(a_command("true"))


@scenario
async def test_no_file_is_left_open_by_an_attempt(runner: ProcessRunner) -> None:
    await run(runner, a_command("true"))
    before = len(os.listdir("/proc/self/fd"))

    for _ in range(3):
        await run(runner, a_script("sleep 1000 & exit 3"))

    assert len(os.listdir("/proc/self/fd")) == before


@scenario
async def test_a_start_that_is_cancelled_leaves_no_child(
    runner: ProcessRunner, tmp_path: Path
) -> None:
    for turns in range(12):
        order = a_script("sleep 1000", attempt=turns + 1)
        starting = asyncio.ensure_future(runner.start(order))
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        (ended,) = await asyncio.gather(starting, return_exceptions=True)
        if isinstance(ended, ProcessAttempt):
            await ended.stop(grace=NO_GRACE)

    await until(lambda: not any(str(tmp_path) in command for command in commands()))


def commands() -> Iterator[str]:
    """The command line of every process."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            yield (folder / "cmdline").read_text()
