"""Faults in bringing definitions from files that tests must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part
from tests.planting import After, Argument, Condition, Drop, Replace, Value

_SYNC = "unit/services/test_definitions_sync.py"
_FILES = "interfaces/test_definition_files.py"
_WATCH = "interfaces/test_definition_watch.py"
_SCHEMA = "unit/core/test_definition_schema.py"

_fault = partial(Fault, part=Part.DEFINITIONS)

DEFINITION_FILE_FAULTS = (
    _fault(
        name="a file that did not change overrules others after a restart",
        at="services.definitions:DefinitionSync._sync_file",
        do=Condition("content recorded", False),
        caught_by=f"{_SYNC}::test_a_file_that_did_not_change_does_not_overrule_what_others_stored",
    ),
    _fault(
        name="what did not change is stored again at every look",
        at="services.definitions:DefinitionSync._sync_file",
        do=Condition("content synced", False),
        caught_by=f"{_SYNC}::test_a_definition_without_a_file_stays_and_that_is_logged_once",
    ),
    _fault(
        name="what a slow process stored too late stays",
        at="services.definitions:DefinitionSync._sync_file",
        do=Condition("or", True),
        caught_by=f"{_SYNC}::test_a_late_write_of_a_slow_process_is_replaced",
    ),
    _fault(
        name="the later of two processes overrules who came between",
        at="services.definitions:DefinitionSync._sync_file",
        do=Drop("!= synced"),
        caught_by=f"{_SYNC}::test_the_later_of_two_processes_does_not_overrule_who_came_between",
    ),
    _fault(
        name="what is stored is not written down",
        at="services.definitions:DefinitionSync._sync_file",
        do=Drop("_record()"),
        caught_by=f"{_SYNC}::test_a_file_that_did_not_change_does_not_overrule_what_others_stored",
    ),
    _fault(
        name="folders share what they have stored",
        at="services.definitions:_prefix",
        do=Value("return SYNC_RECORDS_PREFIX", "f'{SYNC_RECORDS_PREFIX}{tenant}/'"),
        caught_by=f"{_SYNC}::test_two_folders_that_say_different_things_do_not_take_turns",
    ),
    _fault(
        name="deleted definitions are reported while a file cannot be read",
        at="services.definitions:DefinitionSync.watch",
        do=Condition("problems", True),
        caught_by=f"{_SYNC}::test_a_definition_without_a_file_stays_and_that_is_logged_once",
    ),
    _fault(
        name="a definition goes with its file",
        at="services.definitions:DefinitionSync._forget_removed",
        do=After("delete()", "await self.backend.definitions.delete(self.tenant, name)"),
        caught_by=f"{_SYNC}::test_a_definition_without_a_file_stays_and_that_is_logged_once",
    ),
    _fault(
        name="a problem is reported at every check",
        at="services.definitions:_log_problems",
        do=Condition("not in", True),
        caught_by=f"{_SYNC}::test_a_problem_is_logged_once_and_so_is_its_end",
    ),
    _fault(
        name="a store out of reach ends the watch",
        at="services.definitions:DefinitionSync.watch",
        do=Argument("log_and_continue()", "unavailable", None),
        caught_by=f"{_SYNC}::test_an_error_does_not_end_the_watch",
    ),
    _fault(
        name="a file counts as changed while it is still being written",
        at="interfaces.definition_files:FolderWatch.poll",
        do=Drop("== get()"),
        caught_by=f"{_WATCH}::test_a_change_is_read_when_the_file_is_the_same_at_two_polls",
    ),
    _fault(
        name="what was half written at the start is never read again",
        at="interfaces.definition_files:FolderWatch.read",
        do=Replace("_read_file()", "_read_file($1, $2, signatures[$2])"),
        caught_by=f"{_WATCH}::test_a_file_half_written_at_the_first_read_is_read_again",
    ),
    _fault(
        name="a file is gone while it is renamed",
        at="interfaces.definition_files:FolderWatch.poll",
        do=Drop("keys() _previous"),
        caught_by=f"{_WATCH}::test_a_file_that_is_saved_by_renaming_is_never_gone",
    ),
    _fault(
        name="a folder that cannot be listed has lost its files",
        at="interfaces.definition_files:FolderWatch.poll",
        do=Condition("not", True),
        caught_by=f"{_WATCH}::test_a_folder_that_cannot_be_listed_keeps_its_definitions",
    ),
    _fault(
        name="a file that changes while it is read counts",
        at="interfaces.definition_files:_read_bytes",
        do=Drop("!= _signature()"),
        caught_by=f"{_WATCH}::test_a_file_that_changes_while_it_is_read_is_read_at_the_next_poll",
    ),
    _fault(
        name="the first of two files that define a name wins",
        at="interfaces.definition_files:_duplicate_problems",
        do=Value("for len()", "$1[1:]"),
        caught_by=f"{_FILES}::test_a_name_in_two_files_is_a_problem_of_both",
    ),
    _fault(
        name="a pipe is waited for",
        at="interfaces.definition_files:_read_text",
        do=Drop("O_NONBLOCK"),
        caught_by=f"{_FILES}::test_an_entry_that_is_not_a_regular_file_is_a_problem_and_does_not_block",
    ),
    _fault(
        name="expanded aliases are not counted",
        at="interfaces.document_files:_NodeConverter.convert",
        do=Drop("+= count"),
        caught_by=f"{_FILES}::test_the_problem_of_a_broken_file_has_its_line_and_affects_only_that_file",
    ),
    _fault(
        name="the second of two equal keys wins",
        at="interfaces.document_files:_NodeConverter._convert_mapping",
        do=Condition("in", False),
        caught_by=f"{_FILES}::test_the_problem_of_a_broken_file_has_its_line_and_affects_only_that_file",
    ),
    _fault(
        name="fields beside the definitions are ignored",
        at="core.definitions.reader:_DefinitionReader.file",
        do=Drop("reject_unknown()"),
        caught_by=f"{_FILES}::test_longshore_yaml_has_definitions_and_nothing_else",
    ),
    _fault(
        name="the schema refuses what is null",
        at="core.definitions.reader:_field_schema",
        do=Condition("REQUIRED", "$1"),
        caught_by=f"{_SCHEMA}::test_what_is_right_passes_both",
    ),
    _fault(
        name="the schema does not know the least number",
        at="core.definitions.reader:_integer",
        do=Drop("'minimum':"),
        caught_by=f"{_SCHEMA}::test_what_is_wrong_passes_neither",
    ),
    _fault(
        name="a number that is not JSON is accepted",
        at="core.document_reader:check_json",
        do=Condition("isfinite()", False),
        caught_by=f"{_FILES}::test_the_problem_of_a_broken_file_has_its_line_and_affects_only_that_file",
    ),
)
