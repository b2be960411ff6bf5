"""``longshore trace``: what an agent did, from the trace that its attempt stored."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from longshore.core.agents.prices import TokenCounts
from longshore.core.agents.trace import (
    TRACE_FILE,
    TRACE_VERSION,
    StepTrace,
    TodoState,
    ToolCall,
    ToolOutcome,
)
from longshore.core.definitions.definition import Definition, RunnerKind
from longshore.core.documents import attempt_file_key
from longshore.core.ids import job_id_of
from longshore.core.tasks import commands as c
from longshore.interfaces.cli.exit_codes import ExitCode
from longshore.wiring.services import Services
from tests.interfaces.command_line import Cli, CommandResult
from tests.interfaces.conftest import At
from tests.interfaces.dead_store import LEASE, SECOND, TENANT, id_of, query_services
from tests.unit.core.agents.trace_samples import (
    NOON,
    Report,
    at,
    report,
    subagent_started,
    tool_denied,
)

Inside = Callable[..., CommandResult]


def a_step(name: str, *reports: Report, **how: Any) -> dict[str, Any]:
    trace = StepTrace(name, started_at=NOON, **how)
    for record in reports:
        record(trace)
    return trace.document(at(99))


LOOK = a_step(
    "look",
    report("session_started", session_id="49412a8d-274b", model="claude-opus-5-5"),
    report(
        "answer_received",
        at=at(1.6),
        turn_id="m1",
        text="First [bold]I look[/bold].",
    ),
    report(
        "usage_measured", turn_id="m1", tokens=TokenCounts(input=1200, output=80), cost_usd=0.0123
    ),
    report(
        "tool_requested",
        at=at(1.8),
        call=ToolCall("t1", "Bash", {"command": "ls -la"}),
        turn_id="m1",
    ),
    report("tool_started", at=at(1.8), call=ToolCall("t1", "Bash")),
    report("tool_finished", at=at(3.1), tool_id="t1", outcome=ToolOutcome.OK, duration_ms=1300),
    report("tool_requested", at=at(3.2), call=ToolCall("t2", "Agent", {"description": "Count"})),
    subagent_started("a1", "Explore", "t2"),
    report("answer_received", at=at(3.4), turn_id="m2", parent="t2", text="I count."),
    report(
        "tool_requested",
        at=at(3.5),
        call=ToolCall("t3", "Read", {"file_path": "a.md"}),
        parent="t2",
    ),
    report(
        "tool_finished", at=at(3.6), tool_id="t3", outcome=ToolOutcome.FAILED, output="No such file"
    ),
    report("tool_finished", at=at(3.9), tool_id="t2", outcome=ToolOutcome.OK, duration_ms=700),
    tool_denied(4, "t4", "Write"),
    report("noted", at=at(4.5), kind="retry", text="the API failed: retry 1 of 2 in 581 ms"),
    report("noted", at=at(5), kind="fallback", text="switched to sonnet", new_model="sonnet"),
    report("noted", at=at(5.1), kind="rateLimit", text="rate limit five_hour: rejected"),
    report("todo_seen", at=at(2), todo_id="1", subject="Look around"),
    report("todo_updated", at=at(3), todo_id="1", state=TodoState.IN_PROGRESS),
    report("todo_updated", at=at(5.5), todo_id="1", state=TodoState.COMPLETED),
    report(
        "usage_measured",
        turn_id="m9",
        tokens=TokenCounts(input=300, cache_read=13_500, output=20),
        cost_usd=0.01,
    ),
    report("query_finished", completed=True, reason="completed"),
    report("finish", at=at(7)),
)
WRITE = {
    **a_step(
        "write",
        report(
            "answer_received", at=at(1), turn_id="m1", text="API Error: 500", error="server_error"
        ),
        report("query_finished", completed=False, reason="api_error", status=500, error="it broke"),
        report("finish", at=at(62)),
        resumed=True,
        session_id="s2",
    ),
    "leftOut": {"turns": 12, "tools": 1300},
}
# An untrusted file: values of the wrong type, and far too large ones.
HOSTILE = {
    "version": 1,
    "steps": [
        7,
        {"step": "\x1b[2Jgone\x07", "end": "x", "counts": [], "tokens": 5, "turns": {"a": 1}},
        {
            "step": "odd",
            "startedAt": "yesterday",
            "resumed": "yes",
            "durationMs": 1e400,
            "costUsd": True,
            "counts": {"turns": "many", "tools": -1, "retries": float("nan")},
            "turns": [{"at": "2030-01-31T12:00:00"}, {"at": "2030-01-31T12:00:01Z", "text": ["x"]}],
            "tools": [{"startedAt": None}, {"startedAt": "2030-01-31T12:00:02Z", "name": 5}],
            "notes": [{"at": "2030-01-31T12:00:03Z", "text": "\x1b[2Jwaited"}, {}],
            "todos": [{"subject": None}, None],
            "leftOut": {"turns": "all"},
        },
    ],
}


REVIEWER = Definition(name="reviewer", runner=RunnerKind.AGENT, options={"prompt": "Look at it."})
GOOD = {"version": TRACE_VERSION, "steps": [LOOK, WRITE]}
# The trace of each task; None: it has none.
LEFT: dict[str, dict[str, Any]] = {
    "one": {"review": GOOD, "count": None},
    "odd": {
        "damaged": '{"version": 1, "st',
        "list": [],
        "newer": {"version": 2, "steps": "elsewhere"},
        "hostile": HOSTILE,
        "nothing": None,
    },
    "plain": {"count": None, "counted": None},
    "running": {"now": None},
    "waiting": {"later": None},
}


async def _fill(services: Services) -> None:
    await services.backend.definitions.put(TENANT, REVIEWER)
    for name, tasks in LEFT.items():
        listed = [
            {
                "taskId": key,
                "name": "command" if key.startswith("count") else "reviewer",
                "input": {"argv": ["true"]},
            }
            for key in tasks
        ]
        await services.producer.submit(TENANT, name, {"name": name, "tasks": listed})
        for key, left in tasks.items():
            if name != "waiting":
                await _run(services, id_of(key, name), left, ends=name != "running")


async def _run(services: Services, task_id: str, left: Any, *, ends: bool) -> None:
    """One attempt, as a worker would record it, and the trace that it left."""
    claim = c.Claim(worker_id="harbour-1", process_id=1, lease_duration=LEASE)
    claimed = await services.transitions.apply_to_task(task_id, claim)
    if left is not None:
        data = left if isinstance(left, str) else json.dumps(left)
        await services.backend.blobs.put(attempt_file_key(task_id, 1, TRACE_FILE), data.encode())
    if ends:
        completed = c.Complete(fence=claimed.fence, result=None, duration=SECOND)
        await services.transitions.apply_to_task(task_id, completed)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with jobs whose tasks left traces of all kinds, filled without any child process."""
    folder = tmp_path_factory.mktemp("store") / ".longshore"
    query_services(folder, _fill)
    return folder


