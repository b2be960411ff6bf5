"""The Lambda functions of an AWS installation."""
