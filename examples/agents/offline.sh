#!/bin/sh
# Run a command with a fake Messages API, which answers from the files in offline/:
#
#   ./offline.sh longshore up
#
# The agent and its tools are real. Nothing leaves this machine, and nothing is paid.
set -eu
here=$(dirname "$0")
pipe=$(mktemp -u)
mkfifo -m 600 "$pipe"
# It ends with the command, which replaces this shell below.
python -m verification.messages_api --with-parent \
  --script "$here/offline/store.json" \
  --script "$here/offline/review.json" \
  --script "$here/offline/notice.json" > "$pipe" &
# It prints ANTHROPIC_BASE_URL=… when it listens.
read -r address < "$pipe" || address=
rm "$pipe"
[ -n "$address" ] || exit 1
export "$address" ANTHROPIC_API_KEY=sk-ant-of-the-fake
exec "$@"
