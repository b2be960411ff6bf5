"""The options that every command accepts, and how a function becomes a command.

A command is a function whose first argument is ``GlobalOptions``. The fields of ``GlobalOptions``
are added to the command's own options, so the help of a command is complete. The same options can
also be written before the command, where the groups in ``main`` accept them.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from longshore.core.text.durations import parse_duration
from longshore.errors import UsageError

CommandFunction = Callable[..., Coroutine[Any, Any, int | None] | int | None]
CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 90}


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
    server: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Use a server. [default: LONGSHORE_URL]"),
    ] = None
    context: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Use a saved server; see `longshore contexts`."),
    ] = None
    data_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="Data folder. [default: .longshore or LONGSHORE_DATA_DIR]"
        ),
    ] = None
    tenant: Annotated[
        str | None, typer.Option(metavar="NAME", help="Tenant name. [default: default]")
    ] = None
    verbose: Annotated[
        int,
        typer.Option(
            "--verbose", "-v", count=True, help="Log to stderr; -vv logs more.", show_default=False
        ),
    ] = 0

    @property
    def json(self) -> bool:
        return self.output is OutputFormat.JSON

    def flags(self) -> dict[str, Any]:
        """The settings that the command line overrides, by name."""
        return {"data_dir": self.data_dir, "url": self.server, "tenant": self.tenant}


DEFAULTS = {field.name: field.default for field in fields(GlobalOptions)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A function that can become a command of the command line."""

    function: CommandFunction
    examples: tuple[tuple[str, str], ...]
    output: bool  # accepts -o
    remote: bool  # accepts --server and --context
    interspersed: bool  # False: options after the first argument belong to that argument

    def help(self) -> str:
        """The docstring and the examples."""
        widest = max(len(line) for line, _ in self.examples)
        lines = [f"  {line:{widest}}  {meaning}".rstrip() for line, meaning in self.examples]
        text = inspect.cleandoc(self.function.__doc__ or "")
        # \b keeps typer from rewrapping these lines.
        return "\n".join([text, "", "\b", "Examples:", *lines])

    def build(self, name: str) -> Any:
        """The command as typer parses and calls it."""
        app = typer.Typer(rich_markup_mode=None, add_completion=False)
        settings = {**CONTEXT_SETTINGS, "allow_interspersed_args": self.interspersed}
        app.command(name, help=self.help(), context_settings=settings)(self._callback())
        return typer.main.get_command(app)

    def _callback(self) -> Callable[..., int | None]:
        accepted = {"output": self.output, "server": self.remote, "context": self.remote}
        names = {name for name in DEFAULTS if accepted.get(name, True)}
        signature = inspect.signature(self.function, eval_str=True)
        parameters = [
            *list(signature.parameters.values())[1:],
            *(option for option in OPTION_PARAMETERS if option.name in names),
        ]

        @functools.wraps(self.function)
        def call(ctx: typer.Context, **values: Any) -> int | None:
            own = {name: values.pop(name) for name in names}
            result = self.function(_merge_options(ctx, own), **values)
            code = _run_coroutine(result) if isinstance(result, Coroutine) else result
            # Into a pipe, a closed output shows when it is flushed.
            sys.stdout.flush()
            return code

        set_parameters(call, parameters)
        return call


def _run_coroutine(coroutine: Coroutine[Any, Any, int | None]) -> int | None:
    import asyncio  # help is printed without it

    return asyncio.run(coroutine)


def set_parameters(function: Callable[..., Any], parameters: list[inspect.Parameter]) -> None:
    """Make typer see these parameters after the context, instead of the function's own."""
    kind = inspect.Parameter.KEYWORD_ONLY
    context = inspect.Parameter("ctx", kind, annotation=typer.Context)
    seen = [context, *(parameter.replace(kind=kind) for parameter in parameters)]
    function.__signature__ = inspect.Signature(seen)  # type: ignore[attr-defined]
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in seen}
    # Otherwise typer reads the signature of the wrapped function.
    vars(function).pop("__wrapped__", None)


OPTION_PARAMETERS = tuple(inspect.signature(GlobalOptions, eval_str=True).parameters.values())


def _merge_options(ctx: typer.Context, own: Mapping[str, Any]) -> GlobalOptions:
    """The options after the command's name; then those before it, from the inside out."""
    values = {name: value for name, value in own.items() if value != DEFAULTS[name]}
    parent = ctx.parent
    while parent is not None:
        for name, default in DEFAULTS.items():
            if parent.params.get(name, default) == default:
                continue
            if name not in own:
                message = f"`{ctx.command_path}` does not accept --{name}"
                raise UsageError(message)
            values.setdefault(name, parent.params[name])
        parent = parent.parent
    return GlobalOptions(**values)


def command(
    *examples: tuple[str, str],
    output: bool = True,
    remote: bool = True,
    interspersed: bool = True,
) -> Callable[[CommandFunction], Command]:
    """Make a command of a function, async or not, whose first argument is ``GlobalOptions``.

    Args:
        examples: Command lines and what they do.
        output: Whether the command accepts ``-o``.
        remote: Whether it accepts ``--server`` and ``--context``.
        interspersed: False: options after the first argument belong to that argument.
    """

    def decorate(function: CommandFunction) -> Command:
        return Command(
            function=function,
            examples=examples,
            output=output,
            remote=remote,
            interspersed=interspersed,
        )

    return decorate


def parse_duration_option(text: str) -> timedelta:
    """A duration on the command line: ``90s``, ``5m``, ``1h30m`` or plain seconds."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
