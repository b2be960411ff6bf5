"""What agents are asked here, by us and by the floor; nobody pays for it."""

MODEL = "claude-sonnet-5-5"
PROMPT = "Say when you are done."
KEY = "sk-ant-nobody-pays-for-this"
