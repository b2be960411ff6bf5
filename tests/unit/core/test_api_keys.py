"""API keys: what they look like, what is kept of them, and what they open."""

import base64
from dataclasses import replace

import pytest

from longshore.core.api_keys import (
    KEY_PREFIX,
    NO_LIMITS,
    SECRET_BYTES,
    ApiScope,
    KeyRecord,
    WorkLimits,
    hash_key,
    key_matches,
    make_key,
)
from longshore.errors import NotAllowed
from tests.factories import NOON

SECRET = bytes(range(SECRET_BYTES))
KEY = make_key(SECRET)


def a_record(*scopes: ApiScope) -> KeyRecord:
    return KeyRecord(
        id="key-1",
        tenant="acme",
        name="laptop",
        scopes=frozenset(scopes),
        hash=hash_key(KEY),
        created_at=NOON,
    )


def test_a_key_carries_its_random_bytes_behind_a_prefix_that_scanners_know() -> None:
    prefix, text = KEY[: len(KEY_PREFIX)], KEY[len(KEY_PREFIX) :]

    assert prefix == KEY_PREFIX
    assert base64.urlsafe_b64decode(text + "=") == SECRET


def test_a_key_can_stand_in_a_header_and_on_a_command_line() -> None:
    key = make_key(b"\xff\xfe\xfb" * 11)

    assert key.replace("_", "").replace("-", "").isalnum()


def test_a_key_of_too_few_random_bytes_is_not_made() -> None:
    with pytest.raises(ValueError, match="at least 32 random bytes, not 31"):
        make_key(SECRET[:-1])


def test_only_a_hash_is_kept() -> None:
    record = a_record(ApiScope.READ)

    assert len(record.hash) == 64
    assert KEY not in repr(record)


def test_a_key_matches_its_own_record_and_no_other_key_does() -> None:
    record = a_record(ApiScope.READ)

    assert key_matches(KEY, record)
    assert not key_matches(KEY + "x", record)
    assert not key_matches("", record)
    assert not key_matches("schlüssel", record)


@pytest.mark.parametrize("scope", [ApiScope.SUBMIT, ApiScope.READ, ApiScope.OPERATE])
def test_a_key_opens_what_it_was_made_for_and_nothing_else(scope: ApiScope) -> None:
    record = a_record(scope)

    assert [item for item in ApiScope if record.allows(item)] == [scope]


def test_an_admin_key_opens_everything() -> None:
    assert all(a_record(ApiScope.ADMIN).allows(scope) for scope in ApiScope)


def test_a_key_without_scopes_opens_nothing() -> None:
    assert not any(a_record().allows(scope) for scope in ApiScope)


def test_a_revoked_key_opens_nothing() -> None:
    revoked = replace(a_record(ApiScope.ADMIN, ApiScope.READ), revoked_at=NOON)

    assert not any(revoked.allows(scope) for scope in ApiScope)


def test_a_limited_key_may_start_its_tasks_and_no_others() -> None:
    definitions, queues = frozenset({"report", "mail"}), frozenset({"slow"})
    both = WorkLimits(definitions=definitions, queues=queues)

    both.check([("report", "slow"), ("mail", "slow")])
    WorkLimits(definitions=definitions).check([("report", "any")])
    WorkLimits(queues=queues).check([("any", "slow")])
    NO_LIMITS.check([("any", "any")])
    for work in (("report", "fast"), ("other", "slow")):
        with pytest.raises(NotAllowed, match="may only start tasks of the definitions mail, rep"):
            both.check([("report", "slow"), work])
    with pytest.raises(NotAllowed, match="in the queues slow; not allowed: 'any' in queue 'fast'"):
        WorkLimits(queues=queues).check([("any", "fast")])
    with pytest.raises(NotAllowed):
        WorkLimits(definitions=frozenset()).check([("any", "fast")])


def test_tasks_that_are_not_allowed_are_named_once_and_only_the_first() -> None:
    limits = WorkLimits(definitions=frozenset())

    with pytest.raises(NotAllowed, match=r"'d9' in queue 'q' and 10 more$"):
        limits.check([(f"d{number}", "q") for number in range(20)])
    with pytest.raises(NotAllowed, match=r"not allowed: 'd' in queue 'q'$"):
        limits.check([("d", "q")] * 20)


def test_limits_say_what_they_allow() -> None:
    assert not NO_LIMITS
    assert not WorkLimits(builtins=False)
    assert WorkLimits(queues=frozenset())
    assert str(NO_LIMITS) == "all tasks"
    assert str(WorkLimits(definitions=frozenset({"b", "a"}))) == "tasks of the definitions a, b"
