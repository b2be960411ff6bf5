"""Regression tests for errors that faults at every call site have revealed."""

import asyncio
from typing import Any

import pytest

from longshore.adapters.aws.client import AwsClient, AwsClientOptions, AwsResponse
from longshore.adapters.aws.deploy.deployment import CloudFormationDeployment
from longshore.adapters.aws.deploy.doctor import _compare_expiry
from longshore.adapters.aws.deploy.doctor_probe import ProbeResult, Resource
from longshore.adapters.aws.deploy.stacks.stage_config import StageConfig
from longshore.core.inspection import CheckStatus
from longshore.errors import BackendError, BackendRejected, BackendUnavailable
from longshore.testing.clock import FakeClock

_EXPIRES = {"TimeToLiveSpecification": {"AttributeName": "ttl", "Enabled": True}}


def _statuses(schema: dict[str, Any], **result: Any) -> list[tuple[CheckStatus, str]]:
    probed = ProbeResult(service="dynamodb", operation="describe_time_to_live", **result)
    table = Resource("table", "ledger", "deploy")
    _compare_expiry(table, schema, probed)
    return [(problem.status, problem.detail) for problem in table.problems]


def _answered(status: str, attribute: str = "ttl") -> dict[str, Any]:
    return {"TimeToLiveDescription": {"TimeToLiveStatus": status, "AttributeName": attribute}}


def test_a_table_whose_rows_must_be_kept_and_expire_is_a_failure() -> None:
    assert _statuses({}, response=_answered("ENABLED")) == [
        (CheckStatus.FAIL, "expiry is ttl: its items must not expire")
    ]
    assert _statuses({}, response=_answered("DISABLED")) == []
    assert _statuses({}, response={}) == []


def test_a_table_that_should_expire_and_does_not_is_a_warning() -> None:
    statuses = _statuses(_EXPIRES, response=_answered("DISABLED"))
    assert statuses == [(CheckStatus.WARN, "expiry is missing: old items are not deleted")]
    assert _statuses(_EXPIRES, response=_answered("ENABLING")) == []


@pytest.mark.parametrize("shape", [{}, _EXPIRES])
def test_a_table_whose_expiry_cannot_be_read_is_a_failure(shape: dict[str, Any]) -> None:
    assert _statuses(shape, code="ThrottlingException") == [
        (CheckStatus.FAIL, "unknown: ThrottlingException")
    ]


class _UndeletableAws(AwsClient):
    """A client for a bucket whose object, with two versions, cannot be deleted."""

    def __init__(self, code: str) -> None:
        super().__init__(AwsClientOptions())
        self._code = code
        self.attempts = 0

    async def call(self, service: str, operation: str, **parameters: Any) -> AwsResponse:
        if operation == "list_object_versions":
            self.attempts += 1
            assert self.attempts < 10, "it is retried for ever"
            return {
                "Versions": [{"Key": "kept", "VersionId": "1"}],
                "DeleteMarkers": [{"Key": "kept", "VersionId": "2"}],
            }
        assert operation == "delete_objects"
        return {
            "Errors": [{**item, "Code": self._code} for item in parameters["Delete"]["Objects"]]
        }


@pytest.mark.parametrize(
    ("code", "error"), [("AccessDenied", BackendRejected), ("InternalError", BackendUnavailable)]
)
def test_emptying_a_bucket_that_cannot_be_emptied_raises_an_error(
    code: str, error: type[BackendError]
) -> None:
    config = StageConfig(stage="dev")
    deployment = CloudFormationDeployment(
        _UndeletableAws(code), FakeClock(), config, dispatcher_events=()
    )

    with pytest.raises(error, match=rf"s3\.delete_objects: {code} of kept"):
        asyncio.run(deployment._empty_bucket("bucket"))
