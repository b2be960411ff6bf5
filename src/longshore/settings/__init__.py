"""Settings: what can be set (``model``) and where each value comes from (``loader``).

The only package that reads the environment. Everything else receives its values as arguments.
"""

from longshore.settings.loader import (
    DEFAULT,
    ENVIRONMENT_ALIASES,
    FIELDS,
    LoadedSettings,
    SettingRow,
    child_environment,
    describe,
    is_secret,
    load,
    load_settings,
    variable_of,
)
from longshore.settings.model import (
    AgentSettings,
    ApiSettings,
    RetrySettings,
    Settings,
    WorkerSettings,
)

__all__ = [
    "DEFAULT",
    "ENVIRONMENT_ALIASES",
    "FIELDS",
    "AgentSettings",
    "ApiSettings",
    "LoadedSettings",
    "RetrySettings",
    "SettingRow",
    "Settings",
    "WorkerSettings",
    "child_environment",
    "describe",
    "is_secret",
    "load",
    "load_settings",
    "variable_of",
]
