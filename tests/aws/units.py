"""What calls cost by DynamoDB's rules: write units of tables and indexes, requests of all kinds.

The stand-in counts tables alone, and whole indexes not at all, so this looks at items before and
after each write and does the sums. A kilobyte that is begun is a unit; an index is charged when its
entry comes, goes or changes, and twice when its key moves; a transaction doubles everything.
"""

import math
from collections import Counter
from typing import Any

from longshore.adapters.aws.client import AwsClientOptions, AwsResponse
from longshore.adapters.aws.names import Names
from longshore.testing.clock import FakeClock
from tests.aws.full_backend import LoopAwareAws
from tests.aws.table_schemas import table_schemas

Item = dict[str, dict[str, Any]]

_KB = 1024
_SCHEMAS = {
    shape["TableName"].rpartition("-")[2]: shape
    for shape in table_schemas(Names(stage="any", bucket="any"))
}
_WRITE_OPERATIONS = {"update_item": "Key", "put_item": "Item", "delete_item": "Key"}


class CountingAws(LoopAwareAws):
    """A client that counts requests to AWS, and units written."""

    def __init__(self, options: AwsClientOptions, clock: FakeClock) -> None:
        super().__init__(options, clock)
        self.requests: Counter[str] = Counter()
        self.units: Counter[str] = Counter()  # by table, and by table and index
        self.reads = 0.0  # read units; a consistent read is one per 4 kB

    def clear(self) -> None:
        """Count from now on."""
        self.units.clear()
        self.requests.clear()
        self.reads = 0.0

    async def call(self, service: str, operation: str, **parameters: Any) -> AwsResponse:
        # Events received here are, in production, passed to functions by a mapping.
        is_mapped = str(parameters.get("QueueUrl", "")).endswith("-events")
        self.requests[f"{'mapped' if is_mapped else service}.{operation}"] += 1
        if operation == "batch_write_item":
            return await self._delete(parameters["RequestItems"])
        if service != "dynamodb" or operation not in _WRITE_OPERATIONS:
            answer = await super().call(service, operation, **parameters)
            if service == "dynamodb":
                self.reads += _reads(operation, parameters, answer)
            return answer
        table = parameters["TableName"]
        kind = table.rpartition("-")[2]
        shape = _SCHEMAS[kind]
        names = [part["AttributeName"] for part in shape["KeySchema"]]
        key = {name: parameters[_WRITE_OPERATIONS[operation]][name] for name in names}
        before = await self._item(table, key)
        answer = await super().call(service, operation, **parameters)
        after = await self._item(table, key)
        self.units[kind] += max(units_of(before), units_of(after), 1)
        for index in shape.get("GlobalSecondaryIndexes", []):
            cost = index_units(_entry(before, index, names), _entry(after, index, names))
            self.units[f"{kind}/{index['IndexName']}"] += cost
        return answer

    async def _delete(self, tables: dict[str, list[dict[str, Any]]]) -> AwsResponse:
        """Each item of a batch costs what it costs alone."""
        for table, requests in tables.items():
            for request in requests:
                key = request["DeleteRequest"]["Key"]
                await self.call("dynamodb", "delete_item", TableName=table, Key=key)
                self.requests["dynamodb.delete_item"] -= 1
        return {}

    async def _item(self, table: str, key: Item) -> Item:
        result = await super().call(
            "dynamodb", "get_item", TableName=table, Key=key, ConsistentRead=True
        )
        return result.get("Item", {})


def _reads(operation: str, parameters: dict[str, Any], answer: AwsResponse) -> float:
    match operation:
        case "get_item":
            sizes = [size_of(answer.get("Item", {}))]
        case "batch_get_item":
            sizes = [size_of(item) for some in answer["Responses"].values() for item in some]
        case "query":  # is charged for all that it found together
            sizes = [sum(size_of(item) for item in answer["Items"])]
        case _:
            return 0
    consistent = operation == "batch_get_item" or parameters.get("ConsistentRead", False)
    units = sum(max(math.ceil(size / (4 * _KB)), 1) for size in sizes)
    return units if consistent else units / 2


def index_units(before: "tuple[str, Item] | None", after: "tuple[str, Item] | None") -> int:
    """What a write costs in one index, where entries are a key and all that is projected."""
    if before == after:
        return 0
    if before is None or after is None:
        return units_of((before or after or ("", {}))[1])
    if before[0] != after[0]:
        return units_of(before[1]) + units_of(after[1])
    return max(units_of(before[1]), units_of(after[1]))


def _entry(item: Item, index: dict[str, Any], table_key: list[str]) -> tuple[str, Item] | None:
    key = [part["AttributeName"] for part in index["KeySchema"]]
    if any(name not in item for name in key):
        return None
    projection = index["Projection"]
    attributes = {*key, *table_key, *projection.get("NonKeyAttributes", [])}
    if projection["ProjectionType"] == "ALL":
        attributes = set(item)
    projected = {name: value for name, value in item.items() if name in attributes}
    return "\0".join(item[name]["S"] for name in key), projected


def units_of(item: Item) -> int:
    """Of writing an item, or 0 if there is none."""
    return math.ceil(size_of(item) / _KB)


def size_of(item: Item) -> int:
    """An item's size as DynamoDB counts it."""
    return sum(len(name.encode()) + _size(value) for name, value in item.items())


def _size(attribute: dict[str, Any]) -> int:
    ((kind, value),) = attribute.items()
    match kind:
        case "S":
            return len(value.encode())
        case "N":
            return math.ceil(len(value.strip("-").replace(".", "")) / 2) + 1
        case "B":
            return len(value)
        case "M":
            return 3 + sum(1 + len(name.encode()) + _size(entry) for name, entry in value.items())
        case "L":
            return 3 + sum(1 + _size(entry) for entry in value)
    return 1
