"""Settings: reads and merges flags, then the environment, then one TOML file, then defaults.

What can be set is in ``model``. Only this package reads the environment; everything else receives
its values as arguments. The origin of each value is recorded for ``longshore settings``. An unknown
name is an error: a misspelt limit would otherwise be missed until it matters. A settings library
that reads the environment by itself reports neither origins nor unknown names, so the layers are
merged here.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, is_dataclass
from difflib import get_close_matches
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from longshore.core.text.known_secrets import SECRET_MIN_CHARACTERS
from longshore.core.text.sanitise import mask_secrets
from longshore.errors import ConfigurationError, UsageError
from longshore.settings.model import Settings as Settings
from longshore.settings.model import format_value, plain_problem

PREFIX: Final = "LONGSHORE_"
CONFIG_FILE: Final = "longshore.toml"
CONFIG_VARIABLE: Final = "LONGSHORE_CONFIG"
CREDENTIALS_VARIABLE: Final = "CREDENTIALS_DIRECTORY"
DEFAULT: Final = "default"
_FILE_SUFFIX = "_FILE"
# Longshore sets these variables for a task. They are not settings, but a ``longshore`` command
# that runs inside a task sees them.
_ATTEMPT_PREFIX = "LONGSHORE_ATTEMPT"

ENVIRONMENT_ALIASES: Final[Mapping[str, tuple[str, str]]] = {
    "ANTHROPIC_API_KEY": ("agent.api_key", ""),
    "ANTHROPIC_AUTH_TOKEN": ("agent.auth_token", ""),
    "ANTHROPIC_BASE_URL": ("agent.base_url", ""),
    "AWS_REGION": ("aws.region", ""),
    "CLAUDE_CODE_OAUTH_TOKEN": ("agent.oauth_token", ""),
}
"""Variables of Anthropic's and Amazon's own tools, each with its setting and the form of its value:
the unit of a bare number, the opposite of a switch, or the URL of a queue."""
COMPATIBLE_VARIABLES: Final[Mapping[str, tuple[str, str]]] = {
    "ALERT_CHANNEL": ("alerts.slack_channel", ""),
    "APP_NAME": ("app", ""),
    "CLAUDE_CODE_PATH": ("agent.cli_path", ""),
    "CLAUDE_MODEL": ("agent.model", ""),
    "CLAUDE_SKIP_PERMISSIONS": ("agent.allow_bypass", ""),
    "CLAUDE_TIMEOUT": ("worker.task_timeout", "ms"),
    "DELETE_FILES_AFTER_UPLOAD": ("worker.keep_work_dirs", "opposite"),
    "MAX_CONCURRENT_CLAUDE": ("worker.concurrency", ""),
    "MAX_MESSAGE_RETRIES": ("retry.max_attempts", ""),
    "NODE_ENV": ("environment", ""),
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
"""Names that a worker of another system may have, as ``ENVIRONMENT_ALIASES``; read only with the
setting ``compat_env``, because any program may have them for purposes of its own."""
IGNORED_VARIABLES: Final[Mapping[str, str]] = {
    "AWS_ACCESS_KEY_ID": "read by the AWS libraries, not a setting",
    "AWS_SECRET_ACCESS_KEY": "read by the AWS libraries, not a setting",
    "DEFAULT_TIMEOUT": "a step of an agent has `timeout` in its definition",
    "DYNAMODB_EVENTS_TABLE_NAME": "tables are named after the stage (`environment`)",
    "EVENTBRIDGE_BUS_NAME": "the bus is named after the stage (`environment`)",
    "MAX_MESSAGES": "a worker asks for as many tasks as it has free slots (`worker.concurrency`)",
    "PROCESSING_TIMEOUT_MS": "unused by the system that documents it",
    "TASK_DEFINITIONS_TABLE": "tables are named after the stage (`environment`)",
    "VISIBILITY_TIMEOUT": "the first renewal replaces it (`worker.extend_by`)",
}
"""Names that such a system has, and that are never read as a setting, each with the reason."""

_BARE_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
_OPPOSITES = {"true": "false", "1": "false", "yes": "false", "on": "false"}
_OPPOSITES |= {"false": "true", "0": "true", "no": "true", "off": "true"}
_TRUE = {"true", "1", "yes", "on", "t", "y"}
_OWN_QUEUE = re.compile(r"longshore-[^-]+-(?P<queue>.+)-(high|normal|low)(-dead)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSettings:
    """Settings, and the origin of each by name."""

    settings: Settings
    origins: Mapping[str, str]


class SettingRow(NamedTuple):
    """One setting as text."""

    name: str
    value: str
    origin: str
    description: str
    variable: str


_Values = dict[str, tuple[object, str]]
"""Values and their origins by setting name."""


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + name.replace(".", "_").upper()


_MAIN_FIELDS: Final = cast("Any", Settings).__pydantic_fields__
_SECTIONS: Final[Mapping[str, Any]] = {
    name: field.annotation for name, field in _MAIN_FIELDS.items() if is_dataclass(field.annotation)
}
FIELDS: Final[Mapping[str, FieldInfo]] = {
    **{name: field for name, field in _MAIN_FIELDS.items() if name not in _SECTIONS},
    **{
        f"{section}.{name}": kind.__pydantic_fields__[name]
        for section, kind in _SECTIONS.items()
        for name in kind.__annotations__
    },
}
"""Every setting by its name, like ``data_dir`` or ``worker.concurrency``."""
_NAME_BY_VARIABLE: Final = {variable_of(name): name for name in FIELDS}


def is_secret(name: str) -> bool:
    """Whether a setting's value must never be shown."""
    return "SecretStr" in str(FIELDS[name].annotation)


