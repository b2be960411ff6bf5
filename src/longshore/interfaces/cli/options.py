"""The options of commands, how a function becomes a command, and how its answer is printed.

A command is a function whose first argument is ``GlobalOptions``. The fields of ``GlobalOptions``
are added to the command's own options, so the help of a command is complete. The same options can
also be written before the command: groups have them too, and ``ctx.obj`` collects them.

Options that several commands share and use together are a dataclass: an argument of such a type
adds its fields to the command's options.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from longshore.errors import UsageError
from longshore.interfaces.cli.exit_codes import print_stderr
from longshore.interfaces.cli.render import screen

ItemT = TypeVar("ItemT")
CommandFunction = Callable[..., Coroutine[Any, Any, int | None] | int | None]
CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 90}


def option(metavar: str, text: str, *names: str, **limits: Any) -> Any:
    """An option: the placeholder of its value, what it does, and its names if they differ."""
    return typer.Option(*names, metavar=metavar, help=text, **limits)


def flag(text: str, *names: str) -> Any:
    """An option without a value: what it does, and its names."""
    return typer.Option(*names, help=text, show_default=False)


def argument(metavar: str, text: str) -> Any:
    """An argument: its placeholder and what it is."""
    return typer.Argument(metavar=metavar, help=text)


class OutputFormat(StrEnum):
    """How a command prints its answer."""

    TABLE = "table"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalOptions:
    """The options that commands share."""

    output: Annotated[OutputFormat, typer.Option("--output", "-o", help="Output format.")] = (
        OutputFormat.TABLE
    )
    server: Annotated[str | None, option("URL", "Use a server. [default: LONGSHORE_URL]")] = None
    context: Annotated[
        str | None, option("NAME", "Use a saved server; see `longshore contexts`.")
    ] = None
    data_dir: Annotated[
        Path | None, option("PATH", "Data folder. [default: .longshore or LONGSHORE_DATA_DIR]")
    ] = None
    tenant: Annotated[str | None, option("NAME", "Tenant name. [default: default]")] = None
    verbose: Annotated[
        int,
        typer.Option(
            "--verbose", "-v", count=True, help="Log to stderr; -vv logs more.", show_default=False
        ),
    ] = 0

    @property
    def json(self) -> bool:
        return self.output is OutputFormat.JSON

    def print_answer(self, document: Any, sentence: str) -> None:
        """Print the answer of an operation: a sentence, or the document with ``-o json``."""
        if self.json:
            screen.print_json(document)
        else:
            print(sentence)

    def print_listing(
        self,
        document: Any,
        items: Sequence[ItemT],
        row: Callable[[ItemT], screen.Row],
        *,
        empty: str,
        error: Callable[[ItemT], str] = lambda _: "",
        cursor: str | None = None,
    ) -> None:
        """Print a page of a listing: a table, or the document with ``-o json``.

        Args:
            row: The row of an item.
            empty: The message if there are no items.
            error: The error of an item, as in ``screen.print_table``.
            cursor: Where the next page begins; None: there is none.
        """
        if self.json:
            screen.print_json(document)
        elif not items:
            print_stderr(empty)
        else:
            screen.print_table([row(item) for item in items], [error(item) for item in items])
            if cursor is not None:
                print_stderr(f"more results: --cursor {cursor}", masked=False)


def _parse_options() -> list[Any]:
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command()(GlobalOptions)
    options = typer.main.get_command(app).params
    for option in options:
        option.expose_value, option.callback = False, _store_option
    return options


def _store_option(ctx: Any, option: Any, value: Any) -> None:
    """Store an option that was used; the options after a command replace those before it."""
    if ctx.get_parameter_source(option.name).name != "DEFAULT":
        ctx.obj[option.name] = value


OPTIONS = _parse_options()
"""The fields of ``GlobalOptions`` as typer parses them."""


def command(
    *examples: tuple[str, str],
    output: bool = True,
    remote: bool = False,
    interspersed: bool = True,
) -> Callable[[CommandFunction], Any]:
    """Make a command of a function, async or not, whose first argument is ``GlobalOptions``.

    Args:
        examples: Command lines and what they do.
        output: Whether the command accepts ``-o``.
        remote: Whether it accepts ``--server`` and ``--context``.
        interspersed: False: options after the first argument belong to that argument.
    """
    accepted = {"output": output, "server": remote, "context": remote}
    refused = {name for name in accepted if not accepted[name]}

    def decorate(function: CommandFunction) -> Any:
        def call(options: typer.Context, **values: Any) -> int | None:
            import asyncio  # help is printed without it

            for name in sorted(refused & options.obj.keys()):
                raise UsageError(f"`{options.command_path}` does not accept --{name}")
            for name, kind in groups.items():
                values[name] = kind(**{item.name: values.pop(item.name) for item in fields(kind)})
            result = function(GlobalOptions(**options.obj), **values)
            code = asyncio.run(result) if isinstance(result, Coroutine) else result
            # Into a pipe, a closed output shows when it is flushed.
            sys.stdout.flush()
            return code

        signature = inspect.signature(function, eval_str=True)
        groups: dict[str, Any] = {}
        parameters: list[inspect.Parameter] = []
        for parameter in signature.parameters.values():
            if not parameters:
                parameters.append(parameter.replace(name="options", annotation=typer.Context))
            elif is_dataclass(parameter.annotation):
                group: Any = parameter.annotation
                groups[parameter.name] = group
                shared = inspect.signature(group, eval_str=True)
                parameters += shared.parameters.values()
            else:
                parameters.append(parameter)
        call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        widest = max(len(line) for line, _ in examples)
        lines = [f"  {line:{widest}}  {meaning}".rstrip() for line, meaning in examples]
        # \b keeps typer from rewrapping these lines.
        text = [inspect.cleandoc(function.__doc__ or ""), "", "\b", "Examples:", *lines]
        settings = {**CONTEXT_SETTINGS, "allow_interspersed_args": interspersed}
        app = typer.Typer(rich_markup_mode=None, add_completion=False)
        app.command(help="\n".join(text), context_settings=settings)(call)
        parser = typer.main.get_command(app)
        parser.params += [option for option in OPTIONS if option.name not in refused]
        return parser

    return decorate
