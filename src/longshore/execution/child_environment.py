"""The environment variables and file descriptors of a child.

A shell script can report through the channel too::

    echo '{"type":"result","value":42}' >&$LONGSHORE_ATTEMPT_CHANNEL

This module holds constants only: every child imports it first, and its import must stay cheap.
"""

TASK_VARIABLE = "LONGSHORE_ATTEMPT_TASK"
ATTEMPT_VARIABLE = "LONGSHORE_ATTEMPT"
# Paths of JSON files: the task's input, and the results of its dependencies by key.
INPUT_VARIABLE = "LONGSHORE_ATTEMPT_INPUT"
DEPENDENCIES_VARIABLE = "LONGSHORE_ATTEMPT_DEPENDENCIES"

CHANNEL_VARIABLE = "LONGSHORE_ATTEMPT_CHANNEL"
# One digit: some shells accept no more after ">&".
CHANNEL_FD = 3
REPLIES_FD = 4

# Below an attempt's folder: an agent's home directory, where its CLI writes transcripts.
AGENT_FOLDER = "agent"
