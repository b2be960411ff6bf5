"""The functions: what each is called, what runs in it, and what comes with it in a template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from longshore.adapters.aws.stacks.alarms import add_alarm
from longshore.adapters.aws.stacks.config import StageConfig
from longshore.adapters.aws.stacks.parts import (
    Json,
    Template,
    att,
    identifier,
    imported,
    policy,
    ref,
    statement,
    sub,
)
from longshore.adapters.aws.stacks.privileges import statements_of

_PREFIX = "LONGSHORE_"
_DATA_DIR = "/tmp/longshore"  # noqa: S108 - the one place that a function may write


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One function."""

    name: str
    module: str  # in longshore.interfaces.lambdas
    stack: str
    what: str
    timeout_s: int = 60

    @property
    def handler(self) -> str:
        """Where Lambda finds it."""
        return f"longshore.interfaces.lambdas.{self.module}.handler"

    @property
    def id(self) -> str:
        """Its name inside a template."""
        return identifier(self.name)


FUNCTIONS: Final = {
    each.name: each
    for each in (
        Function(name="relay", module="relay", stack="event", what="table stream to bus"),
        Function(name="save-event", module="save_event", stack="event", what="events to table"),
        Function(
            name="eventbridge-dlq-alert",
            module="undelivered",
            stack="event",
            what="keeps events that could not be delivered, and alerts",
        ),
        Function(name="dispatcher", module="dispatcher", stack="dispatcher", what="moves jobs on"),
        Function(
            name="dlq-processor",
            module="dead_letters",
            stack="dispatcher",
            what="fails tasks whose messages were received too often",
        ),
        Function(
            name="sweeper",
            module="sweeper",
            stack="dispatcher",
            what="mends what crashes leave behind",
            timeout_s=300,
        ),
        Function(
            name="health-check",
            module="health_check",
            stack="health-check",
            what="looks whether what runs is well, and alerts",
            timeout_s=300,
        ),
        Function(
            name="health-check-single",
            module="health_check_single",
            stack="health-check",
            what="looks at one task, when it is invoked by hand",
        ),
        # API Gateway waits for 30 s.
        Function(name="api", module="api", stack="producer-api", what="the API", timeout_s=30),
    )
}

# A run by the clock that is late is worth nothing: the next comes anyway.
_NO_SECOND_TRY: Final = {"MaximumEventAgeInSeconds": 60, "MaximumRetryAttempts": 0}
# A queue that feeds a function hides a message for six times as long as the function may take,
# as AWS recommends: else a slow batch comes twice.
VISIBILITY_FACTOR: Final = 6


def function_name(config: StageConfig, function: Function) -> str:
    """What it is called on AWS."""
    return f"longshore-{config.stage}-{function.name}"


def variable(setting: str) -> str:
    """The environment variable of a setting."""
    return _PREFIX + setting.replace(".", "_").upper()


def environment(config: StageConfig, more: Mapping[str, Any] | None = None) -> Json:
    """The variables by which a function or a container knows its installation."""
    return {
        **{variable(name): value for name, value in sorted(config.settings.items())},
        **{variable(name): value for name, value in (more or {}).items()},
        variable("backend"): "aws",
        variable("environment"): config.stage,
        variable("aws.bucket"): imported(config.stage, "bucket"),
        variable("log_format"): "json",
    }


def add_code_parameter(template: Template) -> None:
    """Where the code lies: a template stays the same when only the code has changed."""
    template.parameter("CodeKey", "Key of the functions' zip in the bucket")


def add_function(
    template: Template,
    config: StageConfig,
    name: str,
    *,
    concurrency: int | None = None,
    variables: Mapping[str, Any] | None = None,
) -> Function:
    """A function with its role, its log and the alarms on it."""
    function = FUNCTIONS[name]
    full_name = function_name(config, function)
    log = add_log_group(template, config, f"{function.id}Log", f"/aws/lambda/{full_name}")
    role = add_role(
        template,
        f"{function.id}Role",
        "lambda.amazonaws.com",
        [*statements_of(config, name), _logs(log)],
    )
    template.add(
        function.id,
        "AWS::Lambda::Function",
        {
            "FunctionName": full_name,
            "Description": f"Longshore: {function.what}",
            "Runtime": f"python{config.functions.python}",
            "Architectures": [config.functions.architecture],
            "Handler": function.handler,
            "Code": {"S3Bucket": imported(config.stage, "bucket"), "S3Key": ref("CodeKey")},
            "Role": att(role),
            "Timeout": function.timeout_s,
            "MemorySize": config.functions.memory_mib,
            "ReservedConcurrentExecutions": concurrency,
            "LoggingConfig": {"LogGroup": ref(log)},
            "Environment": {
                "Variables": environment(config, {"data_dir": _DATA_DIR, **(variables or {})})
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
            f"{function.id}{metric}",
            f"{full_name} {meaning}",
            ("AWS/Lambda", metric, {"FunctionName": ref(function.id)}, "Sum"),
            above=0,
        )
    return function


def add_role(template: Template, name: str, service: str, statements: list[Json]) -> str:
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


def add_log_group(template: Template, config: StageConfig, name: str, path: str) -> str:
    """Where something logs to; it goes with its stack."""
    return template.add(
        name,
        "AWS::Logs::LogGroup",
        {"LogGroupName": path, "RetentionInDays": config.log_retention_days},
        DeletionPolicy="Delete",
        UpdateReplacePolicy="Delete",
    )


def add_queue_mapping(
    template: Template, name: str, function: Function, queue_arn: Any, **more: Any
) -> None:
    """Messages of a queue go to a function; those that it could not handle come again."""
    template.add(
        name,
        "AWS::Lambda::EventSourceMapping",
        {
            "EventSourceArn": queue_arn,
            "FunctionName": ref(function.id),
            "BatchSize": 10,
            "FunctionResponseTypes": ["ReportBatchItemFailures"],
            **more,
        },
    )


def add_schedule(
    template: Template, config: StageConfig, function: Function, rate: str, *, enabled: bool
) -> None:
    """A function runs by the clock."""
    rule = template.add(
        f"{function.id}Schedule",
        "AWS::Events::Rule",
        {
            "Name": function_name(config, function),
            "Description": f"Runs {function.name}",
            "ScheduleExpression": f"rate({rate})",
            "State": "ENABLED" if enabled else "DISABLED",
            "Targets": [{"Id": "function", "Arn": att(function.id), "RetryPolicy": _NO_SECOND_TRY}],
        },
    )
    template.add(
        f"{function.id}Invoked",
        "AWS::Lambda::EventInvokeConfig",
        {"FunctionName": ref(function.id), "Qualifier": "$LATEST", **_NO_SECOND_TRY},
    )
    template.add(
        f"{function.id}ScheduleAllowed",
        "AWS::Lambda::Permission",
        {
            "Action": "lambda:InvokeFunction",
            "FunctionName": ref(function.id),
            "Principal": "events.amazonaws.com",
            "SourceArn": att(rule),
        },
    )


def _logs(group: str) -> Json:
    return statement(
        ("logs:CreateLogStream", "logs:PutLogEvents"),
        [sub("${Group}:*", Group=att(group))],
    )
