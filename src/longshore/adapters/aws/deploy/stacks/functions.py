"""The Lambda functions, and the stacks that they form: events, dispatcher, health check, API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from longshore.adapters.aws.deploy.stacks.privileges import statements_of
from longshore.adapters.aws.deploy.stacks.stage_config import StageConfig
from longshore.adapters.aws.deploy.stacks.template import (
    Json,
    StackTemplate,
    get_att,
    import_value,
    logical_id,
    policy,
    ref,
    statement,
    sub,
)
from longshore.adapters.aws.events.event_bus import DETAIL_TYPE
from longshore.adapters.aws.names import UNDELIVERED
from longshore.core.tasks.states import Priority

_PREFIX = "LONGSHORE_"
_DATA_DIR = "/tmp/longshore"  # noqa: S108 - the one place that a function may write


@dataclass(frozen=True, slots=True, kw_only=True)
class LambdaFunction:
    """A Lambda function."""

    name: str
    stack: str
    description: str
    timeout_s: int = 60
    module: str = "handlers"  # in longshore.interfaces.lambdas

    @property
    def handler(self) -> str:
        """The handler that Lambda calls."""
        return f"longshore.interfaces.lambdas.{self.module}.{self.name.replace('-', '_')}"

    @property
    def logical_id(self) -> str:
        return logical_id(self.name)


FUNCTIONS: Final = {
    function.name: function
    for function in (
        LambdaFunction(name="relay", stack="event", description="table stream to bus"),
        LambdaFunction(name="save-event", stack="event", description="events to table"),
        LambdaFunction(
            name="eventbridge-dlq-alert",
            stack="event",
            description="stores events that could not be delivered, and alerts",
        ),
        LambdaFunction(
            name="dispatcher", stack="dispatcher", description="dispatches the next tasks"
        ),
        LambdaFunction(
            name="dlq-processor",
            stack="dispatcher",
            description="fails tasks whose messages were received too often",
        ),
        LambdaFunction(
            name="sweeper",
            stack="dispatcher",
            description="repairs what crashes leave behind",
            timeout_s=300,
        ),
        LambdaFunction(
            name="health-check",
            stack="health-check",
            description="checks the health of tasks and queues, and alerts",
            timeout_s=300,
        ),
        LambdaFunction(
            name="health-check-single",
            stack="health-check",
            description="checks one task, when it is invoked by hand",
        ),
        # API Gateway waits for 30 s.
        LambdaFunction(
            name="api",
            stack="producer-api",
            description="the API",
            timeout_s=30,
            module="api_gateway",
        ),
    )
}

# A late scheduled run is useless: the next one follows anyway.
_NO_RETRY: Final = {"MaximumEventAgeInSeconds": 60, "MaximumRetryAttempts": 0}
# The visibility timeout of a queue is six times the timeout of its function, as AWS recommends:
# otherwise a slow batch is delivered twice.
VISIBILITY_FACTOR: Final = 6
_RELAY_BATCH = 100
_RELAY_PARALLELISM = 2  # for each shard of the stream; changes of an item stay in order
_RELAY_LAG_LIMIT_MS = 10 * 60 * 1000
_DELIVERY_RETRIES = 3
_API_DOMAIN = "${HttpApi}.execute-api.${AWS::Region}.${AWS::URLSuffix}"
# No header, query or body: they may contain secrets.
_ACCESS_LOG_FIELDS = (
    "requestId",
    "httpMethod",
    "path",
    "status",
    "responseLength",
    "integrationLatency",
)


def function_name(config: StageConfig, function: LambdaFunction) -> str:
    """The name of a function on AWS."""
    return f"longshore-{config.stage}-{function.name}"


def variable_name(setting: str) -> str:
    """The environment variable of a setting."""
    return _PREFIX + setting.replace(".", "_").upper()


def environment_variables(config: StageConfig, more: Mapping[str, Any] | None = None) -> Json:
    """The environment variables of a function or container."""
    return {
        **{variable_name(name): value for name, value in sorted(config.settings.items())},
        **{variable_name(name): value for name, value in (more or {}).items()},
        variable_name("backend"): "aws",
        variable_name("environment"): config.stage,
        variable_name("aws.bucket"): import_value(config, "bucket"),
        variable_name("log_format"): "json",
    }


def add_code_parameter(template: StackTemplate) -> None:
    """The key of the code is a parameter, so that new code does not change the template."""
    template.parameter("CodeKey", "Key of the functions' zip in the bucket")


def add_function(
    template: StackTemplate,
    name: str,
    *,
    concurrency: int | None = None,
    variables: Mapping[str, Any] | None = None,
) -> LambdaFunction:
    """Add a function with its role, its log and its alarms."""
    function, config = FUNCTIONS[name], template.config
    full_name = function_name(config, function)
    log = add_log_group(template, f"{function.logical_id}Log", f"/aws/lambda/{full_name}")
    role = add_role(
        template,
        f"{function.logical_id}Role",
        "lambda.amazonaws.com",
        [*statements_of(config, name), log_statement(log)],
    )
    template.add(
        function.logical_id,
        "AWS::Lambda::Function",
        {
            "FunctionName": full_name,
            "Description": f"Longshore: {function.description}",
            "Runtime": f"python{config.functions.python}",
            "Architectures": [config.functions.architecture],
            "Handler": function.handler,
            "Code": {"S3Bucket": template.imported("bucket"), "S3Key": ref("CodeKey")},
            "Role": get_att(role),
            "Timeout": function.timeout_s,
            "MemorySize": config.functions.memory_mib,
            "ReservedConcurrentExecutions": concurrency,
            "LoggingConfig": {"LogGroup": ref(log)},
            "Environment": {
                "Variables": environment_variables(
                    config, {"data_dir": _DATA_DIR, **(variables or {})}
                )
            },
        },
    )
    for metric, meaning in (
        ("Errors", "has failed"),
        ("Throttles", "was throttled"),
    ):
        template.add_alarm(
            f"{function.logical_id}{metric}",
            f"{full_name} {meaning}",
            ("AWS/Lambda", metric, {"FunctionName": ref(function.logical_id)}, "Sum"),
            threshold=0,
        )
    return function


def add_role(template: StackTemplate, name: str, service: str, statements: list[Json]) -> str:
    """Add a role for a service of AWS."""
    trust = {"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}
    return template.add(
        name,
        "AWS::IAM::Role",
        {
            "AssumeRolePolicyDocument": policy(trust),
            "Policies": [{"PolicyName": "privileges", "PolicyDocument": policy(*statements)}],
        },
    )


def add_log_group(template: StackTemplate, name: str, path: str) -> str:
    """Add a log group, which is deleted with its stack."""
    return template.add(
        name,
        "AWS::Logs::LogGroup",
        {"LogGroupName": path, "RetentionInDays": template.config.log_retention_days},
        DeletionPolicy="Delete",
        UpdateReplacePolicy="Delete",
    )


def add_queue_mapping(
    template: StackTemplate, name: str, function: LambdaFunction, queue_arn: Any, **more: Any
) -> None:
    """Invoke a function with the messages of a queue; failed messages are delivered again."""
    template.add(
        name,
        "AWS::Lambda::EventSourceMapping",
        {
            "EventSourceArn": queue_arn,
            "FunctionName": ref(function.logical_id),
            "BatchSize": 10,
            "FunctionResponseTypes": ["ReportBatchItemFailures"],
            **more,
        },
    )


def add_schedule(
    template: StackTemplate, function: LambdaFunction, rate: str, *, enabled: bool
) -> None:
    """Invoke a function on a schedule."""
    rule = template.add(
        f"{function.logical_id}Schedule",
        "AWS::Events::Rule",
        {
            "Name": function_name(template.config, function),
            "Description": f"Runs {function.name}",
            "ScheduleExpression": f"rate({rate})",
            "State": "ENABLED" if enabled else "DISABLED",
            "Targets": [
                {"Id": "function", "Arn": get_att(function.logical_id), "RetryPolicy": _NO_RETRY}
            ],
        },
    )
    template.add(
        f"{function.logical_id}InvokeConfig",
        "AWS::Lambda::EventInvokeConfig",
        {"FunctionName": ref(function.logical_id), "Qualifier": "$LATEST", **_NO_RETRY},
    )
    template.add(
        f"{function.logical_id}SchedulePermission",
        "AWS::Lambda::Permission",
        {
            "Action": "lambda:InvokeFunction",
            "FunctionName": ref(function.logical_id),
            "Principal": "events.amazonaws.com",
            "SourceArn": get_att(rule),
        },
    )


def log_statement(group: str) -> Json:
    """Allows to write to a log group."""
    return statement(
        ("logs:CreateLogStream", "logs:PutLogEvents"),
        [sub("${Group}:*", Group=get_att(group))],
    )


# The stacks -------------------------------------------------------------------------------------


def event_template(config: StageConfig) -> Json:
    """The stack that carries events: the relay, the event table, and undelivered events."""
    template = StackTemplate(config, "relay, event history, undelivered events")
    add_code_parameter(template)
    relay = add_function(template, "relay")
    template.add(
        "RelayMapping",
        "AWS::Lambda::EventSourceMapping",
        {
            "EventSourceArn": template.imported("ledger-stream"),
            "FunctionName": ref(relay.logical_id),
            # Include what was committed before the relay existed.
            "StartingPosition": "TRIM_HORIZON",
            "BatchSize": _RELAY_BATCH,
            "ParallelizationFactor": _RELAY_PARALLELISM,
            "BisectBatchOnFunctionError": True,
            "FunctionResponseTypes": ["ReportBatchItemFailures"],
        },
    )
    template.add_alarm(
        "RelayLate",
        "events are published more than ten minutes late",
        ("AWS/Lambda", "IteratorAge", {"FunctionName": ref(relay.logical_id)}, "Maximum"),
        threshold=_RELAY_LAG_LIMIT_MS,
    )
    save = add_function(template, "save-event")
    add_rule(template, "history")
    add_queue_mapping(template, "SaveEventMapping", save, template.imported("history-events"))
    alert = add_function(template, "eventbridge-dlq-alert")
    add_queue_mapping(
        template,
        "UndeliveredMapping",
        alert,
        template.imported(UNDELIVERED),
        # Large batches: people get one alert for many events.
        BatchSize=100,
        MaximumBatchingWindowInSeconds=10,
        ScalingConfig={"MaximumConcurrency": 2},
    )
    return template.document()


def add_rule(template: StackTemplate, consumer: str, types: tuple[str, ...] = ()) -> None:
    """Send events from the bus to a consumer's queue, of these types or of all."""
    pattern: Json = {"source": [{"prefix": "longshore."}], "detail-type": [DETAIL_TYPE]}
    if types:
        pattern["detail"] = {"eventType": list(types)}
    names = template.config.names
    template.add(
        f"{logical_id(consumer)}Rule",
        "AWS::Events::Rule",
        {
            "Name": names.consumer(consumer),
            "EventBusName": names.bus,
            "EventPattern": pattern,
            "Targets": [
                {
                    "Id": "queue",
                    "Arn": template.imported(f"{consumer}-events"),
                    "RetryPolicy": {"MaximumRetryAttempts": _DELIVERY_RETRIES},
                    "DeadLetterConfig": {"Arn": template.imported(UNDELIVERED)},
                }
            ],
        },
    )


