"""Faults that the contract of the keys must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part

_SQLITE = "contract/test_sqlite.py::TestSqliteKeys"
_MEMORY = "contract/test_memory.py::TestMemoryKeys"

_fault = partial(Fault, part=Part.KEYS)
_in_sqlite = partial(_fault, file="adapters/sqlite/keys.py")
_in_memory = partial(_fault, file="adapters/memory/keys.py")

KEY_FAULTS = (
    _fault(
        name="a revoked key is allowed",
        file="core/keys.py",
        old="return self.revoked_at is None and (scope",
        new="return (scope",
        caught_by=f"{_SQLITE}::test_a_revoked_key_is_found_and_listed_and_allows_nothing",
    ),
    _in_sqlite(
        name="a key of another tenant can be revoked",
        old='WHERE id = ? AND tenant = ?", (key_id, tenant)',
        new='WHERE id = ?", (key_id,)',
        caught_by=f"{_SQLITE}::test_a_key_of_another_tenant_cannot_be_revoked",
    ),
    _in_sqlite(
        name="a key is revoked again and again",
        old="if record.revoked_at is not None:",
        new="if False:",
        caught_by=f"{_SQLITE}::test_a_key_is_revoked_once_and_the_first_moment_stays",
    ),
    _in_sqlite(
        name="a revocation is not written",
        old='"UPDATE keys SET body = ? WHERE id = ?", (revoked, key_id)',
        new='"UPDATE keys SET body = ? WHERE hash = ?", (revoked, key_id)',
        caught_by=f"{_SQLITE}::test_a_revoked_key_is_found_and_listed_and_allows_nothing",
    ),
    _in_sqlite(
        name="every key is revoked",
        old='"UPDATE keys SET body = ? WHERE id = ?", (revoked, key_id)',
        new="\"UPDATE keys SET body = json_set(body, '$.revoked_at', ?1 ->> '$.revoked_at')\""
        ", (revoked,)",
        caught_by=f"{_SQLITE}::test_revoking_one_key_leaves_the_others",
    ),
    _in_sqlite(
        name="an id that is taken is accepted",
        old="if not connection.changes():",
        new="if False:",
        caught_by=f"{_SQLITE}::test_an_id_that_is_taken_is_refused_and_nothing_is_kept",
    ),
    _in_sqlite(
        name="a new key takes the place of an old one",
        old="ON CONFLICT DO NOTHING",
        new="ON CONFLICT DO UPDATE SET body = excluded.body",
        caught_by=f"{_SQLITE}::test_a_hash_that_is_taken_is_refused_in_every_tenant",
    ),
    _in_sqlite(
        name="keys of every tenant are listed",
        old="SELECT body FROM keys WHERE tenant = ? ORDER BY",
        new="SELECT body FROM keys WHERE ? IS NOT NULL ORDER BY",
        caught_by=f"{_SQLITE}::test_keys_of_another_tenant_are_not_listed",
    ),
    _in_sqlite(
        name="keys are listed by id",
        old="ORDER BY created_us, id",
        new="ORDER BY id",
        caught_by=f"{_SQLITE}::test_keys_are_listed_oldest_first",
    ),
    _in_sqlite(
        name="a process remembers keys that were revoked",
        old="        found = self._database.point("
        '"SELECT body FROM keys WHERE hash = ?", (key_hash,))\n',
        new='        remembered = self.__dict__.setdefault("_remembered", {})\n'
        "        found = remembered.get(key_hash) or self._database.point("
        '"SELECT body FROM keys WHERE hash = ?", (key_hash,))\n'
        "        remembered[key_hash] = found\n",
        caught_by=f"{_SQLITE}::test_a_key_is_revoked_for_every_instance_at_once",
    ),
    _in_memory(
        name="an id that is taken is accepted in memory",
        old="if record.hash in self._records or record.id in ids:",
        new="if record.hash in self._records:",
        caught_by=f"{_MEMORY}::test_an_id_that_is_taken_is_refused_and_nothing_is_kept",
    ),
    _in_memory(
        name="a key of another tenant can be revoked in memory",
        old="if record.tenant == tenant and record.id == key_id and",
        new="if record.id == key_id and",
        caught_by=f"{_MEMORY}::test_a_key_of_another_tenant_cannot_be_revoked",
    ),
)
