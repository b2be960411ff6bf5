"""Settings in SSM's parameter store: where secrets of an installation are kept on AWS.

``/longshore/{stage}/alerts.slack_token`` is the setting ``alerts.slack_token``; a slash instead of
the dot is as good. A container reads them once when it starts, ten to a request, so a secret that
is changed is used by functions that start after that.
"""

from __future__ import annotations

from typing import Any

from longshore.adapters.aws.client import AwsClient

_PAGE_SIZE = 10  # SSM hands out no more


async def read_parameters(aws: AwsClient, stage: str) -> dict[str, str]:
    """The settings that are kept for a stage, by their names.

    Raises:
        BackendUnavailable: SSM is out of reach.
        BackendRejected: it may not be read.
    """
    folder = f"/longshore/{stage}/"
    found: dict[str, str] = {}
    more: dict[str, Any] = {}
    while True:
        answer = await aws.call(
            "ssm",
            "get_parameters_by_path",
            Path=folder,
            Recursive=True,
            WithDecryption=True,
            MaxResults=_PAGE_SIZE,
            **more,
        )
        for parameter in answer["Parameters"]:
            name = parameter["Name"].removeprefix(folder).replace("/", ".")
            found[name] = parameter["Value"]
        if not (token := answer.get("NextToken")):
            return found
        more = {"NextToken": token}
