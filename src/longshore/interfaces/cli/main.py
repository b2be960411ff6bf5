"""The entry point ``longshore``: finds the command, runs it, and turns its end into an exit code.

``longshore --help`` must answer at once, and importing typer alone takes longer than that is meant
to last. So the list of commands is a plain table here, printed without any library, and only the
module of the command that was asked for is imported. Nothing heavy may be imported at the top.

The options that every command has are taken by each command itself; those that stand before the
command's name are moved behind it, so both places work.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from longshore.errors import LongshoreError, UsageError
from longshore.interfaces.cli.exit_codes import (
    ExitCode,
    OutputClosed,
    exit_code_of,
    print_stderr,
    report_error,
    wants_json,
)


class _Command(NamedTuple):
    module: str
    function: str
    summary: str


_PACKAGE = "longshore.interfaces.cli.commands"
COMMANDS: dict[str, _Command] = {
    "demo": _Command(f"{_PACKAGE}.admin", "demo", "Watch a job survive the death of a worker"),
    "run": _Command(f"{_PACKAGE}.work", "run", "Run one command, recorded, and exit as it does"),
    "submit": _Command(f"{_PACKAGE}.work", "submit", "Submit a job from a YAML or JSON file"),
    "up": _Command(f"{_PACKAGE}.up", "up", "Run everything: the API, workers, repairs"),
    "worker": _Command(f"{_PACKAGE}.work", "worker", "Work on tasks until stopped"),
    "jobs": _Command(f"{_PACKAGE}.inspect", "jobs", "List jobs, the newest first"),
    "job": _Command(f"{_PACKAGE}.inspect", "job", "Show one job and each of its tasks"),
    "tasks": _Command(f"{_PACKAGE}.inspect", "tasks", "List tasks"),
    "events": _Command(f"{_PACKAGE}.inspect", "events", "Show what happened to a job or task"),
    "logs": _Command(f"{_PACKAGE}.inspect", "logs", "Show what a job or task printed"),
    "trace": _Command(f"{_PACKAGE}.inspect", "trace", "Show what an agent did, step by step"),
    "why": _Command(f"{_PACKAGE}.operate", "why", "Say why a job or task does not run"),
    "health": _Command(f"{_PACKAGE}.operate", "health", "Check whether what runs is well"),
    "cancel": _Command(f"{_PACKAGE}.operate", "cancel", "End a job or a task"),
    "resume": _Command(f"{_PACKAGE}.operate", "resume", "Run again what failed or was cancelled"),
    "add": _Command(f"{_PACKAGE}.operate", "add", "Add tasks to a job that is under way"),
    "approve": _Command(f"{_PACKAGE}.operate", "approve", "Say that a result in review is right"),
    "revise": _Command(f"{_PACKAGE}.operate", "revise", "Send a result in review back"),
    "dead list": _Command(f"{_PACKAGE}.dead", "list_", "List what failed for good"),
    "dead show": _Command(f"{_PACKAGE}.dead", "show", "Show why one thing failed for good"),
    "dead replay": _Command(f"{_PACKAGE}.dead", "replay", "Give what failed another round"),
    "dead discard": _Command(f"{_PACKAGE}.dead", "discard", "Forget messages that lead nowhere"),
    "queues list": _Command(f"{_PACKAGE}.queues", "list_", "List queues that are paused"),
    "queues pause": _Command(f"{_PACKAGE}.queues", "pause", "Let no task of a queue begin"),
    "queues resume": _Command(f"{_PACKAGE}.queues", "resume", "Let a queue's tasks begin again"),
    "budget show": _Command(f"{_PACKAGE}.budgets", "show", "Show what agents may spend, and have"),
    "budget add": _Command(f"{_PACKAGE}.budgets", "add", "Allow agents to spend more"),
    "definitions list": _Command(f"{_PACKAGE}.definitions", "list_", "List what jobs can name"),
    "definitions show": _Command(f"{_PACKAGE}.definitions", "show", "Show one definition"),
    "definitions apply": _Command(f"{_PACKAGE}.definitions", "apply", "Store those of files"),
    "definitions delete": _Command(f"{_PACKAGE}.definitions", "delete", "Let no new job name one"),
    "definitions schema": _Command(f"{_PACKAGE}.definitions", "schema", "Print their JSON Schema"),
    "keys list": _Command(f"{_PACKAGE}.access", "list_", "List keys to the API"),
    "keys create": _Command(f"{_PACKAGE}.access", "create", "Make a key, shown once"),
    "keys revoke": _Command(f"{_PACKAGE}.access", "revoke", "Let a key allow nothing any more"),
    "contexts list": _Command(f"{_PACKAGE}.access", "contexts", "List servers that are remembered"),
    "contexts add": _Command(f"{_PACKAGE}.access", "add", "Remember a server and its key"),
    "contexts use": _Command(f"{_PACKAGE}.access", "use", "Choose which server commands ask"),
    "contexts remove": _Command(f"{_PACKAGE}.access", "remove", "Forget a server"),
    "deploy": _Command(f"{_PACKAGE}.deploy", "deploy", "Bring an installation to AWS"),
    "status": _Command(f"{_PACKAGE}.deploy", "status", "Show what is deployed on AWS"),
    "destroy": _Command(f"{_PACKAGE}.deploy", "destroy", "Take an installation away from AWS"),
    "undelivered list": _Command(f"{_PACKAGE}.undelivered", "list_", "List undelivered events"),
    "undelivered replay": _Command(f"{_PACKAGE}.undelivered", "replay", "Tell them once more"),
    "settings": _Command(f"{_PACKAGE}.admin", "settings", "Show every setting and its origin"),
    "doctor": _Command(f"{_PACKAGE}.admin", "doctor", "Check this installation and its data"),
}
# First words of commands that have two.
_GROUPS = {
    "dead": "Dead letters: tasks that failed for good, and messages that lead to no task.",
    "undelivered": "Undelivered events: what the bus on AWS could not bring to its readers.",
    "queues": "Queues: pause one, for all workers of the installation, and resume it.",
    "budget": "Budgets: what agents may spend on a task, on a job and in a day.",
    "definitions": "Definitions: what a task does, under a name that jobs can use.",
    "keys": "Keys to the API: who can ask, and for what.",
    "contexts": "Contexts: servers that commands ask instead of the data folder.",
}
# What others call the same thing.
_ALIASES = {
    "dlq": "dead",
    "context": "contexts",
    "queue": "queues",
    "budgets": "budget",
    "definition": "definitions",
}
# Options that may stand before the command, and how many values each takes.
_GLOBAL_OPTIONS = {
    **dict.fromkeys(("--data-dir", "--server", "--context", "--tenant", "-o", "--output"), 1),
    **dict.fromkeys(("-v", "-vv", "--verbose"), 0),
}
_HELP = {"-h", "--help", "help"}
_HELP_TEMPLATE = """\
Usage: longshore [OPTIONS] COMMAND [ARGS]...

  Runs work that must not be lost and must not happen twice: commands, Python
  functions and whole jobs of them, on one machine, in one SQLite file.

  See it:       longshore demo
  Use it:       longshore run -- sh -c 'echo hello; sleep 1; echo done'
  Look at it:   longshore jobs

