"""Faults in how settings are read, and in where secrets may be."""

from functools import partial

from tests.mutants.fault import Fault, Part
from tests.planting import Argument, Condition, Drop, Replace, Value

_SETTINGS = "unit/test_settings.py"
_ALIASES = "unit/test_settings_aliases.py"

_fault = partial(Fault, part=Part.SETTINGS)

SETTINGS_FAULTS = (
    _fault(
        name="a secret cannot be in a file",
        at="settings:load",
        do=Value("= secret_files", "{}"),
        caught_by=f"{_SETTINGS}::test_a_secret_may_be_in_a_file",
    ),
    _fault(
        name="a credential of systemd is not read",
        at="settings:_read_secret_files",
        do=Condition("folder", False),
        caught_by=f"{_SETTINGS}::test_a_secret_may_be_in_a_file",
    ),
    _fault(
        name="names of other systems are read without being asked",
        at="settings:load",
        do=Condition("_is_compatible()", True),
        caught_by=f"{_ALIASES}::test_a_name_that_another_program_may_have_is_not_read_by_default",
    ),
    _fault(
        name="some variables of another system are unknown",
        at="settings:IGNORED_VARIABLES",
        do=Drop("'DEFAULT_TIMEOUT':"),
        caught_by=f"{_ALIASES}::"
        "test_every_variable_of_such_a_worker_is_understood_or_listed_as_ignored",
    ),
    _fault(
        name="names of other systems cannot be switched on",
        at="settings:_is_compatible",
        do=Value("return", "False"),
        caught_by=f"{_ALIASES}::test_every_way_to_switch_the_other_names_on_reads_them",
    ),
    _fault(
        name="a variable of another system is read in other units",
        at="settings:_convert_alias",
        do=Value("return", "text", nth=3),
        caught_by=f"{_ALIASES}::"
        "test_a_name_of_another_system_is_understood_in_its_unit_and_named_as_the_origin",
    ),
    _fault(
        name="a data folder is named like a URL",
        at="settings.model:Settings.data_dir",
        do=Replace("match()", "False"),
        caught_by=f"{_SETTINGS}::test_a_url_is_no_data_folder",
    ),
    _fault(
        name="the file of a setting that is no secret is ignored",
        at="settings:_from_environment",
        do=Condition("_ATTEMPT_PREFIX", "not variable.endswith(_FILE_SUFFIX)"),
        caught_by=f"{_SETTINGS}::test_nothing_but_a_secret_may_be_in_a_file",
    ),
    _fault(
        name="an attempt has 200 s by default",
        at="settings.model:WorkerSettings.task_timeout",
        do=Argument("setting()", 0, "timedelta(seconds=200)"),
        caught_by="unit/test_settings_sources.py::"
        "test_an_attempt_may_take_an_hour_unless_its_definition_says_otherwise",
    ),
    _fault(
        name="inside a task a store that is named is refused too",
        at="settings:check_store_is_named",
        do=Drop("== data_dir"),
        caught_by="acceptance/test_python_api.py::"
        "test_a_store_that_is_named_can_be_used_inside_a_task",
    ),
)
