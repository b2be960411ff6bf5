"""What a child finds where: names in its environment, numbers of its pipes.

A shell script can report through the channel too::

    echo '{"type":"result","value":42}' >&$LONGSHORE_ATTEMPT_CHANNEL

Nothing else stands here, because every child imports this before it does anything.
"""

TASK_VARIABLE = "LONGSHORE_ATTEMPT_TASK"
ATTEMPT_VARIABLE = "LONGSHORE_ATTEMPT"
# Paths of files with JSON: the task's input, and its parents' results by their keys.
INPUT_VARIABLE = "LONGSHORE_ATTEMPT_INPUT"
DEPENDENCIES_VARIABLE = "LONGSHORE_ATTEMPT_DEPENDENCIES"

# An object with this one field in a task's arguments stands for the result of the task it names.
RESULT_REFERENCE = "$longshore.result"

CHANNEL_VARIABLE = "LONGSHORE_ATTEMPT_CHANNEL"
# One digit, because some shells know no other after ">&".
CHANNEL_NUMBER = 3
REPLIES_NUMBER = 4

# Below an attempt's folder: an agent's home, with what its command line writes of conversations.
AGENT_FOLDER = "agent"
