#!/bin/sh
# Runs a batch pipeline: a workflow with a map in it. Needs `tasklane` and `python3`; starts a server of its own unless
# TASKLANE_URL names one.
set -eu
cd "$(dirname "$0")"
. ../server.sh

$tasklane workflow run pipeline.yaml --set count="${1:-1000}" --json > "$scratch/run.json"
python3 -c '
import json, sys
run = json.load(open(sys.argv[1]))
for node in run["nodes"]:
    print(node["status"], node["name"])
print(next(node for node in run["nodes"] if node["name"] == "check")["result"]["data"].strip())' "$scratch/run.json"
