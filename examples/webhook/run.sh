#!/bin/sh
# A receiver that checks signatures is told how tasks end. Needs `tasklane` and `python3`; starts a server of its own unless
# TASKLANE_URL names one.
set -eu
cd "$(dirname "$0")"
. ../server.sh

WEBHOOK_SECRET=$($tasklane webhook secret --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["secret"])')
export WEBHOOK_SECRET
python3 receiver.py > "$scratch/told" 2> "$scratch/receiver.log" &
children="$children $!"
until port=$(sed -n 's/.*port \([0-9]*\).*/\1/p' "$scratch/receiver.log") && [ -n "$port" ]; do sleep 0.1; done
url=http://127.0.0.1:$port/

$tasklane webhook test "$url"
$tasklane run --webhook "$url" -- echo hello
$tasklane run --webhook-on-failure "$url" -- echo "nobody is told of this"
$tasklane run --webhook-on-failure "$url" -- sh -c 'exit 3' || true
until [ "$(wc -l < "$scratch/told")" -ge 3 ]; do sleep 0.1; done
python3 -c '
import json, sys
for line in sys.stdin:
    told = json.loads(line)
    print("told:", told["type"], told["data"].get("taskName", ""))' < "$scratch/told"
$tasklane webhook deliveries
