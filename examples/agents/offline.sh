#!/bin/sh
# Run a command with a stand-in for the model, which answers from the files in offline/:
#
#   ./offline.sh longshore up
#
# The real agent runs, and so do its tools; nothing leaves this machine, and nothing is paid.
set -eu
here=$(dirname "$0")
pipe=$(mktemp -u)
mkfifo -m 600 "$pipe"
# It ends with the command, which takes this shell's place below.
python -m longshore.testing.messages_api --with-parent \
  --script "$here/offline/store.json" \
  --script "$here/offline/review.json" \
  --script "$here/offline/notice.json" > "$pipe" &
# Its first line is ANTHROPIC_BASE_URL=…, and comes when it listens.
read -r address < "$pipe" || address=
rm "$pipe"
[ -n "$address" ] || exit 1
export "$address" ANTHROPIC_API_KEY=sk-ant-of-the-stand-in
exec "$@"
