"""``longshore dead list`` and ``dead show``: tasks that failed, and why."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from longshore.errors import UsageError
from longshore.interfaces.cli.commands.dead import parse_since
from longshore.interfaces.cli.exit_codes import ExitCode
from longshore.interfaces.cli.main import COMMANDS
from tests.interfaces.command_line import Cli, CommandResult
from tests.interfaces.conftest import At
from tests.interfaces.dead_store import fill_folder, id_of

Inside = Callable[..., CommandResult]
SEND, READ, MERGE = id_of("send", "letters"), id_of("read", "letters"), id_of("merge", "report")
LETTERS = SEND.partition("_")[0]
NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill_folder(tmp_path_factory.mktemp("store") / ".longshore")


@pytest.fixture
def ask(store: Path, inside: Inside, at: At) -> Inside:
    return lambda *arguments: inside("dead", *arguments, *at(store))


def _keys(answer: CommandResult) -> list[str]:
    """The tasks that are listed, by key."""
    return [letter["taskId"] for letter in answer.json["deadLetters"]]


def test_dead_letters_are_listed_newest_first_in_aligned_columns(ask: Inside) -> None:
    answer = ask("list")

    head, *rows = answer.out.splitlines()
    assert head.split() == ["ID", "DEFINITION", "QUEUE", "CATEGORY", "ATTEMPTS", "FAILED", "ERROR"]
    assert [row.split()[0] for row in rows] == [SEND, READ, MERGE]
    assert re.search(r" command +mail +network +2/2 .*connection reset$", rows[0])
    assert all(line == line.rstrip() for line in answer.out.splitlines())
    assert (answer.code, answer.err) == (0, "")
    assert "\x1b" not in answer.out


def test_the_list_as_json_has_the_count_and_the_kind(ask: Inside) -> None:
    answer = ask("list", "--limit", "2", "-o", "json").json

    send, read = answer["deadLetters"]
    assert (answer["count"], read["id"]) == (3, READ)
    assert (send["kind"], send["id"], send["requestId"]) == ("task", SEND, SEND)
    assert (send["attemptsUsed"], send["maxAttempts"], send["round"]) == (2, 2, 1)
    assert (send["error"], send["category"]) == ("connection reset", "network")


@pytest.mark.parametrize(
    ("filters", "listed"),
    [
        (("--queue", "mail"), ["send"]),
        (("--definition", "command"), ["send", "read", "merge"]),
        (("--category", "validation"), ["read"]),
        (("--job", LETTERS[:12]), ["send", "read"]),
        (("--job", LETTERS, "--category", "network"), ["send"]),
        (("--since", "1h"), ["send", "read", "merge"]),
        (("--since", "2100-01-01"), []),
    ],
)
def test_filters_select_dead_letters(
    ask: Inside, filters: tuple[str, ...], listed: list[str]
) -> None:
    answer = ask("list", *filters, "-o", "json")

    assert _keys(answer) == listed
    assert answer.json["count"] == len(listed)


def test_following_the_cursor_lists_every_dead_letter_once(ask: Inside) -> None:
    keys, cursor = [], None
    while cursor is not None or not keys:
        answer = ask(
            "list", "--limit", "2", "-o", "json", *(("--cursor", cursor) if cursor else ())
        )
        keys += _keys(answer)
        cursor = answer.json["cursor"]

    assert keys == ["send", "read", "merge"]
    page = ask("list", "--limit", "2").err
    cursor = ask("list", "--limit", "2", "-o", "json").json["cursor"]
    assert f"more results: --cursor {cursor}\n" in page
    assert "3 dead letters in total" in page


def test_an_empty_list_is_no_error(ask: Inside) -> None:
    answer = ask("list", "--queue", "nowhere")

    assert (answer.code, answer.out, answer.err) == (0, "", "no dead letters\n")


def test_another_tenant_sees_no_task(store: Path, inside: Inside) -> None:
    def ask(*arguments: str) -> CommandResult:
        return inside("dead", *arguments, "--data-dir", str(store))

    answer = ask("list", "--tenant", "other", "-o", "json")

    assert _keys(answer) == []
    assert ask("show", SEND, "--tenant", "other").code == ExitCode.NOT_FOUND


@pytest.mark.parametrize(
    "arguments",
    [
        ("list", "--since", "someday"),
        ("list", "--category", "sideways"),
        ("list", "--cursor", "nonsense"),
        ("list", "--limit", "0"),
        ("show",),
    ],
)
def test_a_wrong_command_line_is_one_sentence_and_exit_code_2(
    ask: Inside, arguments: tuple[str, ...]
) -> None:
    answer = ask(*arguments)

    assert (answer.code, answer.out) == (ExitCode.USAGE, "")
    assert len(answer.err.splitlines()) == 1


def test_listing_a_missing_data_folder_does_not_create_it(cli: Cli) -> None:
    answer = cli("dead", "list")

    assert answer.code == ExitCode.NOT_FOUND
    assert list(cli.folder.iterdir()) == []


def test_a_task_is_shown_with_its_attempts_and_its_last_lines_of_output(ask: Inside) -> None:
    answer = ask("show", SEND)

    pairs = dict(
        line.split(maxsplit=1) for line in answer.out.partition("\n\n")[0].splitlines()[1:]
    )
    attempts = answer.out.partition("ATTEMPT ")[2].splitlines()[1:3]
    assert answer.out.startswith("send  failed\n")
    assert (pairs["task"], pairs["queue"], pairs["error"]) == (SEND, "mail", "connection reset")
    assert (pairs["attempts"], pairs["input"]) == ("2 of 2 used", "17 bytes")
    assert pairs["next"] == f"longshore dead replay {SEND}"
    assert [line.split()[0] for line in attempts] == ["1", "2"]
    assert all(re.search(r"network +9 +harbour-1 +connection reset$", line) for line in attempts)
    assert "  | connecting\n" in answer.out
    assert "  ! password=[masked] was refused\n" in answer.out
    assert f"longshore logs {SEND}" in answer.out


def test_a_task_as_json_has_its_attempts_and_its_last_lines(ask: Inside) -> None:
    shown = ask("show", SEND, "-o", "json").json

    assert (shown["id"], shown["endedBy"], shown["inputBytes"]) == (SEND, "worker", 17)
    assert [attempt["attempt"] for attempt in shown["attempts"]] == [1, 2]
    assert {attempt["error"] for attempt in shown["attempts"]} == {"connection reset"}
    assert {attempt["durationMs"] for attempt in shown["attempts"]} == {1000}
    assert shown["task"]["status"] == "failed"
    assert [line["stream"] for line in shown["lastLines"]] == ["stdout", "stderr"]


def test_a_job_names_its_only_dead_letter(ask: Inside) -> None:
    assert ask("show", MERGE.partition("_")[0], "-o", "json").json["id"] == MERGE


def test_a_job_with_several_dead_letters_lists_them(ask: Inside) -> None:
    answer = ask("show", LETTERS)

    assert answer.code == ExitCode.USAGE
    assert SEND in answer.err
    assert READ in answer.err


def test_a_task_that_has_not_failed_is_no_dead_letter(ask: Inside) -> None:
    answer = ask("show", id_of("x", "letters"))

    assert answer.code == ExitCode.NOT_FOUND
    assert "is pending and not a dead letter" in answer.err


@pytest.mark.parametrize("text", ["msg-99", "job-000", "job-000_a"])
def test_the_error_for_an_unknown_id_names_a_listing(ask: Inside, text: str) -> None:
    answer = ask("show", text)

    assert answer.code == ExitCode.NOT_FOUND
    assert re.search(r"`longshore (jobs|dead list)`", answer.err)


def test_a_terminal_gets_colours_unless_no_color_is_set(store: Path) -> None:
    cli = Cli(store.parent)
    arguments = ("dead", "show", SEND)
    with (
        cli.terminal(*arguments) as coloured,
        cli.terminal(*arguments, env={"NO_COLOR": "1"}) as plain,
    ):
        assert (coloured.wait(), plain.wait()) == (0, 0)

    assert re.search(r"\x1b\[[\d;]*31m", coloured.shown)
    assert not re.search(r"\x1b\[[\d;]*3\dm", plain.shown)
    assert "connection reset" in plain.text


def test_ids_are_complete_in_a_narrow_terminal(store: Path) -> None:
    with Cli(store.parent).terminal("dead", "list", env={"COLUMNS": "80"}) as narrow:
        assert narrow.wait() == 0

    table = narrow.text.partition("\n\n")[0]
    assert all(f"{task}  " in table for task in (SEND, READ, MERGE))
    assert max(len(line) for line in table.splitlines()) <= 80


@pytest.mark.parametrize(
    "arguments", [("dead",), ("dead", "--help"), ("dead", "-h"), ("help", "dead"), ("dead", "help")]
)
def test_the_help_of_a_group_lists_its_commands(inside: Inside, arguments: tuple[str, ...]) -> None:
    answer = inside(*arguments)

    names = [name.removeprefix("dead ") for name in COMMANDS if name.startswith("dead ")]
    assert answer.code == 0
    assert len(names) == 4
    assert [name for name in names if f"\n  {name} " not in answer.out] == []
    assert "\n  jobs " not in answer.out


@pytest.mark.parametrize(
    "arguments",
    [("dead", "show", "--help"), ("help", "dead", "show"), ("dead", "help", "show")],
)
def test_help_for_a_command_of_a_group(inside: Inside, arguments: tuple[str, ...]) -> None:
    answer = inside(*arguments)

    assert answer.code == 0
    assert answer.out.startswith("Usage: longshore dead show ")


def test_a_misspelt_command_of_the_group_gets_a_suggestion(inside: Inside) -> None:
    answer = inside("dead", "lst")

    assert answer.code == ExitCode.USAGE
    assert "did you mean `longshore dead list`?" in answer.err


@pytest.mark.parametrize("position", [0, 1, 2])
def test_global_options_are_accepted_at_any_position(
    store: Path, inside: Inside, position: int
) -> None:
    words = ["dead", "list"]
    words[position:position] = ["--data-dir", str(store), "-o", "json"]

    answer = inside(*words)

    assert answer.json["count"] == 3, answer


def test_since_accepts_a_duration_or_a_date() -> None:
    assert parse_since("90m", NOW) == NOW - timedelta(minutes=90)
    assert parse_since("7d", NOW) == NOW - timedelta(days=7)
    assert parse_since("2026-01-31T10:30:00Z", NOW) == NOW - timedelta(minutes=90)
    assert parse_since("2026-01-31", NOW) == datetime(2026, 1, 31).astimezone()


@pytest.mark.parametrize("text", ["", "soon", "-1h", "2026-13-01", "9999999999999d"])
def test_an_invalid_time_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="use 2h"):
        parse_since(text, NOW)
