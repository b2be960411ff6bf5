#!/bin/sh
# Run a command with a stand-in for the model, which says what a script has it say:
#
#   offline.sh SCRIPT COMMAND...
#
# The real agent runs, and its tools do; nothing leaves this machine, and nothing is paid.
set -eu
script=$1
shift
pipe=$(mktemp -u)
mkfifo -m 600 "$pipe"
python -m longshore.testing.messages_api --script "$script" > "$pipe" &
trap 'kill $! 2> /dev/null || true; rm -f "$pipe"' EXIT
# Its first line is ANTHROPIC_BASE_URL=…, and comes when it listens.
read -r address < "$pipe"
export "$address" ANTHROPIC_API_KEY=offline
"$@"
