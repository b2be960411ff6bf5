"""Starts the AWS stand-in so that it denies what no policy allows, and records every call.

Run by the stand-in's own Python: ``python enforcing_server.py FILE``. Each line of the file is one
call by a role or a user (the account itself may do everything, and is not recorded): who, action,
resource, and whether it was denied.

Where the stand-in differs from AWS in a way that matters here, a replacement does what AWS does.
"""

import json
import sys
from typing import Any

from ministack import app
from ministack.core import iam_actions, iam_evaluator
from ministack.services import s3
from ministack.services.cloudformation import provisioners

_enforce = iam_evaluator.enforce
_resource_of = iam_actions.extract_resource_arn
_action_of = iam_actions.extract_iam_action
_s3_actions = iam_actions.s3_additional_checks
_pin_origin = iam_evaluator.pin_request_origin


def main(path: str) -> None:
    with open(path, "a", buffering=1) as call_log:

        def enforce_and_record(
            access_key_id: str,
            iam_action: str,
            service: str,
            region: str,
            resource_arn: str = "*",
            service_context: dict[str, Any] | None = None,
        ) -> Any:
            denied = _enforce(
                access_key_id, iam_action, service, region, resource_arn, service_context
            )
            who = iam_evaluator.caller_arn()
            if who and not who.endswith(":root"):
                call = {"who": who, "action": iam_action, "resource": resource_arn}
                call_log.write(json.dumps({**call, "denied": denied is not None}) + "\n")
            return denied

        iam_evaluator.enforce = enforce_and_record
        iam_actions.extract_resource_arn = _resource
        iam_actions.extract_iam_action = _action
        iam_actions.s3_additional_checks = _extra_actions
        iam_evaluator.pin_request_origin = _secure
        app.pin_request_origin = _secure
        # AWS accepts a bucket that a change set imports; the stand-in reports a name conflict.
        provisioners.s3_bucket_name_conflict = lambda name: None
        app.AUTH = True
        app.main()


def _secure(source_ip: str, secure_transport: bool) -> None:
    # The stand-in speaks plain HTTP, and the bucket's policy allows only TLS.
    _pin_origin(source_ip, True)


def _action(*arguments: Any) -> str | None:
    # SQS checks a batch as the action of each of its entries.
    action = _action_of(*arguments)
    return action.removesuffix("Batch") if action and action.startswith("sqs:") else action


def _extra_actions(method: str, path: str, *rest: Any) -> list[tuple[str, str]]:
    # S3 answers that a blob does not exist only to a caller who may list the bucket.
    result: list[tuple[str, str]] = _s3_actions(method, path, *rest)
    bucket, _, key = path.strip("/").partition("/")
    if key and method in ("GET", "HEAD") and key not in s3._buckets.get(bucket, {})["objects"]:
        result.append(("s3:ListBucket", f"arn:aws:s3:::{bucket}"))
    return result


def _resource(service: str, method: str, path: str, headers: Any, body: bytes, *rest: Any) -> str:
    # AWS checks the permission on the path itself; the stand-in would check it on everything.
    if service == "ssm" and headers.get("x-amz-target", "").endswith("GetParametersByPath"):
        region, account = rest[-2:]
        return f"arn:aws:ssm:{region}:{account}:parameter{json.loads(body)['Path']}"
    return str(_resource_of(service, method, path, headers, body, *rest))


if __name__ == "__main__":
    main(sys.argv.pop(1))
