"""The entry point ``longshore``: runs a command and turns its result into an exit code.

The commands are a table. The module of a command is imported when the command is used, so that
``longshore --help`` stays fast: nothing but typer may be imported at the top.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import import_module, metadata
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from longshore.errors import LongshoreError, UsageError
from longshore.interfaces.cli import exit_codes
from longshore.interfaces.cli.exit_codes import ExitCode
from longshore.interfaces.cli.options import CONTEXT_SETTINGS, OPTIONS
from longshore.interfaces.cli.render.screen import filter_terminals

# By the name of a command: its module in ``cli.commands``, and what it does. The function in that
# module has the name of the command.
COMMANDS = {
    "demo": ("demo", "Watch a job survive a worker crash"),
    "run": ("run", "Run a command, record it, and return its exit code"),
    "submit": ("submit", "Submit a job from a YAML or JSON file"),
    "up": ("up", "Run the API, a worker and recovery in one process"),
    "worker": ("worker", "Run tasks until stopped"),
    "jobs": ("inspect", "List jobs, newest first"),
    "job": ("inspect", "Show a job and its tasks"),
    "tasks": ("inspect", "List tasks"),
    "events": ("inspect", "Show the events of a job or task"),
    "logs": ("inspect", "Show the output of a job or task"),
    "trace": ("inspect", "Show what an agent did, step by step"),
    "why": ("operate", "Explain why a job or task does not run"),
    "health": ("operate", "Check the health of running tasks"),
    "cancel": ("operate", "Cancel a job or task"),
    "resume": ("operate", "Run failed or cancelled tasks again"),
    "add": ("operate", "Add tasks to a running job"),
    "approve": ("operate", "Approve a task's result"),
    "revise": ("operate", "Reject a task's result and run the task again"),
    "prune": ("manage", "Remove jobs that ended long ago"),
    "dead list": ("dead", "List dead letters"),
    "dead show": ("dead", "Show why a task or message failed"),
    "dead replay": ("dead", "Run failed tasks again"),
    "dead discard": ("dead", "Delete dead messages"),
    "queues list": ("manage", "List queues that are paused or on hold"),
    "queues pause": ("manage", "Pause a queue"),
    "queues resume": ("manage", "Resume a queue"),
    "budget show": ("manage", "Show the limits and spending of agents"),
    "budget add": ("manage", "Raise the limit of a task, a job or a day"),
    "definitions list": ("manage", "List definitions"),
    "definitions show": ("manage", "Show a definition"),
    "definitions apply": ("manage", "Create or update definitions from files"),
    "definitions delete": ("manage", "Delete a definition"),
    "definitions schema": ("manage", "Print the JSON Schema of definitions"),
    "keys list": ("manage", "List API keys"),
    "keys create": ("manage", "Create an API key"),
    "keys revoke": ("manage", "Revoke an API key"),
    "contexts list": ("contexts", "List saved servers"),
    "contexts add": ("contexts", "Save a server and its API key"),
    "contexts use": ("contexts", "Choose the server that commands use"),
    "contexts remove": ("contexts", "Remove a saved server"),
    "aws deploy": ("aws", "Create or update an AWS deployment"),
    "aws status": ("aws", "Show an AWS deployment"),
    "aws destroy": ("aws", "Delete an AWS deployment"),
    "aws undelivered list": ("aws", "List undelivered events"),
    "aws undelivered replay": ("aws", "Publish undelivered events again"),
    "aws undelivered discard": ("aws", "Delete undelivered events"),
    "settings": ("doctor", "Show every setting and its origin"),
    "doctor": ("doctor", "Check this installation and its data"),
    "backup": ("backup", "Back up the data folder while it is used"),
    "restore": ("backup", "Restore a backup to a new data folder"),
}
_GROUPS = {
    "dead": "Dead letters: tasks and messages that failed permanently.",
    "queues": "Queues: pause and resume them for all workers.",
    "budget": "Budgets: what agents may spend on a task, on a job and in a day.",
    "definitions": "Definitions: named tasks that jobs can use.",
    "keys": "API keys: who may use the API, and for what.",
    "contexts": "Contexts: servers that commands use instead of a data folder.",
    "aws": "AWS: deploy Longshore to an account, and manage the deployment.",
    "aws undelivered": "Undelivered events: events that the AWS event bus could not deliver.",
}
_HELP = """\
Run commands, Python functions and AI agents as durable jobs.

\b
Try it:   longshore demo
Use it:   longshore run -- sh -c 'echo hello; sleep 1; echo done'
See it:   longshore jobs

