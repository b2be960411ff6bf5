"""Settings: where each value comes from. What can be set is in ``sections``.

The only module that reads the environment; everything else is handed what it needs. A value comes
from a flag, else from the environment, else from one TOML file, else it is the default, and its
origin is kept, so that ``longshore settings`` can answer "why is it so". A name that nobody knows
is an error, not a silence: a misspelt limit would be missed when it is too late.

The layers are put together here, from the environment and the folder that are handed in, because a
library that reads the environment by itself can tell neither origins nor wrong names.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, get_args

from pydantic import SecretStr, ValidationError
from pydantic.fields import FieldInfo

from longshore.core.text.sanitise import mask_secrets
from longshore.errors import ConfigurationError
from longshore.settings.aliases import ENVIRONMENT_ALIASES, read_aliases
from longshore.settings.fields import PREFIX, Contradictions, Duration, Section, format_value
from longshore.settings.health import AlertsSettings, HealthSettings
from longshore.settings.model import (
    DefinitionsSettings,
    RetrySettings,
    Settings,
    SizesSettings,
    SqliteSettings,
    SupervisorSettings,
    WorkerSettings,
)

__all__ = [
    "ENVIRONMENT_ALIASES",
    "FIELDS",
    "AlertsSettings",
    "DefinitionsSettings",
    "Duration",
    "HealthSettings",
    "LoadedSettings",
    "RetrySettings",
    "SettingRow",
    "Settings",
    "SizesSettings",
    "SqliteSettings",
    "SupervisorSettings",
    "WorkerSettings",
    "child_environment",
    "describe",
    "load",
    "load_settings",
    "variable_of",
]

CONFIG_FILE: Final = "longshore.toml"
CONFIG_VARIABLE: Final = "LONGSHORE_CONFIG"
TRACE_VARIABLES: Final = ("TRACEPARENT", "TRACESTATE")
DEFAULT: Final = "default"
# Variables that we set for a task, and no settings: a command of ours inside a task meets them.
_ATTEMPT_PREFIX = "LONGSHORE_ATTEMPT"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSettings:
    """Settings, and where each of them came from, by name."""

    settings: Settings
    origins: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """One setting as a person wants to see it."""

    name: str
    value: str
    origin: str
    description: str
    variable: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _SourcedValue:
    value: object
    origin: str


def _section_classes() -> dict[str, type[Section]]:
    annotations = {name: field.annotation for name, field in Settings.model_fields.items()}
    return {
        name: kind
        for name, kind in annotations.items()
        if isinstance(kind, type) and issubclass(kind, Section)
    }


def _fields() -> Iterator[tuple[str, FieldInfo]]:
    for name, field in Settings.model_fields.items():
        if name not in _SECTIONS:
            yield name, field
    for section, kind in _SECTIONS.items():
        for name, field in kind.model_fields.items():
            yield f"{section}.{name}", field


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + name.replace(".", "_").upper()


_SECTIONS: Final = _section_classes()
FIELDS: Final[Mapping[str, FieldInfo]] = dict(_fields())
"""Every setting by its name, like ``data_dir`` or ``worker.concurrency``."""
_NAME_BY_VARIABLE: Final = {variable_of(name): name for name in FIELDS}


def load_settings(
    flags: Mapping[str, Any] = {},
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Settings:
    """The settings that hold here; see ``load``."""
    return load(flags, environ=environ, cwd=cwd).settings


def load(
    flags: Mapping[str, Any] = {},
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> LoadedSettings:
    """The settings that hold here, with their origins.

    Args:
        flags: By name (``worker.concurrency``); one that is None was not given.
        environ: Instead of the environment of this process.
        cwd: Instead of its current folder.

    Raises:
        ConfigurationError: with every problem that was found.
    """
    variables = _environment() if environ is None else environ
    problems: list[str] = []
    in_file = _from_file(variables, cwd or Path.cwd(), problems)
    ours = {**_from_environment(variables, problems), **_from_flags(flags, problems)}
    given = {**in_file, **_from_aliases(variables, {**in_file, **ours}), **ours}
    try:
        settings = Settings(**_nest(given))
    except ValidationError as error:
        problems.extend(_validation_problems(error, given))
        raise ConfigurationError(problems) from error
    if problems:
        raise ConfigurationError(problems)
    origins = {name: given[name].origin if name in given else DEFAULT for name in FIELDS}
    return LoadedSettings(settings=settings, origins=origins)


def describe(loaded: LoadedSettings) -> list[SettingRow]:
    """Every setting with its value and origin, in the order of the reference."""
    return [
        SettingRow(
            name=name,
            value=format_value(_value_of(loaded.settings, name)),
            origin=loaded.origins[name],
            description=field.description or "",
            variable=variable_of(name),
        )
        for name, field in FIELDS.items()
    ]


def child_environment(
    settings: Settings, environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The variables that a task gets from the environment: those allowed, and the trace."""
    variables = _environment() if environ is None else environ
    allowed = (*settings.worker.pass_environment, *TRACE_VARIABLES)
    return {name: variables[name] for name in allowed if name in variables}


