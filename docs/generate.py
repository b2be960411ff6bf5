"""Writes docs/reference from the code: what can be set, told, raised and typed.

A list that is written by hand is wrong one day, so these pages have no hand in them. The same code
gives the same bytes: no dates, no versions, nothing of the machine it runs on. A test writes the
pages anew and compares.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

from pydantic import ByteSize

from longshore import errors
from longshore.adapters.aws.stacks.privileges import GRANTS, PLACES
from longshore.core.events.codec import EVENT_TYPES, EventDoc, to_wire
from longshore.core.events.codec import describe as describe_events
from longshore.core.events.event import Context, Event
from longshore.core.events.folding import EVENT_TO_STATE
from longshore.core.events.types import Activity, TaskHeartbeat
from longshore.interfaces.cli.exits import ExitCode, code_of
from longshore.interfaces.cli.main import COMMANDS
from longshore.interfaces.cli.options import command_line
from longshore.interfaces.definition_schema import longshore_yaml_schema, schema
from longshore.services.dispatcher import ENDING_EVENTS
from longshore.settings import FIELDS, FOREIGN_NAMES, Settings, variable_of
from longshore.settings.sections import text_of

FOLDER = Path(__file__).parent / "reference"
_WRITTEN_BY = "Written by `make docs` from the code; edit the code instead."
_MARK = f"<!-- {_WRITTEN_BY} -->"
_NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)
_UNITS = {
    "s": "seconds",
    "ms": "milliseconds",
    "opposite": "the opposite: `true` there is `false` here",
    "url": "the last part of the address; only where the backend is `aws`",
    "": "as here",
}

Rows = Iterable[Sequence[str]]


def pages() -> dict[str, str]:
    """Every page by its file name."""
    return {
        "cli.md": cli_page(),
        "definition.schema.json": _json_page(schema()),
        "errors.md": errors_page(),
        "events.md": events_page(),
        "longshore.schema.json": _json_page(longshore_yaml_schema()),
        "privileges.md": privileges_page(),
        "settings.md": settings_page(),
    }


def _page(*parts: str) -> str:
    title, *rest = (part.strip("\n") for part in parts)
    return "\n\n".join([title, _MARK, *rest]) + "\n"


def _json_page(document: dict[str, Any]) -> str:
    return json.dumps({"$comment": _WRITTEN_BY, **document}, indent=2) + "\n"


def _table(head: Sequence[str], rows: Rows) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def settings_page() -> str:
    """Every setting: name, variable, default, bounds."""
    return _page(
        "# Settings",
        "A value comes from a flag of the command line, else from the environment, else from"
        " `longshore.toml` in the current folder (`LONGSHORE_CONFIG` names another file), else it"
        " is the default. In the file, a section is a table: `[worker]`. `longshore settings`"
        " shows what holds here and where each value came from.",
        "Durations are written like `90s`, `5m`, `1h30m`, `250ms` or plain seconds; sizes like"
        " `64KiB` or plain bytes; lists with commas between. A name that nobody knows is an error.",
        *_setting_sections(),
        "## Names of other systems",
        "Understood in the environment too, with the unit that a bare number has there; the"
        " variable of the setting itself comes first. One that says nothing by itself is passed"
        " over: `SLACK_BOT_TOKEN` without a channel, `ALERT_CHANNEL` without a token.",
        _table(
            ["variable", "setting", "what it says"],
            ([f"`{v}`", f"`{name}`", _UNITS[unit]] for v, (name, unit) in FOREIGN_NAMES.items()),
        ),
    )


def _setting_sections() -> Iterator[str]:
    sections: dict[str, list[str]] = {}
    for name in FIELDS:
        sections.setdefault(name.rpartition(".")[0], []).append(name)
    defaults = Settings()
    for section, names in sections.items():
        yield f"## `{section}`" if section else "## General"
        if section:
            yield inspect.getdoc(type(getattr(defaults, section))) or ""
        yield _table(
            ["setting", "default", "allowed", "what it is", "variable"],
            (_setting_row(name, getattr(defaults, section, defaults)) for name in names),
        )


def _setting_row(name: str, section: Any) -> list[str]:
    value = getattr(section, name.rpartition(".")[2])
    written = ", ".join(f"`{item}`" for item in text_of(value).split(","))
    described = FIELDS[name].description or ""
    return [f"`{name}`", written, _allowed(name), described, f"`{variable_of(name)}`"]


def _allowed(name: str) -> str:
    field = FIELDS[name]
    choices = [item for item in get_args(field.annotation) if isinstance(item, str)]
    if choices:
        return ", ".join(f"`{choice}`" for choice in choices)
    if field.annotation is bool:
        return "`true`, `false`"
    bounds = [
        getattr(item, side)
        for side in ("ge", "le")
        for item in field.metadata
        if hasattr(item, side)
    ]
    if field.annotation is ByteSize:
        bounds = [ByteSize(bound) for bound in bounds]
    return " to ".join(f"`{text_of(bound)}`" for bound in bounds)


def events_page() -> str:
    """Every event type, and one event as it travels."""
    documents = describe_events()
    return _page(
        "# Events",
        "Each event is about one entity: a task, a job, a queue or the system. The envelope is the"
        " same for all; what differs is in `properties`. Moments and durations are whole"
        " milliseconds; `context.origin` says who told it: the producer, a worker, the dispatcher,"
        " the sweeper or an operator. [Why it is so](../explain/events.md).",
        _table(
            ["event", "of", "state after it", "ends it", "wakes the dispatcher"],
            (_event_row(document) for document in documents),
        ),
        "## The envelope",
        "A heartbeat as it travels. `PK` to `GSI7SK` are the keys by which a store can find it;"
        " readers on the same machine ask the log and need none of them.",
        f"```json\n{json.dumps(_sample(), indent=2)}\n```",
        *(part for document in documents for part in _event_section(document)),
    )


def _event_row(document: EventDoc) -> list[str]:
    state = EVENT_TO_STATE.get(document.name)
    anchor = document.name.lower().replace(" ", "-")
    return [
        f"[{document.name}](#{anchor})",
        document.entity.value.lower(),
        f"`{state.value}`" if state else "",
        "yes" if document.terminal else "",
        "yes" if document.name in ENDING_EVENTS else "",
    ]


def _event_section(document: EventDoc) -> Iterator[str]:
    yield f"## {document.name}"
    yield (inspect.getdoc(EVENT_TYPES[document.name]) or "").replace("``", "`")
    rows = ([f"`{p.name}`", p.kind, "yes" if p.optional else ""] for p in document.properties)
    yield _table(["property", "kind", "may be missing"], rows)


def _sample() -> dict[str, Any]:
    body = TaskHeartbeat(
        task_id="job-k7q2_load",
        job_id="job-k7q2",
        effective_until=_NOON + timedelta(seconds=45),
        number=2,
        elapsed=timedelta(seconds=40),
        worker_id="harbour-4711-9f31c2",
        process_id=4720,
        attempt_number=1,
        rss_bytes=48_234_496,
        last_activity=Activity(type="step_running", step_name="parse", timestamp=_NOON),
    )
    event = Event(
        entity_type=body.ENTITY,
        entity_id=body.task_id,
        tenant="default",
        app="longshore",
        sequence=4,
        at=_NOON,
        body=body,
        context=Context(origin="worker", worker_id=body.worker_id),
    )
    return to_wire(event, environment="dev")


def privileges_page() -> str:
    """Who may do what on AWS."""
    return _page(
        "# Privileges on AWS",
        "What the policies of the stacks allow each function and each service, and nothing else;"
        " `longshore deploy` makes a role for each. A test runs everything on a stand-in that"
        " denies the rest, notes each call, and compares both ways. Every function may also write"
        " to its own log. [How to deploy](../howto/deploy-to-aws.md).",
        *(part for name in GRANTS for part in _privileges_of(name)),
    )


def _privileges_of(name: str) -> Iterator[str]:
    yield f"## {name}"
    yield _table(
        ["with", "may", "why"],
        (
            [
                PLACES[grant.place].called,
                ", ".join(f"`{one}`" for one in sorted(grant.actions)),
                grant.why,
            ]
            for grant in GRANTS[name]
        ),
    )


def errors_page() -> str:
    """Every error: what it means, what it carries."""
    tree = inspect.cleandoc(errors.__doc__ or "").partition("::\n\n")[2]
    drawn, _, rest = tree.partition("\n\nAn error carries")
    return _page(
        "# Errors",
        f"```text\n{inspect.cleandoc(drawn)}\n```",
        "An error carries" + rest.replace("``", "`"),
        *(part for error in error_classes() for part in _error_section(error)),
    )


def error_classes() -> list[type[Exception]]:
    """Every exception of the errors module, as they stand there."""
    found = [value for value in vars(errors).values() if inspect.isclass(value)]
    return [kind for kind in found if issubclass(kind, Exception)]


def _error_section(error: type[Exception]) -> Iterator[str]:
    yield f"## {error.__name__}"
    yield (inspect.getdoc(error) or "").replace("``", "`")
    facts = [] if error.__init__ is Exception.__init__ else _arguments(error)
    above = error.__mro__[1].__name__
    if above in vars(errors):
        yield f"A kind of [{above}](#{above.lower()})."
    if facts:
        yield f"Carries {', '.join(f'`{fact}`' for fact in facts)}."
    if issubclass(error, errors.LongshoreError):
        # Only its class decides, so it need not be filled.
        code = code_of(error.__new__(error))
        yield f"The command line exits with {code:d}: {code.meaning}."


def _arguments(error: type[Exception]) -> list[str]:
    return list(inspect.signature(error.__init__).parameters)[1:]


def commands() -> list[tuple[str, Any]]:
    """Every command by its name, as what parses its command line."""
    return [
        (name, command_line(getattr(import_module(entry.module), entry.function), name))
        for name, entry in COMMANDS.items()
    ]


def cli_page() -> str:
    """Every command with its help, arguments and options."""
    known = commands()
    shared = _shared(known)
    return _page(
        "# Commands",
        _table(
            ["command", "what it does"],
            (
                [f"[`longshore {name}`](#{name.replace(' ', '-')})", COMMANDS[name].summary]
                for name, _ in known
            ),
        ),
        *(part for name, command in known for part in _command_section(name, command, shared)),
        "## Options of every command",
        "They may stand before the command too.",
        _parameters(known[0][1], [one for one in known[0][1].params if one.name in shared]),
        "## Exit codes",
        _table(["code", "meaning"], ([f"{code:d}", code.meaning] for code in ExitCode)),
    )


def _shared(known: Sequence[tuple[str, Any]]) -> set[str]:
    names = [{param.name for param in command.params} for _, command in known]
    return set.intersection(*names)


def _command_section(name: str, command: Any, shared: set[str]) -> Iterator[str]:
    text, _, examples = command.help.partition("\b\nExamples:\n")
    yield f"## {name}"
    yield from (_paragraph(part) for part in text.strip().split("\n\n"))
    yield f"```text\n{' '.join(['longshore', name, *_pieces(command)])}\n```"
    if own := [param for param in command.params if param.name not in shared]:
        yield _parameters(command, own)
    if examples:
        lines = (line.strip().partition("  ") for line in examples.strip("\n").splitlines())
        yield _table(["example", ""], ([f"`{line}`", what] for line, _, what in lines))


def _paragraph(text: str) -> str:
    """Prose as it is; what is marked as not to be filled is a block."""
    if text.startswith("\b\n"):
        return f"```text\n{inspect.cleandoc(text[2:])}\n```"
    return text.strip().replace("``", "`")


def _pieces(command: Any) -> list[str]:
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    return ["[OPTIONS]", *(_metavar(param) for param in arguments)]


def _metavar(param: Any) -> str:
    name = str(param.metavar or param.name.upper())
    return f"{name}..." if param.nargs == -1 and not name.endswith("...") else name


def _parameters(command: Any, params: Sequence[Any]) -> str:
    hints = command.callback.__annotations__
    rows = ([_spelling(param), *_meaning(param, hints[param.name])] for param in params)
    return _table(["", "what it is", "default"], rows)


def _spelling(param: Any) -> str:
    if param.param_type_name == "argument":
        return f"`{_metavar(param)}`"
    return ", ".join(f"`{name}`" for name in (*param.opts, *param.secondary_opts))


def _meaning(param: Any, hint: Any) -> tuple[str, str]:
    """What it is, and its default: the parser's, or the one that the help text names."""
    text, _, named = (param.help or "").partition(" [default: ")
    plain = get_args(hint)[0]
    for kind in (plain, *get_args(plain)):
        if inspect.isclass(kind) and issubclass(kind, Enum):
            text += f" One of {', '.join(f'`{choice.value}`' for choice in kind)}."
    value = param.default
    if named or not value:
        return text, named.removesuffix("]")
    return text, f"`{getattr(value, 'value', value)}`"


def main() -> None:
    """Write every page."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        print(f"docs/reference/{name}")


if __name__ == "__main__":
    main()
