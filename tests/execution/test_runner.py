"""What a child is started with, and what is made of its end."""

import signal
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from longshore.adapters.system import SystemClock
from longshore.core.definitions.definition import Isolation
from longshore.core.ids import traceparent_of
from longshore.core.tasks.failures import ErrorCategory
from longshore.errors import BackendUnavailable
from longshore.execution.host.launcher import ProcessRunner
from longshore.ports.output import Stream
from longshore.ports.runner import AttemptSpec
from tests.execution.conftest import (
    NEVER_NS,
    a_call,
    a_command,
    a_script,
    output_text,
    run_attempt,
    scenario,
)


@scenario
async def test_a_command_that_ends_well_has_its_exit_code_as_its_result(
    runner: ProcessRunner,
) -> None:
    ending, reports = await run_attempt(runner, a_command("echo", "hello", "world"))

    assert ending.failure is None
    assert ending.result == {"exitCode": 0}
    assert output_text(reports) == "hello world\n"


@pytest.mark.parametrize(("codes", "retryable"), [((), False), ((3, 75), True)])
@scenario
async def test_an_exit_code_is_final_unless_the_definition_names_it(
    runner: ProcessRunner, codes: tuple[int, ...], retryable: bool
) -> None:
    spec = a_script("exit 3", definition={"retryable_exit_codes": codes})

    ending, _ = await run_attempt(runner, spec)

    assert ending.failure is not None
    assert ending.failure.category is ErrorCategory.EXIT_CODE
    assert ending.failure.retryable is retryable
    assert ending.failure.exit_code == 3


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (11, "SIGSEGV"), (40, "signal 40")])
@scenario
async def test_a_command_that_a_signal_ends_has_crashed(
    runner: ProcessRunner, number: int, name: str
) -> None:
    ending, _ = await run_attempt(runner, a_script(f"kill -{number} $$"))

    assert ending.failure is not None
    assert ending.failure.category is ErrorCategory.CRASH
    assert ending.failure.retryable
    assert (ending.failure.exit_code, ending.failure.signal) == (None, name)


@scenario
async def test_a_command_that_does_not_exist_is_not_tried_again(runner: ProcessRunner) -> None:
    ending, _ = await run_attempt(runner, a_command("no-such-command-here"))

    assert ending.failure is not None
    assert ending.failure.category is ErrorCategory.NOT_FOUND
    assert not ending.failure.retryable
    assert ending.failure.message == (
        "command 'no-such-command-here' not found on the worker; check PATH"
    )


@pytest.mark.parametrize("function", ["add", "add_later"])
@scenario
async def test_the_result_of_a_sync_or_async_function_is_returned(
    runner: ProcessRunner, function: str
) -> None:
    ending, reports = await run_attempt(runner, a_call(function, 40, 2))

    assert ending.failure is None
    assert ending.result == 42
    assert output_text(reports, Stream.STDERR) == ""


@scenario
async def test_the_input_overrides_the_options_of_the_definition(
    runner: ProcessRunner,
) -> None:
    spec = a_call(
        "add", 1, input={"kwargs": {"b": 5}}, definition={"options": {"kwargs": {"b": 9}}}
    )

    ending, _ = await run_attempt(runner, spec)

    assert ending.result == 6


@pytest.mark.parametrize("isolation", [Isolation.FORK, Isolation.SPAWN])
@scenario
async def test_a_row_whose_input_sets_what_the_definition_does_not_allow_is_not_executed(
    runner: ProcessRunner, tmp_path: Path, isolation: Isolation
) -> None:
    """A submit refuses it too, but the row may be older, or not from a submit."""
    file = tmp_path / "created"
    fixed = {"overridable": (), "isolation": isolation}
    command = a_command("touch", str(file), definition={"options": {"argv": ["true"]}, **fixed})
    environment = a_command(
        definition={"options": {"argv": ["sh", "-c", "$RUN"]}, **fixed, "overridable": ("argv",)},
        input={"env": {"RUN": f"touch {file}"}, "argv": ["sh", "-c", "$RUN"]},
    )
    function = a_call(
        "add", 1, definition={"options": {"function": "os:getpid"}, **fixed, "overridable": ()}
    )

    for spec, name in ((command, "'argv'"), (environment, "'env.RUN'"), (function, "'function'")):
        ending, _ = await run_attempt(runner, spec)

        assert ending.failure is not None
        assert ending.failure.category is ErrorCategory.VALIDATION
        assert not ending.failure.retryable
        assert f"the input sets {name}" in ending.failure.message
        assert "`overridable`" in ending.failure.message
    assert not file.exists()


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
async def test_an_exception_of_a_function_is_reported_with_its_category(
    runner: ProcessRunner, name: str, category: ErrorCategory, retryable: bool
) -> None:
    ending, _ = await run_attempt(runner, a_call("raises", name))

    assert ending.failure is not None
    assert ending.failure.category is category
    assert ending.failure.retryable is retryable


