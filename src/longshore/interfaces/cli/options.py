"""The options that every command has, and how a function becomes a command line.

A command is a function whose first argument is ``GlobalOptions``: what the shared options said.
The options
themselves are written once, below, and are put into each command's signature, where typer finds
them; so each command's help is whole, and an option works wherever it stands.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from longshore.core.text.durations import parse_duration
from longshore.interfaces.cli.exit_codes import OutputClosed


class OutputFormat(StrEnum):
    """How an answer is printed."""

    TABLE = "table"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalOptions:
    """What the shared options said."""

    data_dir: Path | None = None
    server: str | None = None
    context: str | None = None
    tenant: str | None = None
    verbose: int = 0
    output: OutputFormat = OutputFormat.TABLE

    @property
    def json(self) -> bool:
        """Whether the answer is for a program."""
        return self.output is OutputFormat.JSON

    def flags(self) -> dict[str, Any]:
        """The settings that were given on the command line, by name."""
        return {"data_dir": self.data_dir, "url": self.server, "tenant": self.tenant}


_OUTPUT_OPTION = inspect.Parameter(
    "output",
    inspect.Parameter.KEYWORD_ONLY,
    default=OutputFormat.TABLE,
    annotation=Annotated[
        OutputFormat, typer.Option("--output", "-o", help="For a person or a program.")
    ],
)
_SERVER_OPTIONS = (
    inspect.Parameter(
        "server",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[
            str | None,
            typer.Option(
                "--server",
                metavar="URL",
                help="Ask a server instead of a folder. [default: LONGSHORE_URL]",
                show_default=False,
            ),
        ],
    ),
    inspect.Parameter(
        "context",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[
            str | None,
            typer.Option(
                "--context",
                metavar="NAME",
                help="Ask a server that is remembered; see `longshore contexts`.",
                show_default=False,
            ),
        ],
    ),
)
_SHARED_OPTIONS = (
    inspect.Parameter(
        "data_dir",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[
            Path | None,
            typer.Option(
                "--data-dir",
                metavar="PATH",
                help="Folder of the database. [default: .longshore or LONGSHORE_DATA_DIR]",
                show_default=False,
            ),
        ],
    ),
    inspect.Parameter(
        "tenant",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[
            str | None,
            typer.Option("--tenant", metavar="NAME", help="Whose work it is.", show_default=False),
        ],
    ),
    inspect.Parameter(
        "verbose",
        inspect.Parameter.KEYWORD_ONLY,
        default=0,
        annotation=Annotated[
            int,
            typer.Option(
                "--verbose",
                "-v",
                count=True,
                help="Log to stderr; -vv logs more.",
                show_default=False,
            ),
        ],
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A function that is ready to become a command line."""

    function: Callable[..., int | None]
    examples: tuple[tuple[str, str], ...]
    has_output: bool  # whether it has -o
    remote: bool  # whether it can ask a server as well
    interspersed: bool  # False: what follows the first argument belongs to somebody else

    def help(self) -> str:
        """The docstring, and examples that can be copied."""
        widest = max(len(line) for line, _ in self.examples)
        lines = [f"  {line:{widest}}  {meaning}".rstrip() for line, meaning in self.examples]
        text = inspect.cleandoc(self.function.__doc__ or "")
        # The mark keeps typer from filling these lines like prose.
        return "\n".join([text, "", "\b", "Examples:", *lines])


def command(
    *examples: tuple[str, str],
    output: bool = False,
    remote: bool = False,
    interspersed: bool = True,
) -> Callable[[Callable[..., int | None]], Command]:
    """Make a command of a function whose first argument is ``GlobalOptions``."""

    def decorate_command(function: Callable[..., int | None]) -> Command:
        return Command(
            function=function,
            examples=examples,
            has_output=output,
            remote=remote,
            interspersed=interspersed,
        )

    return decorate_command


def command_line(given: Command, name: str) -> Any:
    """The command as something that parses a command line."""
    app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)
    app.command(
        name,
        help=given.help(),
        context_settings={
            "help_option_names": ["-h", "--help"],
            "allow_interspersed_args": given.interspersed,
            "max_content_width": 90,
        },
    )(_with_shared_options(given))
    return typer.main.get_command(app)


def _with_shared_options(given: Command) -> Callable[..., int | None]:
    shared = (
        *((_OUTPUT_OPTION,) if given.has_output else ()),
        *(_SERVER_OPTIONS if given.remote else ()),
        *_SHARED_OPTIONS,
    )
    names = [parameter.name for parameter in shared]
    signature = inspect.signature(given.function, eval_str=True)
    own = list(signature.parameters.values())[1:]

    @functools.wraps(given.function)
    def called(**values: Any) -> int | None:
        here = GlobalOptions(**{name: values.pop(name) for name in names})
        try:
            code = given.function(here, **values)
            # On a terminal print flushes by itself; into a pipe a lost reader shows here.
            sys.stdout.flush()
        except BrokenPipeError as error:
            raise OutputClosed from error
        return code

    parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (*own, *shared)]
    called.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in parameters}
    # Else the signature of the function itself would be found again.
    del called.__wrapped__
    return called


def parse_duration_option(text: str) -> timedelta:
    """A duration on the command line: ``90s``, ``5m``, ``1h30m`` or plain seconds."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
