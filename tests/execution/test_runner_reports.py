"""What a child says while it runs: its streams, its steps, and reports by hand."""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from longshore.core.events.types import Usage
from longshore.core.tasks.failures import ErrorCategory
from longshore.execution.host import attempt
from longshore.execution.host.launcher import ProcessRunner
from longshore.execution.host.report_decoder import parse_long_message, parse_message
from longshore.ports.output import Stream
from longshore.ports.runner import ActivityReport, OutputReport, StepReport, UsageReport
from tests.execution.attempts import running_attempt
from tests.execution.conftest import (
    NO_GRACE,
    a_call,
    a_script,
    output_text,
    reports_of,
    run_attempt,
    scenario,
    wait_until,
)
from tests.interfaces.command_line import is_alive


@scenario
async def test_both_streams_arrive_each_in_its_order(runner: ProcessRunner) -> None:
    _, reports = await run_attempt(runner, a_call("talks"))

    assert output_text(reports, Stream.STDOUT) == "out 0\nout 1\nout 2\n"
    assert output_text(reports, Stream.STDERR) == "err 0\nerr 1\nerr 2\n"


@scenario
async def test_a_megabyte_and_more_arrives_whole_on_both_streams(runner: ProcessRunner) -> None:
    script = "head -c 3000000 /dev/zero | tr '\\0' x; head -c 2000000 /dev/zero | tr '\\0' y >&2"

    ending, reports = await run_attempt(runner, a_script(script))

    assert ending.failure is None
    assert output_text(reports, Stream.STDOUT) == "x" * 3_000_000
    assert output_text(reports, Stream.STDERR) == "y" * 2_000_000


@scenario
async def test_a_long_message_that_is_no_result_fails_the_attempt(runner: ProcessRunner) -> None:
    script = """
    (printf '{"type":"activity","activity":"'; head -c 70000 /dev/zero | tr '\\0' x; echo '"}') >&3
    """

    ending, reports = await run_attempt(runner, a_script(script))

    assert ending.failure is not None
    assert ending.failure.category is ErrorCategory.PARSE
    assert reports == []