_SECRET_VARIABLES: Final[Mapping[str, str]] = {
    variable: name
    for variable, name in (
        *_NAME_BY_VARIABLE.items(),
        *((a, name) for a, (name, _) in {**ENVIRONMENT_ALIASES, **COMPATIBLE_VARIABLES}.items()),
    )
    if is_secret(name)
}
"""The variables that a file may replace, each with its setting."""


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
    variables = dict(os.environ if environ is None else environ)
    unknown_flags = [name for name in flags if name not in FIELDS]
    problems = [f"flag: {_unknown_name_message(name, FIELDS)}" for name in unknown_flags]
    in_file = _from_file(variables, cwd or Path.cwd(), problems)
    aliases = ENVIRONMENT_ALIASES
    if _is_compatible(flags, variables, in_file):
        aliases = {**aliases, **COMPATIBLE_VARIABLES}
    unread = COMPATIBLE_VARIABLES.keys() - aliases
    secret_files = _read_secret_files(variables, unread, problems)
    explicit = _from_environment(variables, problems) | {
        name: (value, "flag")
        for name, value in flags.items()
        if value is not None and name in FIELDS
    }
    values = in_file | _from_aliases(aliases, variables, in_file | explicit) | explicit
    for variable, origin in secret_files.items():
        name = _SECRET_VARIABLES[variable]
        if name in values and values[name][1] == f"{variable} in the environment":
            values[name] = (values[name][0], origin)
    nested: dict[str, Any] = {}
    for name, (value, _) in values.items():
        section, _, inner = name.rpartition(".")
        (nested.setdefault(section, {}) if section else nested)[inner] = value
    try:
        settings = Settings(**nested)
    except ValidationError as error:
        problems += _validation_problems(error, values)
        raise ConfigurationError(problems) from error
    if problems:
        raise ConfigurationError(problems)
    origins = {name: values[name][1] if name in values else DEFAULT for name in FIELDS}
    return LoadedSettings(settings=settings, origins=origins)


def check_store_is_named(settings: Settings, environ: Mapping[str, str] | None = None) -> None:
    """Refuse the default data folder inside a task: it is deleted with the attempt's folder.

    Raises:
        UsageError: this process belongs to an attempt, and no other store is named.
    """
    variables = os.environ if environ is None else environ
    inside = any(variable.startswith(_ATTEMPT_PREFIX) for variable in variables)
    if inside and settings.backend == "sqlite" and settings.data_dir == Settings.data_dir:
        raise UsageError(
            "inside a task the default data folder is deleted with the attempt: name the data"
            " folder (--data-dir, data_dir=… or LONGSHORE_DATA_DIR) or a server (--server);"
            " in a module that tasks import, put the code that runs the program under"
            " `if __name__ == '__main__':`"
        )