def entity_id(text: str) -> str:
    """The id of a job, or of a task of one: ``one_review``."""
    job, _, key = text.partition("_")
    return job_id_of(TENANT, job) + (f"_{key}" if key else "")


@pytest.fixture
def ask(store: Path, inside: Inside, at: At) -> Inside:
    return lambda text, *more: inside("trace", entity_id(text), *more, *at(store))


@pytest.fixture
def ask_here(store: Path, inside: Inside) -> Inside:
    """Without a server, whose start takes longer than the answer."""
    return lambda text, *more: inside("trace", entity_id(text), *more, "--data-dir", str(store))


def test_the_only_agent_task_of_a_job_is_shown_as_a_timeline(ask: Inside) -> None:
    answer = ask("one")

    lines = answer.out.splitlines()
    assert answer.code == ExitCode.OK, answer.err
    assert lines[0] == f"{entity_id('one_review')}  completed  attempt 1 (latest: 1)"
    for expected in (
        r"look  completed",
        r"model +sonnet",
        r"session +49412a8d-274b",
        r"duration +7\.0 s",
        r"did +2 turns, 4 tools \(1 failed, 1 denied\), 1 subagent, 1 repeated request",
        r"tokens +15,000 in \(90% from the cache\), 100 out",
        r"cost +\$0\.0223",
        r" +AT +# +WHAT +DURATION +IN +CACHE +OUT +COST",
        r"1\.6 s +1 +First \[bold\]I look\[/bold\]\. +1\.2k +0% +80 +\$0\.0123",
        r"1\.8 s {7}Bash  ls -la +1\.3 s",
        r"3\.2 s {7}Agent  Count +700 ms",
        r"3\.4 s +2 {4}Explore  I count\.",
        r"3\.5 s {9}Read  a\.md  failed: No such file",
        r"4\.5 s {5}the API failed: retry 1 of 2 in 581 ms",
        r"5\.0 s {5}switched to sonnet",
        r"5\.1 s {5}rate limit five_hour: rejected",
        r"TO DO +STATE +PENDING +IN PROGRESS",
        r"Look around +completed +1\.0 s +2\.5 s",
        r"write  failed",
        r"session +s2 \(resumed\)",
        r"error +it broke \(api_error, 500\)",
        r"1\.0 s +1 +the API failed \(server_error\): API Error: 500",
        r"left out for length: 12 turns, 1,300 tools",
        r"in all +2 steps, 1 min 9 s, \$0\.0223",
    ):
        assert any(re.fullmatch(expected, line) for line in lines), f"{expected}\n{answer.out}"
    assert all(line == line.rstrip() for line in lines)
    assert "\x1b" not in answer.out


