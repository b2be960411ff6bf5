#!/bin/sh
# Create a small git repository from sample/ and print the job of review.yaml for it:
#
#   ./sample.sh | longshore submit -
set -eu
cd "$(dirname "$0")"
if [ ! -d till ]; then
  git init --quiet --initial-branch main till.new
  cp sample/* till.new
  git -C till.new add .
  git -C till.new -c user.name=example -c user.email=example@localhost \
    commit --quiet --message 'A till'
  mv till.new till
fi
sed "s|url: https://.*|url: $PWD/till|" review.yaml