@scenario
async def test_long_messages_are_parsed_in_a_thread_and_keep_their_order(
    runner: ProcessRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_loop: list[int] = []
    child_ended = threading.Event()
    report_rest = attempt.ProcessAttempt._report_rest

    async def report_rest_after_end(child: attempt.ProcessAttempt, status: Any) -> None:
        child_ended.set()
        await report_rest(child, status)

    def parse(line: bytes) -> Any:
        if threading.current_thread() is threading.main_thread():
            on_loop.append(len(line))
        return parse_message(line)

    def parse_long(line: bytes) -> Any:
        parse(line)
        if b'"result"' in line[:20]:
            assert child_ended.wait(30)
        return parse_long_message(line)

    monkeypatch.setattr(attempt.ProcessAttempt, "_report_rest", report_rest_after_end)
    monkeypatch.setattr(attempt, "parse_message", parse)
    monkeypatch.setattr(attempt, "parse_long_message", parse_long)
    script = """
    for name in one two; do
        printf '{"type":"step","name":"%s","result":"' $name
        head -c 300000 /dev/zero | tr '\\0' x
        printf '"}\\n{"type":"log","text":"after %s"}\\n' $name  # they are read together
    done >&3
    (printf '{"type":"result","value":"'; head -c 300000 /dev/zero | tr '\\0' y; echo '"}') >&3
    """

    ending, reports = await run_attempt(runner, a_script(script))

    steps = [StepReport(name, "x" * 300_000) for name in ("one", "two")]
    logs = [OutputReport(Stream.LOG, f"after {name}\n".encode()) for name in ("one", "two")]
    # They are not decoded: as values they may need many times their size.
    reports = [
        replace(report, result=report.result.decode()) if isinstance(report, StepReport) else report
        for report in reports
    ]
    assert reports == [steps[0], logs[0], steps[1], logs[1]]
    assert ending.result.decode() == "y" * 300_000
    assert max(on_loop) < 300_000


LONG_LINES = """
for start in '"result","value":"' '"step","name":"s","result":"'; do
    (printf '{"type":%s' "$start"; head -c 300000 /dev/zero | tr '\\0' x; echo '"}') >&3
done
"""


@scenario
async def test_no_long_message_is_accepted_after_a_long_result(runner: ProcessRunner) -> None:
    ending, reports = await run_attempt(runner, a_script(LONG_LINES))

    assert ending.failure is not None
    assert "follows a long result" in ending.failure.message
    assert reports == []


@scenario
async def test_one_long_report_is_in_memory_at_a_time(runner: ProcessRunner) -> None:
    script = LONG_LINES.replace('result","value', 'step","name":"r","result')
    waiting_bytes: list[int] = []
    async with running_attempt(runner, a_script(script)) as attempt:
        async for report in attempt.reports():
            assert isinstance(report, StepReport)
            for _ in range(50):  # the next line would be read now
                await asyncio.to_thread(lambda: None)
            waiting = attempt._reports.qsize() + len(attempt._unparsed)
            waiting_bytes.append(300_000 * waiting + len(attempt._lines._line))

    assert len(waiting_bytes) == 2
    assert waiting_bytes[0] < 70_000  # what one read had of the second


@scenario
async def test_a_very_long_line_of_the_log_is_divided(runner: ProcessRunner) -> None:
    ending, reports = await run_attempt(runner, a_call("logs", "ü" * 100_000))

    assert ending.failure is None
    assert output_text(reports, Stream.LOG).replace("\n", "") == "ü" * 100_000


@scenario
async def test_output_waits_for_a_slow_store_also_after_the_child_has_ended(
    runner: ProcessRunner,
) -> None:
    script = """
    for number in $(seq 200); do echo '{"type": "log", "text": "x"}' >&3; done
    head -c 60000 /dev/zero; echo end >&2
    """
    async with running_attempt(runner, a_script(script)) as attempt:
        await wait_until(lambda: not is_alive(attempt.process_id))
        # Longer than anybody is given to let go of the pipes.
        await asyncio.sleep(1.3)
        got = await reports_of(attempt)

    assert output_text(got, Stream.LOG) == "x\n" * 200
    assert output_text(got) == "\0" * 60_000
    assert output_text(got, Stream.STDERR) == "end\n"


@scenario
async def test_steps_are_reported_and_waited_for_and_later_ones_skipped(
    runner: ProcessRunner,
) -> None:
    text: list[Any] = []
    spec = a_call("steps", dependency_outputs={"p": 1}, checkpoints={"one": "kept before"})
    async with running_attempt(runner, spec) as attempt:
        async for report in attempt.reports():
            text.append(report)
            if isinstance(report, StepReport):
                await attempt.confirm_step(report.name)
        ending = await attempt.ending()

    assert [report for report in text if isinstance(report, StepReport)] == [
        StepReport("two", "TWO")
    ]
    assert output_text(text, Stream.LOG) == "begin\n"
    doing = [report.activity for report in text if isinstance(report, ActivityReport)]
    assert [(item.type, item.step_name) for item in doing] == [("step_running", "two")]
    assert ending.result == ["kept before", "TWO", {"p": 1}, 1, "job-a_a"]


@scenario
async def test_a_step_stored_after_the_child_s_death_is_not_confirmed(
    runner: ProcessRunner, tmp_path: Path
) -> None:
    async with running_attempt(runner, a_call("takes_one_step_and_waits")) as attempt:
        reports = attempt.reports()
        while not isinstance(await anext(reports), StepReport):
            pass
        await attempt.stop(grace=NO_GRACE)
        # Files opened now get the numbers of the closed pipes.
        paths = [tmp_path / f"file-{number}" for number in range(30)]
        files = [path.open("w") for path in paths]

        await attempt.confirm_step("one")

        for file in files:
            file.close()
    assert [path.read_text() for path in paths] == [""] * 30


@scenario
async def test_a_child_that_never_reads_its_replies_does_not_block_us(
    runner: ProcessRunner,
) -> None:
    async with running_attempt(runner, a_script("echo ready; sleep 1000")) as attempt:
        await anext(attempt.reports())

        for _ in range(10_000):
            await attempt.confirm_step("some step")

        assert is_alive(attempt.process_id)


REPORTING_SCRIPT = """
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
async def test_a_script_can_write_to_the_channel_and_invalid_lines_are_skipped(
    runner: ProcessRunner,
) -> None:
    ending, reports = await run_attempt(runner, a_script(REPORTING_SCRIPT))

    used = [report.usage for report in reports if isinstance(report, UsageReport)]
    doing = [report.activity for report in reports if isinstance(report, ActivityReport)]
    assert ending.result == {"n": 42}
    assert used == [Usage(), Usage(), Usage(input_tokens=5, turns=2, cost_usd=0.25)]
    assert [(item.type, item.step_name) for item in doing] == [
        ("sdk_query", "7"),
        ("waiting", "half ? of a pair"),
    ]
    assert output_text(reports, Stream.LOG) == "hello\n"


@pytest.mark.parametrize(
    "text",
    [
        '{"type": "error", "category": "network", "message": "m", "retryAfter": 1e999}',
        '{"type": "error", "category": "network", "message": "m", "retryAfter": "soon"}',
        '{"type": "error", "category": "network", "message": "m", "exitCode": "x"}',
        '{"type": "error", "category": "network", "message": "m", "retry": "maybe"}',
    ],
)
@scenario
async def test_the_valid_fields_of_a_hand_written_error_are_used(
    runner: ProcessRunner, text: str
) -> None:
    ending, _ = await run_attempt(
        runner, a_script(f"echo '{text}' >&$LONGSHORE_ATTEMPT_CHANNEL; exit 1")
    )

    assert ending.failure is not None
    assert ending.failure.category is ErrorCategory.NETWORK
    assert ending.failure.retryable
    assert ending.failure.message == "m"
    assert ending.failure.retry_after is None
    assert ending.failure.exit_code is None


@scenario
async def test_a_script_can_report_steps_on_the_channel(runner: ProcessRunner) -> None:
    script = """
    echo '{"type": "step", "name": "one", "result": 1}' >&3
    read answer <&4
    echo "$answer"
    """
    got = []
    async with running_attempt(runner, a_script(script)) as attempt:
        async for report in attempt.reports():
            got.append(report)
            if isinstance(report, StepReport):
                await attempt.confirm_step(report.name)

    assert output_text(got) == '{"stored": "one"}\n'