def test_a_job_names_its_only_agent_task(ask_here: Inside) -> None:
    assert ask_here("one_review", "--attempt", "1").out == ask_here("one").out


def test_a_trace_as_json_is_complete(ask: Inside) -> None:
    answer = ask("one", "-o", "json")

    task = {"requestId": entity_id("one_review"), "attempt": 1}
    assert answer.json == {**task, **GOOD}


@pytest.mark.parametrize(
    ("job", "options", "code", "sentence"),
    [
        ("one", ("--attempt", "5"), ExitCode.NOT_FOUND, r"_review has no attempt 5; its last .* 1"),
        ("one_count", (), ExitCode.NOT_FOUND, r"is a command task; only agent tasks have a trace"),
        (
            "one_count",
            ("-o", "json"),
            ExitCode.NOT_FOUND,
            r"is a command task; only agent tasks have a trace",
        ),
        ("one_other", (), ExitCode.NOT_FOUND, r"no job or task .* begins with"),
        ("plain", (), ExitCode.NOT_FOUND, r"job-\w+ has no agent task"),
        ("odd", (), ExitCode.USAGE, r"has 5 agent tasks; name one of them:\n  job-"),
        ("odd_damaged", (), ExitCode.NOT_FOUND, r"trace of attempt 1 of .* is damaged"),
        ("odd_damaged", ("-o", "json"), ExitCode.NOT_FOUND, r"is damaged"),
        ("odd_list", (), ExitCode.NOT_FOUND, r"is damaged"),
        ("odd_newer", (), ExitCode.NOT_FOUND, r"another version of Longshore; -o json prints"),
        ("odd_nothing", (), ExitCode.NOT_FOUND, r"attempt 1 of .* has no trace"),
        ("waiting", (), ExitCode.NOT_FOUND, r"has not started yet; `longshore why"),
        (
            "running",
            (),
            ExitCode.NOT_FOUND,
            r"attempt 1 of .* is running.*longshore logs -f job",
        ),
    ],
)
def test_the_error_says_why_there_is_no_trace(
    ask_here: Inside, job: str, options: tuple[str, ...], code: ExitCode, sentence: str
) -> None:
    answer = ask_here(job, *options)

    assert (answer.code, answer.out) == (code, "")
    assert re.search(sentence, answer.err), answer.err


def test_a_trace_of_another_version_is_printed_as_json(ask_here: Inside) -> None:
    assert ask_here("odd_newer", "-o", "json").json["steps"] == "elsewhere"


def test_an_invalid_trace_prints_no_control_characters(ask_here: Inside) -> None:
    answer = ask_here("odd_hostile")

    assert answer.code == ExitCode.OK, answer.err
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", answer.out)
    assert "[2Jgone  running" in answer.out
    assert "[2Jwaited" in answer.out


def test_a_server_without_a_trace_gives_the_same_reason(ask: Inside) -> None:
    answer = ask("odd_nothing")

    assert (answer.code, answer.out) == (ExitCode.NOT_FOUND, ""), answer.err
    assert re.search("attempt 1 of .* has no trace", answer.err)


def test_a_narrow_terminal_wraps_the_text_and_not_the_figures(store: Path, cli: Cli) -> None:
    arguments = ("trace", entity_id("one"), "--data-dir", str(store))
    with cli.terminal(*arguments, env={"COLUMNS": "80"}) as terminal:
        assert terminal.wait() == ExitCode.OK

    lines = terminal.text.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert any(line.endswith("$0.0123") for line in lines)
    # Failures are seen at a glance.
    assert "\x1b[1;31m" in terminal.shown
