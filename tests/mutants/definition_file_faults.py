"""Faults in bringing definitions from files that tests must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part

_SYNC = "unit/services/test_definition_sync.py"
_FILES = "interfaces/test_definition_files.py"
_WATCH = "interfaces/test_definition_watch.py"
_SCHEMA = "interfaces/test_definition_schema.py"

_fault = partial(Fault, part=Part.DEFINITIONS)
_in_sync = partial(_fault, file="services/definition_sync.py")
_in_files = partial(_fault, file="interfaces/definition_files.py")
_in_documents = partial(_fault, file="interfaces/definition_documents.py")
_in_schema = partial(_fault, file="interfaces/definition_schema.py")

DEFINITION_FILE_FAULTS = (
    _in_sync(
        name="a file that did not change overrules others after a restart",
        old="if marked is not None and _alike(marked, one.definition):",
        new="if False:",
        caught_by=f"{_SYNC}::test_a_file_that_did_not_change_does_not_overrule_what_others_stored",
    ),
    _in_sync(
        name="what did not change is stored again at every look",
        old="if said is not None and _alike(said, one.definition):",
        new="if False:",
        caught_by=f"{_SYNC}::test_a_definition_without_a_file_stays_and_that_is_told_once",
    ),
    _in_sync(
        name="what a slow process stored too late stays",
        old="if said is None or newest != said:",
        new="if True:",
        caught_by=f"{_SYNC}::test_what_a_slow_process_stored_too_late_does_not_stay",
    ),
    _in_sync(
        name="the later of two processes overrules who came between",
        old="if said is None or newest != said:",
        new="if said is None:",
        caught_by=f"{_SYNC}::test_the_later_of_two_processes_does_not_overrule_who_came_between",
    ),
    _in_sync(
        name="what is stored is not written down",
        old="        await self._mark(known, stored.version)\n",
        new="",
        caught_by=f"{_SYNC}::test_a_file_that_did_not_change_does_not_overrule_what_others_stored",
    ),
    _in_sync(
        name="folders share what they have stored",
        old='return f"{MARKS}{tenant}/{digest[:_FOLDER_CHARACTERS]}/"',
        new='return f"{MARKS}{tenant}/"',
        caught_by=f"{_SYNC}::test_two_folders_that_say_different_things_do_not_take_turns",
    ),
    _in_sync(
        name="what left the folder is told while a file cannot be read",
        old="if not reading.problems:",
        new="if True:",
        caught_by=f"{_SYNC}::test_a_definition_without_a_file_stays_and_that_is_told_once",
    ),
    _in_sync(
        name="a definition goes with its file",
        old="                await self._backend.blobs.delete(known.key)\n",
        new="                await self._backend.blobs.delete(known.key)\n"
        "                await self._backend.definitions.delete(tenant, known.name)\n",
        caught_by=f"{_SYNC}::test_a_definition_without_a_file_stays_and_that_is_told_once",
    ),
    _in_sync(
        name="a problem is told at every look",
        old="        if one not in told:\n",
        new="        if True:\n",
        caught_by=f"{_SYNC}::test_a_problem_is_told_once_and_so_is_that_it_is_over",
    ),
    _in_sync(
        name="a store out of reach ends the watch",
        old="            except BackendUnavailable as error:\n",
        new="            except BackendUnavailable as error:\n                raise\n",
        caught_by=f"{_SYNC}::test_a_watch_goes_on_whatever_breaks",
    ),
    _in_files(
        name="a change counts before it stands still",
        old="if changed and self._before.get(file) == signature:",
        new="if changed:",
        caught_by=f"{_WATCH}::test_a_change_counts_when_it_has_stood_still_for_a_look",
    ),
    _in_files(
        name="what was half written at the start is never read again",
        old="{file: _read_now(self._folder / file, file) for",
        new="{file: _content(self._folder / file, file, signatures[file]) for",
        caught_by=f"{_WATCH}::test_what_was_half_written_at_the_first_reading_is_read_again",
    ),
    _in_files(
        name="a file is gone while it is renamed",
        old="there = signatures.keys() | self._before.keys()",
        new="there = signatures.keys()",
        caught_by=f"{_WATCH}::test_a_file_that_is_saved_by_renaming_is_never_gone",
    ),
    _in_files(
        name="a folder that cannot be listed has lost its files",
        old="        if not problems:\n            # Gone",
        new="        if True:\n            # Gone",
        caught_by=f"{_WATCH}::test_a_folder_that_cannot_be_listed_for_a_while_has_lost_nothing",
    ),
    _in_files(
        name="a file that changes while it is read counts",
        old="if _signature(os.fstat(descriptor)) != _signature(before) or len",
        new="if len",
        caught_by=f"{_WATCH}::test_a_file_that_changes_while_it_is_read_is_left_to_the_next_look",
    ),
    _in_files(
        name="the first of two files that define a name wins",
        old="for file in those if len(those) > 1 else ():",
        new="for file in those[1:]:",
        caught_by=f"{_FILES}::test_a_name_in_two_files_counts_in_neither_and_both_are_told",
    ),
    _in_files(
        name="a pipe is waited for",
        old="os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC",
        new="os.O_RDONLY | os.O_CLOEXEC",
        caught_by=f"{_FILES}::test_what_is_not_a_file_is_told_and_nobody_waits_for_it",
    ),
    _in_documents(
        name="what aliases stand for is not counted",
        old="        self._left -= 1\n",
        new="",
        caught_by=f"{_FILES}::test_a_broken_file_is_told_with_its_place_and_costs_only_itself",
    ),
    _in_documents(
        name="the second of two equal keys wins",
        old="            if name in made:\n                raise Unreadable(f",
        new="            if False:\n                raise Unreadable(f",
        caught_by=f"{_FILES}::test_a_broken_file_is_told_with_its_place_and_costs_only_itself",
    ),
    _in_documents(
        name="what stands beside the definitions is overlooked",
        old="            if name != DEFINITIONS:\n",
        new="            if False:\n",
        caught_by=f"{_FILES}::test_longshore_yaml_has_definitions_and_nothing_else",
    ),
    _in_schema(
        name="the schema refuses what is null",
        old="    if name in REQUIRED:\n        return made\n",
        new="    if name:\n        return made\n",
        caught_by=f"{_SCHEMA}::test_what_is_right_passes_both",
    ),
    _in_schema(
        name="the schema does not know the least number",
        old='return Kind(read, {"type": "integer", "minimum": least})',
        new='return Kind(read, {"type": "integer"})',
        caught_by=f"{_SCHEMA}::test_what_is_wrong_passes_neither",
    ),
    _in_schema(
        name="a number that is no JSON is taken",
        old="case float() if not math.isfinite(one):",
        new="case float() if False:",
        caught_by=f"{_FILES}::test_a_broken_file_is_told_with_its_place_and_costs_only_itself",
    ),
)
