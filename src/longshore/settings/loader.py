"""Reads and merges settings: flags, then the environment, then one TOML file, then defaults.

The origin of each value is recorded for ``longshore settings``. An unknown name is an error:
a misspelt limit would otherwise be missed until it matters. A settings library that reads the
environment by itself reports neither origins nor unknown names, so the layers are merged here.
"""

from __future__ import annotations

import os
import re
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
from longshore.settings.fields import PREFIX, Contradictions, Section, format_value
from longshore.settings.model import Settings

CONFIG_FILE: Final = "longshore.toml"
CONFIG_VARIABLE: Final = "LONGSHORE_CONFIG"
TRACE_VARIABLES: Final = ("TRACEPARENT", "TRACESTATE")
DEFAULT: Final = "default"
# Longshore sets these variables for a task. They are not settings, but a ``longshore`` command
# that runs inside a task sees them.
_ATTEMPT_PREFIX = "LONGSHORE_ATTEMPT"

ENVIRONMENT_ALIASES: Final[Mapping[str, tuple[str, str]]] = {
    "ALERT_CHANNEL": ("alerts.slack_channel", ""),
    "ANTHROPIC_API_KEY": ("agent.api_key", ""),
    "ANTHROPIC_AUTH_TOKEN": ("agent.auth_token", ""),
    "ANTHROPIC_BASE_URL": ("agent.base_url", ""),
    "APP_NAME": ("app", ""),
    "AWS_REGION": ("aws.region", ""),
    "CLAUDE_CODE_OAUTH_TOKEN": ("agent.oauth_token", ""),
    "CLAUDE_CODE_PATH": ("agent.cli_path", ""),
    "CLAUDE_MODEL": ("agent.model", ""),
    "CLAUDE_SKIP_PERMISSIONS": ("agent.allow_bypass", ""),
    "CLAUDE_TIMEOUT": ("worker.task_timeout", "ms"),
    "DELETE_FILES_AFTER_UPLOAD": ("worker.keep_work_dirs", "opposite"),
    "MAX_CONCURRENT_CLAUDE": ("worker.concurrency", ""),
    "MAX_MESSAGE_RETRIES": ("retry.max_attempts", ""),
    "S3_BUCKET": ("aws.bucket", ""),
    "SLACK_BOT_TOKEN": ("alerts.slack_token", ""),
    "SLACK_WEBHOOK_URL": ("alerts.slack_webhook", ""),
    "SQS_HEARTBEAT_INTERVAL_MS": ("aws.heartbeat_every", "ms"),
    "SQS_QUEUE_URL": ("worker.queues", "url"),
    "TENANT_ID": ("tenant", ""),
    "VISIBILITY_EXTENSION_AMOUNT": ("worker.extend_by", "s"),
    "VISIBILITY_EXTENSION_INTERVAL": ("worker.renew_every", "ms"),
    "WAIT_TIME_SECONDS": ("worker.poll_wait", "s"),
}
"""Variables of other systems, each with its setting and the form of its value: the unit of a bare
number, the opposite of a switch, or the URL of a queue."""

