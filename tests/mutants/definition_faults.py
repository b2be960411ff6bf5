"""Faults that the definitions' contract must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part
from tests.planting import Argument, Condition, Drop, Replace, Text, Value

_SQLITE = "contract/test_sqlite.py::TestSqliteDefinitions"
_FOUR = "contract/test_sqlite_processes.py::TestSqliteDefinitionsInFour"
_CACHED = "adapters/sqlite/test_definitions.py"
_MEMORY = "contract/test_memory.py::TestMemoryDefinitions"

_fault = partial(Fault, part=Part.DEFINITIONS)

DEFINITION_FAULTS = (
    _fault(
        name="a deleted definition is listed",
        at="adapters.sqlite.configuration:SqliteDefinitions.list",
        do=Text("AND deleted = 0", ""),
        caught_by=f"{_SQLITE}::test_a_deleted_definition_is_found_only_by_its_version",
    ),
    _fault(
        name="a deleted definition is found",
        at="adapters.sqlite.configuration:_NEWEST_DEFINITION",
        do=Text("AND deleted = 0", ""),
        caught_by=f"{_SQLITE}::test_a_deleted_definition_is_found_only_by_its_version",
    ),
    _fault(
        name="every version of a deleted definition is gone",
        at="adapters.sqlite.configuration:SqliteDefinitions.get",
        do=Text("version = ?", "version = ? AND deleted = 0"),
        caught_by=f"{_SQLITE}::test_a_deleted_definition_is_found_only_by_its_version",
    ),
    _fault(
        name="the same content is stored again",
        at="adapters.sqlite.configuration:SqliteDefinitions.put.work",
        do=Condition("content", False),
        caught_by=f"{_SQLITE}::test_the_same_content_as_the_newest_is_not_stored_again",
    ),
    _fault(
        name="versions are not counted by name",
        at="adapters.sqlite.configuration:SqliteDefinitions.put.work",
        do=(Text("? AND name = ?", "?"), Drop("name", nth=2)),
        caught_by=f"{_SQLITE}::test_many_writers_with_content_of_their_own_all_get_a_version",
    ),
    _fault(
        name="versions are not counted by tenant",
        at="adapters.sqlite.configuration:SqliteDefinitions.put.work",
        do=(Text("tenant = ? AND name", "name"), Argument("value()", 1, "($2,)", nth=2)),
        caught_by=f"{_SQLITE}::test_tenants_do_not_meet",
    ),
    _fault(
        name="the next version is read before the write",
        at="adapters.sqlite.configuration:SqliteDefinitions.put.work",
        do=Value("= last value()", "self._database.point_value($1, $2)"),
        caught_by=f"{_FOUR}::test_many_writers_with_content_of_their_own_all_get_a_version",
    ),
    _fault(
        name="a version is found in every tenant",
        at="adapters.sqlite.configuration:SqliteDefinitions.get",
        do=Text("tenant = ?", "? IS NOT NULL"),
        caught_by=f"{_SQLITE}::test_tenants_do_not_meet",
    ),
    _fault(
        name="the oldest version passes for the newest",
        at="adapters.sqlite.configuration:_NEWEST_DEFINITION",
        do=Text("DESC LIMIT", "LIMIT"),
        caught_by=f"{_SQLITE}::test_every_version_stays_as_it_was",
    ),
    _fault(
        name="a definition is cached although another process has changed it",
        at="adapters.sqlite.configuration:SqliteDefinitions.get",
        do=Argument("_cached_body()", 2, "0"),
        caught_by=f"{_CACHED}::test_a_change_by_another_process_is_seen_at_once",
    ),
    _fault(
        name="a definition is cached while one changes",
        at="adapters.sqlite.notifier:Notifier.definitions_version",
        do=Condition("number", False),
        caught_by=f"{_CACHED}::test_nothing_is_cached_while_a_change_is_not_known_to_have_ended",
    ),
    _fault(
        name="a change of a definition is not announced before its commit",
        at="adapters.sqlite.configuration:SqliteDefinitions.delete.work",
        do=Replace("definition_change_begun()", "0"),
        caught_by=f"{_CACHED}::test_a_change_by_another_process_is_seen_at_once",
    ),
    _fault(
        name="the listing has every tenant",
        at="adapters.sqlite.configuration:SqliteDefinitions.list",
        do=Text("tenant = ?", "? IS NOT NULL"),
        caught_by=f"{_SQLITE}::test_tenants_do_not_meet",
    ),
    _fault(
        name="the listing is in no order",
        at="adapters.sqlite.configuration:SqliteDefinitions.list",
        do=Text("ORDER BY name", "ORDER BY name DESC"),
        caught_by=f"{_SQLITE}::test_the_newest_versions_are_listed_by_name",
    ),
    _fault(
        name="a version in memory is changed by who holds it",
        at="testing.memory.keyed_stores:MemoryDefinitions.put",
        do=Replace("_copy() newest", "$1"),
        caught_by=f"{_MEMORY}::test_a_version_cannot_be_changed_through_what_was_handed_over",
    ),
    _fault(
        name="a deleted definition is listed in memory",
        at="testing.memory.keyed_stores:MemoryDefinitions.list",
        do=Drop("not in _deleted"),
        caught_by=f"{_MEMORY}::test_tenants_do_not_meet",
    ),
)
