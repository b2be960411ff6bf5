"""Faults that the definitions' contract must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part

_SQLITE = "contract/test_sqlite.py::TestSqliteDefinitions"
_FOUR = "contract/test_sqlite_processes.py::TestSqliteDefinitionsInFour"
_MEMORY = "contract/test_memory.py::TestMemoryDefinitions"

_in_sqlite = partial(Fault, part=Part.DEFINITIONS, file="adapters/sqlite/definitions.py")
_in_memory = partial(Fault, part=Part.DEFINITIONS, file="adapters/memory/definitions.py")

DEFINITION_FAULTS = (
    _in_sqlite(
        name="a deleted definition is listed",
        old='AND d.version > coalesce(h.version, 0)"\n            " GROUP BY',
        new='"\n            " GROUP BY',
        caught_by=f"{_SQLITE}::test_a_deleted_definition_is_found_only_by_its_version",
    ),
    _in_sqlite(
        name="a deleted definition is found",
        old='AND d.version > coalesce(h.version, 0)"\n    " ORDER BY',
        new='"\n    " ORDER BY',
        caught_by=f"{_SQLITE}::test_a_deleted_definition_is_found_only_by_its_version",
    ),
    _in_sqlite(
        name="every version of a deleted definition is gone",
        old='AND name = ? AND version = ?",',
        new='AND name = ? AND version = ? AND name NOT IN"\n'
        '                " (SELECT name FROM hidden_definitions)",',
        caught_by=f"{_SQLITE}::test_a_deleted_definition_is_found_only_by_its_version",
    ),
    _in_sqlite(
        name="the same content is stored again",
        old="if replace(there, version=0) == replace(definition, version=0):",
        new="if False:",
        caught_by=f"{_SQLITE}::test_the_same_content_as_the_newest_is_not_stored_again",
    ),
    _in_sqlite(
        name="versions are not counted by name",
        old='FROM definitions WHERE tenant = ? AND name = ?",\n'
        "                (tenant, definition.name),",
        new='FROM definitions WHERE tenant = ?",\n                (tenant,),',
        caught_by=f"{_SQLITE}::test_many_writers_with_content_of_their_own_all_get_a_version",
    ),
    _in_sqlite(
        name="versions are not counted by tenant",
        old='FROM definitions WHERE tenant = ? AND name = ?",\n'
        "                (tenant, definition.name),",
        new='FROM definitions WHERE name = ?",\n                (definition.name,),',
        caught_by=f"{_SQLITE}::test_tenants_do_not_meet",
    ),
    _in_sqlite(
        name="the next version is read before the write",
        old="            ((last,),) = rows(\n                connection,\n",
        new="            ((last,),) = self._database.point(\n",
        caught_by=f"{_FOUR}::test_many_writers_with_content_of_their_own_all_get_a_version",
    ),
    _in_sqlite(
        name="a version is found in every tenant",
        old='"SELECT body FROM definitions WHERE tenant = ? AND name',
        new='"SELECT body FROM definitions WHERE ? IS NOT NULL AND name',
        caught_by=f"{_SQLITE}::test_tenants_do_not_meet",
    ),
    _in_sqlite(
        name="the oldest version passes for the newest",
        old="ORDER BY d.version DESC LIMIT 1",
        new="ORDER BY d.version LIMIT 1",
        caught_by=f"{_SQLITE}::test_every_version_stays_as_it_was",
    ),
    _in_sqlite(
        name="the listing has every tenant",
        old='WHERE d.tenant = ? AND d.version > coalesce(h.version, 0)"\n            " GROUP',
        new='WHERE ? IS NOT NULL AND d.version > coalesce(h.version, 0)"\n            " GROUP',
        caught_by=f"{_SQLITE}::test_tenants_do_not_meet",
    ),
    _in_sqlite(
        name="the listing is in no order",
        old="GROUP BY d.name ORDER BY d.name",
        new="GROUP BY d.name ORDER BY d.name DESC",
        caught_by=f"{_SQLITE}::test_the_newest_versions_are_listed_by_name",
    ),
    _in_memory(
        name="a version in memory is changed by who holds it",
        old="        return _copy(newest)\n",
        new="        return newest\n",
        caught_by=f"{_MEMORY}::test_a_version_cannot_be_changed_through_what_was_handed_over",
    ),
    _in_memory(
        name="a deleted definition is listed in memory",
        old="if name[0] == tenant and name not in self._deleted",
        new="if name[0] == tenant",
        caught_by=f"{_MEMORY}::test_tenants_do_not_meet",
    ),
)