def _environment() -> Mapping[str, str]:
    # This is the module that reads it, for all others.
    return os.environ


def _from_flags(flags: Mapping[str, Any], problems: list[str]) -> dict[str, _SourcedValue]:
    given = {name: value for name, value in flags.items() if value is not None}
    problems.extend(
        f"flag: {_unknown_name_message(name, FIELDS)}" for name in given if name not in FIELDS
    )
    return {
        n: _SourcedValue(value=value, origin="flag") for n, value in given.items() if n in FIELDS
    }


def _from_environment(environ: Mapping[str, str], problems: list[str]) -> dict[str, _SourcedValue]:
    """An empty variable counts as not set, as compose files and shells leave them."""
    found: dict[str, _SourcedValue] = {}
    for variable, text in environ.items():
        if not text or not variable.startswith(PREFIX) or variable == CONFIG_VARIABLE:
            continue
        if variable in _NAME_BY_VARIABLE:
            origin = f"{variable} in the environment"
            found[_NAME_BY_VARIABLE[variable]] = _SourcedValue(value=text, origin=origin)
        elif not variable.startswith(_ATTEMPT_PREFIX):
            problems.append(
                "environment:"
                f" {_unknown_name_message(variable, [*_NAME_BY_VARIABLE, CONFIG_VARIABLE])}"
            )
    return found


def _from_aliases(
    environ: Mapping[str, str], values: Mapping[str, _SourcedValue]
) -> dict[str, _SourcedValue]:
    """Likewise, under the names of other systems."""
    others = {name: item.value for name, item in values.items()}
    return {
        found.name: _SourcedValue(value=found.value, origin=f"{found.variable} in the environment")
        for found in read_aliases(environ, others)
    }


def _from_file(
    environ: Mapping[str, str], folder: Path, problems: list[str]
) -> dict[str, _SourcedValue]:
    named = environ.get(CONFIG_VARIABLE, "")
    origin = named or CONFIG_FILE
    try:
        document = tomllib.loads((folder / origin).read_text(encoding="utf-8"))
    except FileNotFoundError:
        if named:
            problems.append(f"{CONFIG_VARIABLE}: there is no file {named!r}")
        return {}
    except (OSError, ValueError) as error:
        problems.append(f"{origin}: {error}")
        return {}
    found = {}
    for name, value in _flatten(document):
        if name in FIELDS:
            found[name] = _SourcedValue(value=value, origin=origin)
        elif name in _SECTIONS:
            problems.append(f"{origin}: {name} must be a table: [{name}]")
        else:
            problems.append(f"{origin}: {_unknown_name_message(name, [*FIELDS, *_SECTIONS])}")
    return found


def _flatten(document: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    for name, value in document.items():
        if name in _SECTIONS and isinstance(value, dict):
            yield from ((f"{name}.{inner}", inner_value) for inner, inner_value in value.items())
        else:
            yield name, value


def _nest(values: Mapping[str, _SourcedValue]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, item in values.items():
        section, _, inner = name.rpartition(".")
        (nested.setdefault(section, {}) if section else nested)[inner] = item.value
    return nested


def _value_of(settings: Settings, name: str) -> object:
    section, _, inner = name.rpartition(".")
    return getattr(getattr(settings, section) if section else settings, inner)


def _unknown_name_message(name: str, names: Iterable[str]) -> str:
    close = get_close_matches(name, list(names), n=1)
    return f"no setting is called {name!r}" + (f"; did you mean {close[0]!r}?" if close else "")


def _validation_problems(
    error: ValidationError, values: Mapping[str, _SourcedValue]
) -> Iterator[str]:
    for found in error.errors(include_url=False):
        cause = found.get("ctx", {}).get("error")
        if isinstance(cause, Contradictions):
            yield from cause.messages
            continue
        # Longer than a name where one item of a list is wrong.
        place = ".".join(str(part) for part in found["loc"][:2])
        name = place if place in FIELDS else str(found["loc"][0])
        message = str(cause or f"{found['msg']}, not {values[name].value!r}")
        if _is_secret(FIELDS[name].annotation):
            # What was given stands in pydantic's own words, never in ours.
            message = str(cause) if cause else "the value is not valid"
        # The value stands in it as it was given, and it may be one that belongs elsewhere.
        yield f"{name}: {mask_secrets(message)} ({values[name].origin})"


def _is_secret(kind: object) -> bool:
    return kind is SecretStr or any(_is_secret(part) for part in get_args(kind))