Commands:
{commands}

Options, before or after the command:
  --data-dir PATH  Folder of the database and the blobs  [default: .longshore,
                   or LONGSHORE_DATA_DIR]
  --server URL     Ask a server instead  [default: LONGSHORE_URL]
  --context NAME   Ask a server that is remembered; see `longshore contexts`
  --tenant NAME    Whose work it is  [default: default]
  -v, --verbose    Log to stderr; -vv logs more
  --version        Print the version
  -h, --help       Print this, or with a command all about that command

Exit codes:
{codes}
"""


class _InvalidCommandLine(UsageError):
    """The command line cannot be understood."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(given)
    except _InvalidCommandLine as error:
        report_error(error, ExitCode.USAGE, as_json=wants_json(given))
        return ExitCode.USAGE
    except (BrokenPipeError, OutputClosed):
        _discard_stdout()
        return ExitCode.BROKEN_PIPE


def _run(given: list[str]) -> int:
    moved, rest = _split_global_options(given)
    if not rest or rest[0] in _HELP:
        return _print_help(rest[1:])
    if rest[0] == "--version":
        print(f"longshore {_version()}")
        return ExitCode.OK
    name, *own = rest
    name = _ALIASES.get(name, name)
    if name in _GROUPS:
        between, own = _split_global_options(own)
        if not own or own[0] in _HELP:
            return _print_help([name, *own[1:]])
        name, moved, own = f"{name} {own[0]}", [*moved, *between], own[1:]
    if name not in COMMANDS:
        raise _InvalidCommandLine(_unknown_command_message(name))
    return _invoke(name, [*moved, *own])