def unread_variables(settings: Settings, environ: Mapping[str, str] | None = None) -> list[str]:
    """The variables that are present and would be read with ``compat_env``."""
    variables = os.environ if environ is None else environ
    if settings.compat_env:
        return []
    return [name for name in COMPATIBLE_VARIABLES if variables.get(name)]


def describe(loaded: LoadedSettings) -> list[SettingRow]:
    """Every setting with its value and origin, in the order of the reference page."""
    described = descriptions()
    return [
        SettingRow(
            name,
            format_value(attrgetter(name)(loaded.settings)),
            loaded.origins[name],
            described[name],
            variable_of(name),
        )
        for name in FIELDS
    ]


def descriptions() -> dict[str, str]:
    """The docstring of each setting.

    Read from the source when it is asked for: pydantic would read it each time a process starts.
    """
    section_names = {kind: name for name, kind in _SECTIONS.items()}
    described: dict[str, str] = {}
    for kind in (Settings, *section_names):
        tree: Any = ast.parse(inspect.getsource(kind)).body[0]
        prefix = f"{section_names[kind]}." if kind in section_names else ""
        for statement, following in pairwise(tree.body):
            match statement, following:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(ast.Constant(str(text))):
                    described[prefix + name] = " ".join(text.split())
    return described


def child_environment(
    settings: Settings, environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The environment of a task: the variables that are passed on."""
    variables = os.environ if environ is None else environ
    allowed = settings.worker.pass_environment
    return {name: variables[name] for name in allowed if name in variables}


def read_task_secret(
    listed: Collection[str], name: str, *, environ: Mapping[str, str] | None = None
) -> str:
    """The value of a secret that a definition gives to its tasks, as it is now.

    It is the variable of that name, the content of the file that NAME_FILE names, or a credential
    of systemd.

    Raises:
        UsageError: it is not listed, there is none of this name, or it is too short.
    """
    # In these messages nothing follows a name that the masking of secrets would take for its value.
    if name not in listed:
        raise UsageError(
            f"this worker does not give the secret {name!r} to tasks; to allow it, add its name to"
            " the setting worker.task_secrets"
        )
    variables = os.environ if environ is None else environ
    value = variables.get(name, "")
    path = variables.get(f"{name}{_FILE_SUFFIX}", "")
    folder = variables.get(CREDENTIALS_VARIABLE)
    if not value and not path and folder and (credential := Path(folder, name)).exists():
        path = str(credential)
    if not value and path:
        try:
            value = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            message = f"the file {path!r} of the secret {name!r} cannot be read ({error})"
            raise UsageError(message) from error
    if len(value) < SECRET_MIN_CHARACTERS:
        raise UsageError(
            f"the secret {name!r} has fewer than {SECRET_MIN_CHARACTERS} characters in the"
            f" environment of this worker, or is not there; set the variable, or {name}_FILE with"
            " the path of its file, or load it as a credential of systemd"
        )
    return value


def _is_compatible(flags: Mapping[str, Any], environ: Mapping[str, str], in_file: _Values) -> bool:
    """Whether ``compat_env`` is on: it decides how the environment is read."""
    value = flags.get("compat_env")
    if value is None:
        value = environ.get(variable_of("compat_env")) or in_file.get("compat_env", ("", ""))[0]
    return str(value).lower() in _TRUE


def _read_secret_files(
    variables: dict[str, str], unread: Set[str], problems: list[str]
) -> dict[str, str]:
    """Set the variables of secrets that are in files. Returns which, each with its origin.

    The file is named by the variable with ``_FILE`` behind its name, or is a credential of systemd
    that has the name of the variable.
    """
    origins: dict[str, str] = {}
    folder = variables.get(CREDENTIALS_VARIABLE)
    for variable in _SECRET_VARIABLES.keys() - unread:
        path = variables.pop(f"{variable}{_FILE_SUFFIX}", "")
        origin = f"{variable}{_FILE_SUFFIX} in the environment"
        if path and variables.get(variable):
            problems.append(
                f"environment: {variable} and {variable}{_FILE_SUFFIX} are both set; keep one"
            )
        elif not path and folder and not variables.get(variable):
            credential = Path(folder, variable)
            path = str(credential) if credential.exists() else ""
            origin = f"the credential {variable} of systemd"
        if not path:
            continue
        try:
            variables[variable] = Path(path).read_text(encoding="utf-8").strip()
        except OSError as error:
            problems.append(f"{origin}: {path!r} cannot be read: {error.strerror}")
            continue
        except ValueError:
            problems.append(f"{origin}: {path!r} is not UTF-8 text")
            continue
        if not variables[variable]:
            problems.append(f"{origin}: {path!r} is empty")
        origins[variable] = origin
    return origins


def _from_environment(environ: Mapping[str, str], problems: list[str]) -> _Values:
    """An empty variable counts as not set: compose files and shells produce them."""
    values: _Values = {}
    for variable, text in environ.items():
        if not text or not variable.startswith(PREFIX) or variable == CONFIG_VARIABLE:
            continue
        if name := _NAME_BY_VARIABLE.get(variable):
            values[name] = (text, f"{variable} in the environment")
        elif not variable.startswith(_ATTEMPT_PREFIX):
            message = _unknown_name_message(variable, [*_NAME_BY_VARIABLE, CONFIG_VARIABLE])
            problems.append(f"environment: {message}")
    return values


def _from_aliases(
    aliases: Mapping[str, tuple[str, str]], environ: Mapping[str, str], explicit: _Values
) -> _Values:
    """Settings under the names and in the units of other systems.

    A value that is useless alone (half of a pair, the URL of a queue without SQS) is ignored.
    """
    variables = {name for name in aliases if environ.get(name)}
    present = {*explicit, *(aliases[variable][0] for variable in variables)}
    bot = {"alerts.slack_token", "alerts.slack_channel"} <= present
    if str(explicit.get("backend", ("",))[0]).lower() != "aws":
        variables -= {"SQS_QUEUE_URL"}
    if bot:
        variables -= {"SLACK_WEBHOOK_URL"}
    if not bot or "alerts.slack_webhook" in explicit:
        variables -= {"ALERT_CHANNEL", "SLACK_BOT_TOKEN"}
    return {
        aliases[variable][0]: (
            _convert_alias(environ[variable], aliases[variable][1]),
            f"{variable} in the environment",
        )
        for variable in variables
    }


def _convert_alias(text: str, form: str) -> str:
    match form:
        case "url":
            # The last part of a queue's URL; a queue of Longshore has stage and priority around it.
            name = text.rstrip("/").rpartition("/")[2]
            own = _OWN_QUEUE.fullmatch(name)
            return own["queue"] if own else name
        case "opposite":
            return _OPPOSITES.get(text.lower(), text)
    return f"{text}{form}" if _BARE_NUMBER.fullmatch(text) else text


def _from_file(environ: Mapping[str, str], folder: Path, problems: list[str]) -> _Values:
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
    values: _Values = {}
    for name, value in _flatten(document):
        if name in FIELDS:
            values[name] = (value, origin)
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


def _unknown_name_message(name: str, names: Iterable[str]) -> str:
    close = get_close_matches(name, list(names), n=1)
    return f"no setting is called {name!r}" + (f"; did you mean {close[0]!r}?" if close else "")


def _validation_problems(error: ValidationError, values: _Values) -> Iterator[str]:
    for detail in error.errors(include_url=False):
        cause: Any = detail.get("ctx", {}).get("error")
        # The location is longer than a name if one item of a list is wrong, and shorter if values
        # of one section, or of several, contradict each other.
        location = [str(part) for part in detail["loc"][:2]]
        name = next((name for name in (".".join(location), *location[:1]) if name in FIELDS), None)
        if name is None:
            yield from (": ".join([*location, message]) for message in cause.args)
            continue
        value, origin = values[name]
        message = str(cause or f"{plain_problem(detail['msg'])}, not {value!r}")
        if is_secret(name):
            # pydantic's message quotes the value; the messages of this package never do.
            message = str(cause or "the value is not valid")
        # The message quotes the value, which may be a secret in the wrong setting.
        yield f"{name}: {mask_secrets(message)} ({origin})"