_BARE_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
_OPPOSITES = {"true": "false", "1": "false", "yes": "false", "on": "false"}
_OPPOSITES |= {"false": "true", "0": "true", "no": "true", "off": "true"}
_OWN_QUEUE = re.compile(r"longshore-[^-]+-(?P<queue>.+)-(high|normal|low)(-dead)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSettings:
    """Settings, and the origin of each by name."""

    settings: Settings
    origins: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """One setting as text."""

    name: str
    value: str
    origin: str
    description: str
    variable: str


@dataclass(frozen=True, slots=True)
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
    """The current settings; see ``load``."""
    return load(flags, environ=environ, cwd=cwd).settings


def load(
    flags: Mapping[str, Any] = {},
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> LoadedSettings:
    """The current settings with their origins.

    Args:
        flags: Values by setting name (``worker.concurrency``); None: not set.
        environ: Used instead of the environment of this process.
        cwd: Used instead of the current directory.

    Raises:
        ConfigurationError: with all problems at once.
    """
    variables = _environment() if environ is None else environ
    problems: list[str] = []
    in_file = _from_file(variables, cwd or Path.cwd(), problems)
    explicit = {**_from_environment(variables, problems), **_from_flags(flags, problems)}
    values = {**in_file, **_from_aliases(variables, {**in_file, **explicit}), **explicit}
    try:
        settings = Settings(**_nest(values))
    except ValidationError as error:
        problems.extend(_validation_problems(error, values))
        raise ConfigurationError(problems) from error
    if problems:
        raise ConfigurationError(problems)
    origins = {name: values[name].origin if name in values else DEFAULT for name in FIELDS}
    return LoadedSettings(settings=settings, origins=origins)


def describe(loaded: LoadedSettings) -> list[SettingRow]:
    """Every setting with its value and origin, in the order of the reference page."""
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
    """The environment of a task: the variables that are passed on, and the trace context."""
    variables = _environment() if environ is None else environ
    allowed = (*settings.worker.pass_environment, *TRACE_VARIABLES)
    return {name: variables[name] for name in allowed if name in variables}


def _environment() -> Mapping[str, str]:
    return os.environ


def _from_flags(flags: Mapping[str, Any], problems: list[str]) -> dict[str, _SourcedValue]:
    values = {name: value for name, value in flags.items() if value is not None}
    problems.extend(
        f"flag: {_unknown_name_message(name, FIELDS)}" for name in values if name not in FIELDS
    )
    return {name: _SourcedValue(value, "flag") for name, value in values.items() if name in FIELDS}


def _from_environment(environ: Mapping[str, str], problems: list[str]) -> dict[str, _SourcedValue]:
    """An empty variable counts as not set: compose files and shells produce them."""
    values: dict[str, _SourcedValue] = {}
    for variable, text in environ.items():
        if not text or not variable.startswith(PREFIX) or variable == CONFIG_VARIABLE:
            continue
        if name := _NAME_BY_VARIABLE.get(variable):
            values[name] = _SourcedValue(text, f"{variable} in the environment")
        elif not variable.startswith(_ATTEMPT_PREFIX):
            message = _unknown_name_message(variable, [*_NAME_BY_VARIABLE, CONFIG_VARIABLE])
            problems.append(f"environment: {message}")
    return values


def _from_aliases(
    environ: Mapping[str, str], explicit: Mapping[str, _SourcedValue]
) -> dict[str, _SourcedValue]:
    """Settings under the names and in the units of other systems.

    A common name may be set for another program. A value that is useless alone (half of a pair,
    the URL of a queue without SQS) is ignored.
    """
    variables = [variable for variable in ENVIRONMENT_ALIASES if environ.get(variable)]
    present = {*explicit, *(ENVIRONMENT_ALIASES[variable][0] for variable in variables)}
    values = {}
    for variable in variables:
        if _alias_applies(variable, present, explicit):
            name, form = ENVIRONMENT_ALIASES[variable]
            text = _convert_alias(environ[variable], form)
            values[name] = _SourcedValue(text, f"{variable} in the environment")
    return values


def _alias_applies(variable: str, present: set[str], explicit: Mapping[str, _SourcedValue]) -> bool:
    bot = {"alerts.slack_token", "alerts.slack_channel"} <= present
    match variable:
        case "SQS_QUEUE_URL":
            return "backend" in explicit and str(explicit["backend"].value).lower() == "aws"
        case "ALERT_CHANNEL" | "SLACK_BOT_TOKEN":
            return bot and "alerts.slack_webhook" not in explicit
        case "SLACK_WEBHOOK_URL":
            return not bot
    return True


def _convert_alias(text: str, form: str) -> str:
    match form:
        case "url":
            return _queue_name(text)
        case "opposite":
            return _OPPOSITES.get(text.lower(), text)
    return f"{text}{form}" if _BARE_NUMBER.fullmatch(text) else text


def _queue_name(url: str) -> str:
    """The last part of a queue's URL; a queue of Longshore has stage and priority around it."""
    name = url.rstrip("/").rpartition("/")[2]
    own = _OWN_QUEUE.fullmatch(name)
    return own["queue"] if own else name


def _from_file(
    environ: Mapping[str, str], folder: Path, problems: list[str]
) -> dict[str, _SourcedValue]:
    configured = environ.get(CONFIG_VARIABLE, "")
    origin = configured or CONFIG_FILE
    try:
        document = tomllib.loads((folder / origin).read_text(encoding="utf-8"))
    except FileNotFoundError:
        if configured:
            problems.append(f"{CONFIG_VARIABLE}: there is no file {configured!r}")
        return {}
    except (OSError, ValueError) as error:
        problems.append(f"{origin}: {error}")
        return {}
    values = {}
    for name, value in _flatten(document):
        if name in FIELDS:
            values[name] = _SourcedValue(value, origin)
        elif name in _SECTIONS:
            problems.append(f"{origin}: {name} must be a table: [{name}]")
        else:
            problems.append(f"{origin}: {_unknown_name_message(name, [*FIELDS, *_SECTIONS])}")
    return values


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
    for detail in error.errors(include_url=False):
        cause = detail.get("ctx", {}).get("error")
        if isinstance(cause, Contradictions):
            yield from cause.messages
            continue
        # The location is longer than a name if one item of a list is wrong.
        location = ".".join(str(part) for part in detail["loc"][:2])
        name = location if location in FIELDS else str(detail["loc"][0])
        message = str(cause or f"{detail['msg']}, not {values[name].value!r}")
        if _is_secret(FIELDS[name].annotation):
            # pydantic's message quotes the value; the messages of this package never do.
            message = str(cause) if cause else "the value is not valid"
        # The message quotes the value, which may be a secret in the wrong setting.
        yield f"{name}: {mask_secrets(message)} ({values[name].origin})"


def _is_secret(kind: object) -> bool:
    return kind is SecretStr or any(_is_secret(part) for part in get_args(kind))