@scenario
async def test_a_function_may_say_when_to_try_again_and_its_trace_is_in_the_output(
    runner: ProcessRunner,
) -> None:
    ending, reports = await run_attempt(runner, a_call("raises", "retry"))

    assert ending.failure is not None
    assert ending.failure.retry_after == timedelta(seconds=7)
    assert ending.failure.message == "later"
    assert "Traceback" in output_text(reports, Stream.STDERR)


@pytest.mark.parametrize("function", ["no_json", "not_a_number"])
@scenario
async def test_a_result_that_is_no_json_is_a_failure_that_says_so(
    runner: ProcessRunner, function: str
) -> None:
    ending, _ = await run_attempt(runner, a_call(function))

    assert ending.failure is not None
    assert not ending.failure.retryable
    assert "JSON" in ending.failure.message


@pytest.mark.parametrize("code", [0, 5])
@scenario
async def test_a_function_that_exits_without_a_report_has_crashed(
    runner: ProcessRunner, code: int
) -> None:
    ending, _ = await run_attempt(runner, a_call("vanishes", code))

    assert ending.failure is not None
    assert ending.failure.category is ErrorCategory.CRASH
    assert ending.failure.retryable
    assert ending.failure.exit_code == code


@scenario
async def test_a_function_that_a_signal_ends_has_crashed(runner: ProcessRunner) -> None:
    ending, _ = await run_attempt(runner, a_call("dies", signal.SIGKILL))

    assert ending.failure is not None
    assert ending.failure.category is ErrorCategory.CRASH
    assert ending.failure.signal == "SIGKILL"


@scenario
async def test_a_function_that_is_not_there_is_a_failure(runner: ProcessRunner) -> None:
    ending, _ = await run_attempt(runner, a_call("missing"))

    assert ending.failure is not None
    assert ending.failure.category is ErrorCategory.PROGRAMMING


@pytest.mark.parametrize("isolation", [Isolation.FORK, Isolation.SPAWN])
@scenario
async def test_a_child_gets_only_its_environment_and_reads_its_input_from_a_private_file(
    runner: ProcessRunner,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    isolation: Isolation,
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_PARENT", "s3cr3t")
    spec = a_call(
        "sees",
        "a secret of the task",
        input={"env": {"OWN": "1"}},
        definition={"isolation": isolation},
    )

    ending, _ = await run_attempt(runner, spec)
    _, of_a_command = await run_attempt(runner, a_script("stat -c %a * .", attempt=2))

    seen = ending.result
    assert "SECRET_OF_THE_PARENT" not in seen["environment"]
    assert seen["environment"]["OWN"] == "1"
    assert seen["environment"]["LONGSHORE_ATTEMPT_TASK"] == "job-a_a"
    assert seen["environment"]["LONGSHORE_ATTEMPT"] == "1"
    assert seen["environment"]["TRACEPARENT"] == traceparent_of("job-a", "job-a_a", 1)
    unexpected = set(seen["environment"]) - {"PATH", "PWD", "OWN", "LC_CTYPE", "TRACEPARENT"}
    assert all(name.startswith("LONGSHORE_ATTEMPT") for name in unexpected)
    assert not any("secret" in argument for argument in seen["argv"])
    assert seen["note"] == "a secret of the task"
    # The spec is in memory only.
    assert (seen["folder_mode"], seen["file_modes"]) == (0o700, [])
    assert output_text(of_a_command) == "600\n600\n700\n"
    assert seen["session"]
    assert Path(seen["folder"]).is_relative_to(tmp_path)


@scenario
async def test_the_work_folder_is_removed_with_all_that_is_in_it(
    runner: ProcessRunner, tmp_path: Path
) -> None:
    ending, _ = await run_attempt(runner, a_script("mkdir -p a/b && echo x > a/b/c"))

    assert ending.failure is None
    assert list((tmp_path / "work").iterdir()) == []


@scenario
async def test_the_work_folder_can_be_kept(tmp_path: Path) -> None:
    runner = ProcessRunner(tmp_path, {"PATH": "/usr/bin:/bin"}, SystemClock(), keep_folders=True)

    await run_attempt(runner, a_script("echo x > kept"))
    await runner.close()

    assert (tmp_path / "work" / "job-a_a.1" / "kept").read_text() == "x\n"


INVALID_SPECS: list[tuple[str, AttemptSpec]] = [
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


@pytest.mark.parametrize(
    "spec", [row[1] for row in INVALID_SPECS], ids=[row[0] for row in INVALID_SPECS]
)
@scenario
async def test_a_spec_that_can_never_be_executed_is_not_tried_again(
    runner: ProcessRunner, spec: AttemptSpec
) -> None:
    ending, reports = await run_attempt(runner, spec)

    assert ending.failure is not None
    assert ending.failure.category is ErrorCategory.VALIDATION
    assert ending.failure.error_type == "longshore.errors.UsageError"
    assert reports == []


@scenario
async def test_a_machine_that_cannot_start_a_child_now_is_out_of_reach(tmp_path: Path) -> None:
    (tmp_path / "work").write_text("in the way")
    runner = ProcessRunner(tmp_path, {}, SystemClock())

    with pytest.raises(BackendUnavailable):
        await runner.start(a_command("true"), deadline_ns=NEVER_NS)
    await runner.close()
