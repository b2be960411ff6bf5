"""Settings: what can be set (``model``) and where each value comes from (``loader``).

The only package that reads the environment. Everything else receives its values as arguments.
"""

from longshore.settings.loader import DEFAULT as DEFAULT
from longshore.settings.loader import ENVIRONMENT_ALIASES as ENVIRONMENT_ALIASES
from longshore.settings.loader import FIELDS as FIELDS
from longshore.settings.loader import LoadedSettings as LoadedSettings
from longshore.settings.loader import SettingRow as SettingRow
from longshore.settings.loader import child_environment as child_environment
from longshore.settings.loader import describe as describe
from longshore.settings.loader import descriptions as descriptions
from longshore.settings.loader import is_secret as is_secret
from longshore.settings.loader import load as load
from longshore.settings.loader import load_settings as load_settings
from longshore.settings.loader import variable_of as variable_of
from longshore.settings.model import AgentSettings as AgentSettings
from longshore.settings.model import ApiSettings as ApiSettings
from longshore.settings.model import RetrySettings as RetrySettings
from longshore.settings.model import Settings as Settings
from longshore.settings.model import WorkerSettings as WorkerSettings