Options can be written before or after the command.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    _open_standard_streams()
    filter_terminals()
    try:
        for number, word in enumerate(words, 1):
            # Python writes bytes that are not UTF-8 as surrogates.
            if any("\ud800" <= letter <= "\udfff" for letter in word):
                raise UsageError(f"argument {number} is not valid UTF-8: {word!a}")
        with _ROOT.make_context("longshore", list(words), obj={}) as context:
            return int(_ROOT.invoke(context) or ExitCode.OK)
    except typer.Exit as end:
        return end.exit_code
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # Keep the interpreter from flushing into the closed pipe when it exits.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 - the edge of the process
        shown = _usage_error(error) if isinstance(error, typer.TyperException) else error
        if isinstance(shown, LongshoreError | OSError):
            exit_codes.report_error(shown, as_json=exit_codes.wants_json(words))
        else:
            _report_unexpected(shown, words)
        return exit_codes.exit_code_of(shown)


def _open_standard_streams() -> None:
    """Open the null device in place of standard streams that the caller has closed.

    Otherwise the next file that is opened would get their number, and be taken for the output.
    """
    names = ("stdin", "stdout", "stderr")
    if None in (getattr(sys, name) for name in names):
        while (file := os.open(os.devnull, os.O_RDWR)) < len(names):
            pass
        os.close(file)
        for file, name in enumerate(names):
            if getattr(sys, name) is None:
                setattr(sys, name, open(file, "w" if file else "r", closefd=False))  # noqa: SIM115


def _usage_error(error: typer.TyperException) -> UsageError:
    # Most commands do not need it.
    from longshore.settings.model import plain_problem

    text = plain_problem(error.format_message()).rstrip(".")
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "longshore"
    return UsageError(f"{text[:1].lower()}{text[1:]}; see `{command} --help`")


class _LazyGroup(TyperGroup):
    """Finds its commands in ``COMMANDS``, and imports a command when it is used."""

    def list_commands(self, ctx: Any) -> list[str]:
        return _children(_prefix(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        path = f"{ctx.command_path} {cmd_name}".removeprefix("longshore ")
        if path in _GROUPS:
            return _build_group(_GROUPS[path], _print_help)
        return load_command(path) if path in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, *rest = args
        if name == "help":
            if not rest:
                print(ctx.get_help())
                ctx.exit()
            name, rest = rest[0], [*rest[1:], "--help"]
        if (command := self.get_command(ctx, name)) is None:
            close = get_close_matches(name, self.list_commands(ctx), n=1)
            hint = f"did you mean `{ctx.command_path} {close[0]}`?" if close else ""
            raise UsageError(f"no command {name!r}; {hint or f'see `{ctx.command_path} --help`'}")
        return name, command, rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        prefix = _prefix(ctx)
        with formatter.section("Commands"):
            names = self.list_commands(ctx)
            formatter.write_dl([(name, _summary(f"{prefix}{name}")) for name in names])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        if ctx.parent is None:
            with formatter.section("Exit codes"):
                formatter.write_dl([(f"{code:3}", code.meaning) for code in ExitCode])


def _build_group(text: str, callback: Callable[..., None]) -> Any:
    """A group of commands; it accepts the options of its commands."""
    app = typer.Typer(cls=_LazyGroup, rich_markup_mode=None, add_completion=False)
    configure = app.callback(
        help=text, invoke_without_command=True, context_settings=CONTEXT_SETTINGS
    )
    configure(callback)
    group = typer.main.get_command(app)
    group.params = [*OPTIONS, *group.params]
    return group


def _print_help(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


_Version = Annotated[bool, typer.Option("--version", help="Print the version.", show_default=False)]


def _start(ctx: typer.Context, *, version: _Version = False) -> None:
    if version:
        print(f"longshore {metadata.version('longshore')}")
    elif ctx.invoked_subcommand is None:
        print(ctx.get_help())


_ROOT = _build_group(_HELP, _start)


def load_command(path: str) -> Any:
    """Import a command of ``COMMANDS``."""
    module = import_module(f"longshore.interfaces.cli.commands.{COMMANDS[path][0]}")
    return getattr(module, path.replace(" ", "_"))


def _prefix(ctx: Any) -> str:
    """The prefix of the names of a group's commands: empty, or for example ``dead ``."""
    return f"{ctx.command_path} ".removeprefix("longshore ")


def _summary(path: str) -> str:
    if path in COMMANDS:
        return COMMANDS[path][1]
    return f"{_GROUPS[path].partition(':')[0]}: {', '.join(_children(f'{path} '))}"


def _children(prefix: str) -> list[str]:
    names = [name.removeprefix(prefix) for name in COMMANDS if name.startswith(prefix)]
    return list(dict.fromkeys(name.partition(" ")[0] for name in names))


def _report_unexpected(error: Exception, words: list[str]) -> None:
    if {"-v", "-vv", "--verbose"} & set(words):
        exit_codes.print_stderr("".join(traceback.format_exception(error)).rstrip())
        return
    exit_codes.print_stderr(
        f"longshore: unexpected {type(error).__name__} ({error}). This is a bug in Longshore;"
        " run the command again with -v to see the traceback"
    )


if __name__ == "__main__":
    sys.exit(main())