def dispatcher_template(config: StageConfig, event_types: tuple[str, ...]) -> Json:
    """The stack of the dispatcher, the dead letters and the sweeper.

    Args:
        event_types: The events after which other tasks may become ready.
    """
    template = StackTemplate(config, "dispatcher, dead letters, sweeper")
    add_code_parameter(template)
    dispatcher = add_function(template, "dispatcher")
    add_rule(template, "dispatcher", event_types)
    events = template.imported("dispatcher-events")
    add_queue_mapping(template, "DispatcherMapping", dispatcher, events)
    processor = add_function(template, "dlq-processor")
    for queue in config.queues:
        for priority in Priority:
            lane = f"{queue}-{priority.name.lower()}"
            dead = template.imported(f"dead-{lane}")
            add_queue_mapping(template, f"Dead{logical_id(lane)}Mapping", processor, dead)
    # In every stage, also without schedules: nothing accepted is lost. Two concurrent sweeps would
    # do the same work twice.
    sweeper = add_function(template, "sweeper", concurrency=1)
    add_schedule(template, sweeper, "1 minute", enabled=True)
    return template.document()


def health_check_template(config: StageConfig) -> Json:
    """The stack of the health check."""
    template = StackTemplate(config, "health check")
    add_code_parameter(template)
    # Two concurrent checks would send the same alerts twice.
    health_check = add_function(template, "health-check", concurrency=1)
    add_schedule(template, health_check, "5 minutes", enabled=config.schedules)
    add_function(template, "health-check-single")
    return template.document()


