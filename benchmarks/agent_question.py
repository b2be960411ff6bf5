"""The prompt of agents in benchmarks, for Longshore and for the bare SDK; it costs nothing."""

MODEL = "claude-sonnet-5-5"
PROMPT = "Say when you are done."
KEY = "sk-ant-this-costs-nothing"
