"""The tables of the template, as DynamoDB creates them."""

from typing import Any

from longshore.adapters.aws.deploy.stacks.stage_config import StageConfig
from longshore.adapters.aws.deploy.stacks.template import templates
from longshore.adapters.aws.names import Names

_PARAMETERS = (
    "TableName",
    "BillingMode",
    "KeySchema",
    "AttributeDefinitions",
    "GlobalSecondaryIndexes",
)


def table_schemas(names: Names) -> list[dict[str, Any]]:
    """The parameters that create each table."""
    stacks = templates(StageConfig(stage=names.stage), dispatcher_events=())
    return [
        _parameters(resource["Properties"])
        for resource in stacks["infrastructure"]["Resources"].values()
        if resource["Type"] == "AWS::DynamoDB::Table"
    ]


def _parameters(table: dict[str, Any]) -> dict[str, Any]:
    schema = {name: table[name] for name in _PARAMETERS if name in table}
    schema["SSESpecification"] = {"Enabled": table["SSESpecification"]["SSEEnabled"]}
    if stream := table.get("StreamSpecification"):
        schema["StreamSpecification"] = {"StreamEnabled": True, **stream}
    return schema