def _print_help(words: list[str]) -> int:
    """Help with a command, with a group of them, or with everything."""
    for name in (" ".join(words[:2]), *words[:1]):
        if name in COMMANDS:
            return _invoke(name, ["--help"])
        if name in _GROUPS:
            print(_group_help(name))
            return ExitCode.OK
    print(_help_text())
    return ExitCode.OK


def _split_global_options(given: list[str]) -> tuple[list[str], list[str]]:
    """The options before the command, and the rest from the command on."""
    place = 0
    while place < len(given):
        name, equals, _ = given[place].partition("=")
        if name not in _GLOBAL_OPTIONS:
            break
        place += 1 + (_GLOBAL_OPTIONS[name] if not equals else 0)
    return given[:place], given[place:]


def _unknown_command_message(name: str) -> str:
    from difflib import get_close_matches

    if name.startswith("-"):
        return f"there is no option {name!r} before the command; see `longshore --help`"
    close = get_close_matches(name, COMMANDS, n=1)
    hint = f"did you mean `longshore {close[0]}`?" if close else "see `longshore --help`"
    return f"no command is called {name!r}; {hint}"


def _command_list(group: str | None = None) -> str:
    """The commands of a group; else all that have one word, and each group as one."""
    chosen: dict[str, str] = {}
    for name, command in COMMANDS.items():
        first, _, second = name.partition(" ")
        if group is None and second:
            verbs = [one.partition(" ")[2] for one in COMMANDS if one.startswith(f"{first} ")]
            chosen[first] = f"{_GROUPS[first].partition(':')[0]}: {', '.join(verbs)}"
        elif group in (None, first):
            chosen[name] = command.summary
    widest = max(len(name) for name in chosen)
    return "\n".join(f"  {name:{widest}}  {summary}" for name, summary in chosen.items())


def _group_help(name: str) -> str:
    return (
        f"Usage: longshore {name} COMMAND [OPTIONS] [ARGS]...\n\n  {_GROUPS[name]}\n\n"
        f"Commands:\n{_command_list(name)}\n\n"
        f"`longshore {name} COMMAND --help` tells all about one."
    )


def _help_text() -> str:
    codes = [f"  {code:3}  {code.meaning}" for code in ExitCode]
    return _HELP_TEMPLATE.format(commands=_command_list(), codes="\n".join(codes)).rstrip()


def _version() -> str:
    from importlib.metadata import version

    return version("longshore")


def _invoke(name: str, arguments: list[str]) -> int:
    """The edge of the process: whatever a command raises ends in a sentence and a number."""
    as_json = wants_json(arguments)
    try:
        return _call_command(name, arguments)
    except OutputClosed:
        raise
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the edge of the process
        expected, code = _classify(error, name)
        if expected is None:
            _report_unexpected(error, arguments)
        else:
            report_error(expected, code, as_json=as_json)
        return code


def _call_command(name: str, arguments: list[str]) -> int:
    from importlib import import_module

    from longshore.interfaces.cli.options import command_line

    command = COMMANDS[name]
    function = getattr(import_module(command.module), command.function)
    result: Any = command_line(function, name).main(
        arguments, prog_name=f"longshore {name}", standalone_mode=False
    )
    return int(result or 0)


def _classify(error: Exception, name: str) -> tuple[BaseException | None, int]:
    """What to tell of an error and how to end; nothing to tell for one that nobody expected."""
    import typer

    if isinstance(error, typer.Abort):
        return KeyboardInterrupt("interrupted"), ExitCode.INTERRUPTED
    if isinstance(error, typer.TyperException):
        text = error.format_message().rstrip(".")
        message = f"{text[:1].lower()}{text[1:]}; see `longshore {name} --help`"
        return _InvalidCommandLine(message), ExitCode.USAGE
    if isinstance(error, LongshoreError | OSError):
        return error, exit_code_of(error)
    return None, exit_code_of(error)


def _report_unexpected(error: Exception, arguments: list[str]) -> None:
    if {"-v", "-vv", "--verbose"} & set(arguments):
        import traceback

        print_stderr("".join(traceback.format_exception(error)).rstrip())
        return
    print_stderr(
        f"longshore: an unexpected {type(error).__name__} ({error}); this is a bug of Longshore's."
        " Run the same again with -v to see where it happened"
    )


def _discard_stdout() -> None:
    """Keep the interpreter from flushing into the broken pipe at its end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
