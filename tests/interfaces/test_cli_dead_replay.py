"""``longshore dead replay``: it asks first and acts once."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from longshore.core.tasks.failures import ErrorCategory
from longshore.core.tasks.states import JobState, TaskState
from longshore.interfaces.cli.exit_codes import ExitCode
from longshore.wiring.services import Services
from tests.interfaces.command_line import Cli, CommandResult
from tests.interfaces.conftest import At
from tests.interfaces.dead_store import (
    TENANT,
    a_task,
    fail,
    fill_folder,
    id_of,
    query_services,
    rounds_of,
)

Inside = Callable[..., CommandResult]
SEND, READ, MERGE = id_of("send", "letters"), id_of("read", "letters"), id_of("merge", "report")
LETTERS = SEND.partition("_")[0]
UNTOUCHED = [1, 1, 1]


@pytest.fixture
def store(cli: Cli) -> Path:
    return fill_folder(cli.folder / ".longshore")


@pytest.fixture
def ask(store: Path, inside: Inside, at: At) -> Inside:
    return lambda *arguments: inside("dead", *arguments, *at(store))


@pytest.fixture
def rounds(store: Path) -> Callable[[], list[int]]:
    """The rounds of the three failed tasks."""
    return lambda: rounds_of(store, SEND, READ, MERGE)


Rounds = Callable[[], list[int]]


def test_a_named_task_is_replayed_without_a_question(
    ask: Inside, rounds: Rounds, at: At, store: Path
) -> None:
    answer = ask("replay", SEND[:14] + "_send")

    lines = dict(line.split(maxsplit=1) for line in answer.out.splitlines())
    assert (answer.code, answer.err) == (0, "")
    assert lines["replayed"] == f"{SEND}, now in round 2"
    # The operator of a server starts its workers.
    worker = "longshore worker --burst --queue mail; " if "--data-dir" in at(store) else ""
    assert lines["next"] == f"{worker}longshore job {LETTERS}"
    assert rounds() == [2, 1, 1]


def test_a_task_that_is_no_dead_letter_any_more_gives_exit_code_4(
    ask: Inside, rounds: Rounds
) -> None:
    ask("replay", SEND)

    again = ask("replay", SEND)

    assert (again.code, again.out) == (ExitCode.REFUSED, "")
    assert f"{SEND} was not replayed" in again.err
    assert "the task is pending in round 2" in again.err
    assert rounds() == [2, 1, 1]


def test_several_named_tasks_are_replayed_without_a_question(ask: Inside, rounds: Rounds) -> None:
    answer = ask("replay", SEND, MERGE, SEND)

    assert answer.code == 0
    assert "2 tasks of 2 jobs" in answer.out
    assert rounds() == [2, 1, 2]


@pytest.mark.parametrize(
    "selection", [("--all",), ("--since", "1h"), ("--job", LETTERS), (LETTERS,)], ids=str
)
def test_without_a_terminal_replaying_many_tasks_needs_yes(
    ask: Inside, rounds: Rounds, selection: tuple[str, ...]
) -> None:
    refused = ask("replay", *selection)
    after_refusal = rounds()
    agreed = ask("replay", *selection, "--yes", "-o", "json")

    number = 2 if LETTERS in selection else 3
    assert refused.code == ExitCode.USAGE
    assert f"this would replay {number} tasks" in refused.err
    assert "add --yes" in refused.err
    assert after_refusal == UNTOUCHED
    assert agreed.code == 0
    assert len(agreed.json["replayed"]) == number
    assert {task["round"] for task in agreed.json["replayed"]} == {2}


def test_a_single_task_that_a_filter_selects_is_replayed_without_a_question(
    ask: Inside, rounds: Rounds
) -> None:
    answer = ask("replay", "--category", "auth", "-o", "json")

    assert answer.json == {"replayed": [{"requestId": MERGE, "round": 2}], "skipped": []}
    assert rounds() == [1, 1, 2]


def test_on_a_terminal_the_number_is_shown_and_yes_replays(
    store: Path, cli: Cli, rounds: Rounds
) -> None:
    with cli.terminal("dead", "replay", "--all") as terminal:
        terminal.read_until("Replay 3 tasks? [y/N]")
        before = rounds()
        terminal.press("y\n")
        code = terminal.wait()

    assert before == UNTOUCHED
    assert "3 tasks of 2 jobs:" in terminal.text
    assert "1  mail     network" in terminal.text
    assert code == 0
    assert rounds() == [2, 2, 2]


@pytest.mark.parametrize(
    ("keys", "code"),
    [("n\n", ExitCode.FAILED), ("\n", ExitCode.FAILED), ("\x03", ExitCode.INTERRUPTED)],
    ids=["no", "enter", "Ctrl-C"],
)
def test_on_a_terminal_anything_but_yes_changes_nothing(
    store: Path, cli: Cli, rounds: Rounds, keys: str, code: int
) -> None:
    with cli.terminal("dead", "replay", "--all") as terminal:
        terminal.read_until("[y/N]")
        terminal.press(keys)
        assert terminal.wait() == code

    assert rounds() == UNTOUCHED


def test_a_task_that_fails_after_the_question_is_not_replayed(
    store: Path, cli: Cli, rounds: Rounds
) -> None:
    late = id_of("x", "letters")

    async def fail_late(services: Services) -> None:
        await fail(services, late, ErrorCategory.AUTH, "no entry")

    with cli.terminal("dead", "replay", "--all") as terminal:
        terminal.read_until("[y/N]")
        query_services(store, fail_late)
        terminal.press("yes\n")
        assert terminal.wait() == 0

    assert rounds() == [2, 2, 2]
    assert rounds_of(store, late) == [1]


def test_a_task_that_another_user_replayed_meanwhile_is_reported_and_no_failure(
    store: Path, cli: Cli, rounds: Rounds
) -> None:
    async def replay_one(services: Services) -> None:
        await services.dead_letters.replay(TENANT, [READ], by="ann")

    with cli.terminal("dead", "replay", "--all") as terminal:
        terminal.read_until("[y/N]")
        query_services(store, replay_one)
        terminal.press("y\n")
        assert terminal.wait() == 0

    assert "2 tasks of 2 jobs" in terminal.text
    assert f"{READ} was not replayed" in terminal.text
    # The tasks of a job share their rounds: READ started round 2, then SEND round 3.
    assert rounds() == [3, 2, 2]


def test_two_processes_that_replay_everything_give_each_task_one_new_round(
    store: Path, cli: Cli, rounds: Rounds
) -> None:
    command = ("dead", "replay", "--all", "--yes", "-o", "json")
    with cli.start(*command) as first, cli.start(*command) as second:
        answers = [json.loads(process.communicate()[0]) for process in (first, second)]

    replayed = sorted(task["requestId"] for answer in answers for task in answer["replayed"])
    assert replayed == sorted([SEND, READ, MERGE])
    assert rounds() == [2, 2, 2]


def test_nothing_to_replay_is_no_error(ask: Inside) -> None:
    ask("replay", "--all", "--yes")

    nothing = ask("replay", "--queue", "mail")
    in_json = ask("replay", "--queue", "mail", "-o", "json")
    everything = ask("replay", "--all")

    assert (nothing.code, nothing.out, nothing.err) == (0, "", "no dead letters\n")
    assert (in_json.code, in_json.json) == (0, {"replayed": [], "skipped": []})
    assert (everything.code, everything.err) == (0, "no dead letters\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name tasks, use a filter"),
        ((SEND, "--all"), "not both"),
        ((SEND, "--queue", "mail"), "not both"),
    ],
    ids=["nothing", "id and all", "id and filter"],
)
def test_an_unclear_selection_is_refused(
    ask: Inside, rounds: Rounds, arguments: tuple[str, ...], message: str
) -> None:
    answer = ask("replay", *arguments, "--yes")

    assert answer.code == ExitCode.USAGE
    assert message in answer.err
    assert rounds() == UNTOUCHED


def test_the_error_says_why_something_cannot_be_replayed(ask: Inside, rounds: Rounds) -> None:
    ask("replay", MERGE)

    of_job = ask("replay", MERGE.partition("_")[0])
    unknown = [ask("replay", text).code for text in ("msg-99", "job-000", "job-000_a")]

    assert of_job.code == ExitCode.REFUSED
    assert "none of its tasks has failed" in of_job.err
    assert unknown == [ExitCode.NOT_FOUND] * 3
    assert rounds() == [1, 1, 2]


def test_a_task_cannot_be_discarded(ask: Inside, rounds: Rounds) -> None:
    answer = ask("discard", SEND)

    assert answer.code == ExitCode.REFUSED
    assert "history" in answer.err
    assert rounds() == UNTOUCHED


def test_a_task_whose_cause_is_fixed_completes_in_its_new_round(cli: Cli) -> None:
    fixed = cli.folder / "fixed"
    job = {
        "tasks": [
            a_task("a", input={"argv": ["test", "-e", str(fixed)]}),
            a_task("b", dependsOn=["a"]),
        ]
    }
    cli("submit", "-", stdin=json.dumps(job))
    cli("worker", "--burst")
    broken = cli.only_job_state()
    fixed.touch()

    replayed = cli("dead", "replay", "--all")
    cli("worker", "--burst")

    async def states(services: Services) -> set[TaskState]:
        page = await services.backend.ledger.list_tasks(TENANT)
        return {row.state for row in page.items}

    assert broken is JobState.FAILED
    assert replayed.code == 0
    assert cli.only_job_state() is JobState.COMPLETED
    assert query_services(cli.folder / ".longshore", states) == {TaskState.COMPLETED}
