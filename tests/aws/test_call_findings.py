"""What trouble at every call site has brought to light, each by itself."""

import asyncio
from typing import Any

import pytest

from longshore.adapters.aws.calls import Answer, Aws, AwsPlace
from longshore.adapters.aws.deploying import CloudFormationDeployment
from longshore.adapters.aws.examining_calls import Reply
from longshore.adapters.aws.examining_stores import _of_expiry
from longshore.adapters.aws.stacks.config import StageConfig
from longshore.errors import BackendError, BackendRejected, BackendUnavailable
from longshore.ports.inspection import Mark
from longshore.testing.clock import FakeClock

_EXPIRES = {"TimeToLiveSpecification": {"AttributeName": "ttl", "Enabled": True}}


def _marks(shape: dict[str, Any], **reply: Any) -> list[tuple[Mark, str]]:
    asked = Reply(service="dynamodb", operation="describe_time_to_live", **reply)
    return [(one.mark, one.detail) for one in _of_expiry("table", shape, asked, "deploy")]


def _answered(status: str, attribute: str = "ttl") -> dict[str, Any]:
    return {"TimeToLiveDescription": {"TimeToLiveStatus": status, "AttributeName": attribute}}


def test_a_table_whose_rows_must_be_kept_and_expire_is_a_failure() -> None:
    assert _marks({}, answer=_answered("ENABLED")) == [(Mark.FAIL, "it expires by ttl")]
    assert _marks({}, answer=_answered("DISABLED")) == []
    assert _marks({}, answer={}) == []


def test_a_table_that_should_expire_and_does_not_is_a_warning() -> None:
    found = _marks(_EXPIRES, answer=_answered("DISABLED"))
    assert found == [(Mark.WARN, "nothing in it expires")]
    assert _marks(_EXPIRES, answer=_answered("ENABLING")) == []


@pytest.mark.parametrize("shape", [{}, _EXPIRES])
def test_that_it_could_not_be_asked_whether_a_table_expires_is_told(shape: dict[str, Any]) -> None:
    assert _marks(shape, code="ThrottlingException") == [
        (Mark.FAIL, "not known: ThrottlingException")
    ]


class _Kept(Aws):
    """A bucket in which all stays that is in it."""

    def __init__(self, code: str) -> None:
        super().__init__(AwsPlace())
        self._code = code
        self.tries = 0

    async def call(self, service: str, operation: str, **given: Any) -> Answer:
        if operation == "list_objects_v2":
            self.tries += 1
            assert self.tries < 10, "it is asked for ever"
            return {"Contents": [{"Key": "kept"}]}
        assert operation == "delete_objects"
        return {"Errors": [{"Key": "kept", "Code": self._code}]}


@pytest.mark.parametrize(
    ("code", "error"), [("AccessDenied", BackendRejected), ("InternalError", BackendUnavailable)]
)
def test_a_bucket_that_cannot_be_emptied_is_an_error_and_not_asked_for_ever(
    code: str, error: type[BackendError]
) -> None:
    config = StageConfig(stage="dev")
    deployment = CloudFormationDeployment(_Kept(code), FakeClock(), config, wakes=())

    with pytest.raises(error, match=rf"s3\.delete_objects: {code} of kept"):
        asyncio.run(deployment._empty("bucket"))
