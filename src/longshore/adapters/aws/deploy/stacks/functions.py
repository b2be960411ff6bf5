"""The functions: what each is called, what runs in it, and what comes with it in a template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from longshore.adapters.aws.deploy.stacks.alarms import add_alarm
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

_PREFIX = "LONGSHORE_"
_DATA_DIR = "/tmp/longshore"  # noqa: S108 - the one place that a function may write


@dataclass(frozen=True, slots=True, kw_only=True)
class LambdaFunction:
    """One function."""

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
        """Its name inside a template."""
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

# A run by the clock that is late is worth nothing: the next comes anyway.
_NO_RETRY: Final = {"MaximumEventAgeInSeconds": 60, "MaximumRetryAttempts": 0}
# A queue that feeds a function hides a message for six times as long as the function may take,
# as AWS recommends: else a slow batch comes twice.
VISIBILITY_FACTOR: Final = 6


def function_name(config: StageConfig, function: LambdaFunction) -> str:
    """What it is called on AWS."""
    return f"longshore-{config.stage}-{function.name}"


def variable_name(setting: str) -> str:
    """The environment variable of a setting."""
    return _PREFIX + setting.replace(".", "_").upper()


def environment_variables(config: StageConfig, more: Mapping[str, Any] | None = None) -> Json:
    """The variables by which a function or a container knows its installation."""
    return {
        **{variable_name(name): value for name, value in sorted(config.settings.items())},
        **{variable_name(name): value for name, value in (more or {}).items()},
        variable_name("backend"): "aws",
        variable_name("environment"): config.stage,
        variable_name("aws.bucket"): import_value(config.stage, "bucket"),
        variable_name("log_format"): "json",
    }


def add_code_parameter(template: StackTemplate) -> None:
    """Where the code lies: a template stays the same when only the code has changed."""
    template.parameter("CodeKey", "Key of the functions' zip in the bucket")


def add_function(
    template: StackTemplate,
    config: StageConfig,
    name: str,
    *,
    concurrency: int | None = None,
    variables: Mapping[str, Any] | None = None,
) -> LambdaFunction:
    """A function with its role, its log and the alarms on it."""
    function = FUNCTIONS[name]
    full_name = function_name(config, function)
    log = add_log_group(template, config, f"{function.logical_id}Log", f"/aws/lambda/{full_name}")
    role = add_role(
        template,
        f"{function.logical_id}Role",
        "lambda.amazonaws.com",
        [*statements_of(config, name), _log_statement(log)],
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
            "Code": {"S3Bucket": import_value(config.stage, "bucket"), "S3Key": ref("CodeKey")},
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
        ("Throttles", "was not run because too much of it runs"),
    ):
        add_alarm(
            template,
            config,
            f"{function.logical_id}{metric}",
            f"{full_name} {meaning}",
            ("AWS/Lambda", metric, {"FunctionName": ref(function.logical_id)}, "Sum"),
            threshold=0,
        )
    return function


def add_role(template: StackTemplate, name: str, service: str, statements: list[Json]) -> str:
    """A role that a service of AWS takes on, and what it may do."""
    trust = {"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}
    return template.add(
        name,
        "AWS::IAM::Role",
        {
            "AssumeRolePolicyDocument": policy(trust),
            "Policies": [{"PolicyName": "privileges", "PolicyDocument": policy(*statements)}],
        },
    )


def add_log_group(template: StackTemplate, config: StageConfig, name: str, path: str) -> str:
    """Where something logs to; it goes with its stack."""
    return template.add(
        name,
        "AWS::Logs::LogGroup",
        {"LogGroupName": path, "RetentionInDays": config.log_retention_days},
        DeletionPolicy="Delete",
        UpdateReplacePolicy="Delete",
    )


def add_queue_mapping(
    template: StackTemplate, name: str, function: LambdaFunction, queue_arn: Any, **more: Any
) -> None:
    """Messages of a queue go to a function; those that it could not handle come again."""
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
    template: StackTemplate,
    config: StageConfig,
    function: LambdaFunction,
    rate: str,
    *,
    enabled: bool,
) -> None:
    """A function runs by the clock."""
    rule = template.add(
        f"{function.logical_id}Schedule",
        "AWS::Events::Rule",
        {
            "Name": function_name(config, function),
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


def _log_statement(group: str) -> Json:
    return statement(
        ("logs:CreateLogStream", "logs:PutLogEvents"),
        [sub("${Group}:*", Group=get_att(group))],
    )