def producer_api_template(config: StageConfig) -> Json:
    """The stack of the REST API behind API Gateway."""
    template = StackTemplate(config, "the API")
    add_code_parameter(template)
    api = template.add(
        "HttpApi",
        "AWS::ApiGatewayV2::Api",
        {"Name": f"longshore-{config.stage}", "ProtocolType": "HTTP"},
    )
    # API Gateway checks the host name.
    function = add_function(template, "api", variables={"api.hosts": "*"})
    integration = template.add(
        "ApiIntegration",
        "AWS::ApiGatewayV2::Integration",
        {
            "ApiId": ref(api),
            "IntegrationType": "AWS_PROXY",
            "IntegrationUri": get_att(function.logical_id),
            "PayloadFormatVersion": "2.0",
        },
    )
    template.add(
        "ApiRoute",
        "AWS::ApiGatewayV2::Route",
        {
            "ApiId": ref(api),
            "RouteKey": "$default",
            "Target": sub("integrations/${Integration}", Integration=ref(integration)),
        },
    )
    log = add_log_group(template, "ApiRequestsLog", f"/aws/apigateway/longshore-{config.stage}")
    template.add(
        "ApiStage",
        "AWS::ApiGatewayV2::Stage",
        {
            "ApiId": ref(api),
            "StageName": "$default",
            "AutoDeploy": True,
            "DefaultRouteSettings": {
                "ThrottlingRateLimit": config.api.requests_per_second,
                "ThrottlingBurstLimit": config.api.burst,
            },
            "AccessLogSettings": {
                "DestinationArn": get_att(log),
                "Format": json.dumps({name: f"$context.{name}" for name in _ACCESS_LOG_FIELDS}),
            },
        },
    )
    template.add(
        "ApiInvokePermission",
        "AWS::Lambda::Permission",
        {
            "Action": "lambda:InvokeFunction",
            "FunctionName": ref(function.logical_id),
            "Principal": "apigateway.amazonaws.com",
            "SourceArn": sub(
                "arn:${AWS::Partition}:execute-api:${AWS::Region}:${AWS::AccountId}:${HttpApi}/*"
            ),
        },
    )
    template.export("api", sub(f"https://{_API_DOMAIN}"), "Address of the API")
    return template.document()
