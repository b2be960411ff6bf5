"""The stack of the API: the same app as on one machine, behind API Gateway."""

from __future__ import annotations

import json

from longshore.adapters.aws.deploy.stacks.functions import (
    add_code_parameter,
    add_function,
    add_log_group,
)
from longshore.adapters.aws.deploy.stacks.stage_config import StageConfig
from longshore.adapters.aws.deploy.stacks.template import Json, StackTemplate, get_att, ref, sub

_DOMAIN = "${HttpApi}.execute-api.${AWS::Region}.${AWS::URLSuffix}"
# Never a header, a query or a body: they may hold secrets.
_ACCESS_LOG_FIELDS = (
    "requestId",
    "httpMethod",
    "path",
    "status",
    "responseLength",
    "integrationLatency",
)


def producer_api_template(config: StageConfig) -> Json:
    """Its template."""
    template = StackTemplate(config.stage, f"Longshore {config.stage}: the API")
    add_code_parameter(template)
    api = template.add(
        "HttpApi",
        "AWS::ApiGatewayV2::Api",
        {"Name": f"longshore-{config.stage}", "ProtocolType": "HTTP"},
    )
    # API Gateway brings only what was sent to its own name, or to one that you gave it.
    function = add_function(template, config, "api", variables={"api.hosts": "*"})
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
    log = add_log_group(
        template, config, "ApiRequestsLog", f"/aws/apigateway/longshore-{config.stage}"
    )
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
    template.export("api", sub(f"https://{_DOMAIN}"), "Address of the API")
    return template.document()
