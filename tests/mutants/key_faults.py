"""Faults that the contract of the keys must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part
from tests.planting import Argument, Condition, Drop, Replace, Text

_SQLITE = "contract/test_sqlite.py::TestSqliteKeys"
_MEMORY = "contract/test_memory.py::TestMemoryKeys"

_fault = partial(Fault, part=Part.KEYS)

_SERVER = "interfaces/rest/test_server.py"

_KEYS = "unit/services/test_api_keys.py"

KEY_FAULTS = (
    _fault(
        name="an address may try any number of keys",
        at="services.api_keys:ApiKeys.authenticate_from",
        do=Condition("wait", False),
        caught_by=f"{_KEYS}::test_an_address_may_try_few_unknown_keys_and_others_are_not_concerned",
    ),
    _fault(
        name="a key that is in use is refused because of others",
        at="services.api_keys:ApiKeys.authenticate_from",
        do=Drop("not in _seen"),
        caught_by=f"{_KEYS}::test_an_address_may_try_few_unknown_keys_and_others_are_not_concerned",
    ),
    _fault(
        name="the failed keys of any number of addresses are kept",
        at="services.api_keys:_put",
        do=Condition("len()", False),
        caught_by=f"{_KEYS}::test_what_is_remembered_of_unknown_keys_is_bounded",
    ),
    _fault(
        name="an expired key is accepted",
        at="services.api_keys:ApiKeys.authenticate",
        do=Condition("now()", False),
        caught_by=f"{_SERVER}::test_an_expired_key_is_refused_with_the_reason",
    ),
    _fault(
        name="a stream outlives its key",
        at="interfaces.rest.auth:while_allowed",
        do=Condition("check_at", False),
        caught_by=f"{_SERVER}::test_a_stream_ends_when_its_key_is_no_longer_valid",
    ),
    _fault(
        name="any administrator creates keys of other tenants",
        at="services.app:Application.create_key",
        do=Condition("_tenant", False),
        caught_by="interfaces/rest/test_tenants.py"
        "::test_only_the_operator_of_the_installation_creates_the_first_key_of_a_tenant",
    ),
    *(
        _fault(
            name=f"a limited key may {operation} any task",
            at=f"services.app:Application.{operation}",
            do=Drop("_check_may_start()"),
            caught_by="interfaces/rest/test_limited_keys.py"
            "::test_no_route_starts_what_a_limited_key_may_not_start",
        )
        for operation in ("resume", "approve", "revise", "replay_dead_letters", "add_budget")
    ),
    *(
        _fault(
            name=f"a limited key may {operation} any task",
            at=f"services.app:Application.{operation}",
            do=Argument(f"{operation}()", "limits", None),
            caught_by="interfaces/rest/test_limited_keys.py"
            "::test_no_route_starts_what_a_limited_key_may_not_start",
        )
        for operation in ("submit", "submit_many", "add_tasks")
    ),
    *(
        _fault(
            name=f"a key that is limited to definitions may use {operation}",
            at=f"services.app:Application.{operation}",
            do=Drop("_check_may_define()"),
            caught_by="interfaces/rest/test_limited_keys.py"
            "::test_no_route_starts_what_a_limited_key_may_not_start",
        )
        for operation in ("put_definition", "delete_definition")
    ),
    _fault(
        name="a server's key is stored in the data folder",
        at="adapters.system:key_file",
        do=Condition("is_relative_to()", False),
        caught_by="adapters/test_key_file.py::test_the_key_is_not_stored_in_the_data_folder",
    ),
    _fault(
        name="a child sets what the definition does not allow",
        at="execution.attempt_settings:_merge",
        do=Condition("refused", False),
        caught_by="execution/test_slots.py::test_a_task_whose_input_sets_what_the_definition_does_"
        "not_allow_is_not_executed",
    ),
    _fault(
        name="a limited key submits definitions of its own",
        at="services.app:Application._check_may_define",
        do=Condition("definitions", False),
        caught_by="interfaces/test_application.py::test_a_limited_key_does_not_start_other_tasks",
    ),
    _fault(
        name="a revoked key is allowed",
        at="core.api_keys:KeyRecord.allows",
        do=Drop("is revoked_at"),
        caught_by=f"{_SQLITE}::test_a_revoked_key_is_found_and_listed_and_allows_nothing",
    ),
    _fault(
        name="a key of another tenant can be revoked",
        at="adapters.sqlite.configuration:SqliteKeys.revoke.work",
        do=(Text("? AND tenant = ?", "?"), Drop("tenant")),
        caught_by=f"{_SQLITE}::test_a_key_of_another_tenant_cannot_be_revoked",
    ),
    _fault(
        name="a key is revoked again and again",
        at="adapters.sqlite.configuration:SqliteKeys.revoke.work",
        do=Condition("revoked_at", "record is None"),
        caught_by=f"{_SQLITE}::test_a_key_is_revoked_once_and_the_first_moment_stays",
    ),
    _fault(
        name="a revocation is not written",
        at="adapters.sqlite.configuration:SqliteKeys.revoke.work",
        do=Text("? WHERE id", "? WHERE hash"),
        caught_by=f"{_SQLITE}::test_a_revoked_key_is_found_and_listed_and_allows_nothing",
    ),
    _fault(
        name="every key is revoked",
        at="adapters.sqlite.configuration:SqliteKeys.revoke.work",
        do=(
            Text("? WHERE id = ?", "json_set(body, '$.revoked_at', ?1 ->> '$.revoked_at')"),
            Argument("execute()", 1, "($1,)"),
        ),
        caught_by=f"{_SQLITE}::test_revoking_one_key_leaves_the_others",
    ),
    _fault(
        name="an id that is taken is accepted",
        at="adapters.sqlite.configuration:SqliteKeys.add.work",
        do=Condition("changes()", False),
        caught_by=f"{_SQLITE}::test_an_id_that_is_taken_is_refused_and_nothing_is_kept",
    ),
    _fault(
        name="a new key takes the place of an old one",
        at="adapters.sqlite.configuration:SqliteKeys.add.work",
        do=Text("DO NOTHING", "DO UPDATE SET body = excluded.body"),
        caught_by=f"{_SQLITE}::test_a_hash_that_is_taken_is_refused_in_every_tenant",
    ),
    _fault(
        name="keys of every tenant are listed",
        at="adapters.sqlite.configuration:SqliteKeys.list",
        do=Text("tenant = ?", "? IS NOT NULL"),
        caught_by=f"{_SQLITE}::test_keys_of_another_tenant_are_not_listed",
    ),
    _fault(
        name="keys are listed by id",
        at="adapters.sqlite.configuration:SqliteKeys.list",
        do=Text("created_us, id", "id"),
        caught_by=f"{_SQLITE}::test_keys_are_listed_oldest_first",
    ),
    _fault(
        name="a process remembers keys that were revoked",
        at="adapters.sqlite.configuration:SqliteKeys.find",
        do=Replace(
            "= point_value()",
            (
                "remembered = self.__dict__.setdefault('_remembered', {})\n"
                "$1 = remembered.get(key_hash) or $2\n"
                "remembered[key_hash] = $1"
            ),
        ),
        caught_by=f"{_SQLITE}::test_a_key_is_revoked_for_every_instance_at_once",
    ),
    _fault(
        name="an id that is taken is accepted in memory",
        at="testing.memory.keyed_stores:MemoryKeys.add",
        do=Drop("in id"),
        caught_by=f"{_MEMORY}::test_an_id_that_is_taken_is_refused_and_nothing_is_kept",
    ),
    _fault(
        name="a key of another tenant can be revoked in memory",
        at="testing.memory.keyed_stores:MemoryKeys.revoke",
        do=Drop("== tenant"),
        caught_by=f"{_MEMORY}::test_a_key_of_another_tenant_cannot_be_revoked",
    ),
    _fault(
        name="the queues of a limited key do not count",
        at="core.api_keys:WorkLimits.check",
        do=Drop("and queue queues"),
        caught_by="interfaces/test_application.py::test_a_limited_key_does_not_start_other_tasks",
    ),
    _fault(
        name="the definitions of a limited key do not count",
        at="core.api_keys:WorkLimits.check",
        do=Drop("and definition definitions"),
        caught_by="interfaces/test_application.py::test_a_limited_key_does_not_start_other_tasks",
    ),
)
