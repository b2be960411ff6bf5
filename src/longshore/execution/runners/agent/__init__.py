"""The agent runner: the Claude Agent SDK, inside the child process of an attempt."""
