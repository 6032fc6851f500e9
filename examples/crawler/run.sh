#!/bin/sh
# Crawls a small site: a handler for pages, and an analyzer that finds links and adds tasks. Needs `tasklane` and `python3`;
# starts a server of its own unless TASKLANE_URL names one.
set -eu
cd "$(dirname "$0")"
. ../server.sh

python3 -u -m http.server --bind 127.0.0.1 --directory site 0 > "$scratch/site.log" 2>&1 &
children="$children $!"
until port=$(sed -n 's/.*port \([0-9]*\).*/\1/p' "$scratch/site.log") && [ -n "$port" ]; do sleep 0.1; done

$tasklane executor put page page.yaml --replace
$tasklane analyzer put page links.yaml --replace
crawl=$(date +%s)-$$
job=$($tasklane submit --type page --name crawl --queue crawl \
    --payload "{\"url\":\"http://127.0.0.1:$port/index.html\",\"crawl\":\"$crawl\"}" \
    --unique '{{ payload.crawl }} {{ payload.url }}' --unique-for 1h)
$tasklane job get "$job" --wait 2m
$tasklane list --type page --all --json | python3 -c '
import json, sys
pages = sorted(json.loads(line)["taskName"].rsplit("/")[-1] for line in sys.stdin)
print("pages:", " ".join(page for page in pages if page != "crawl"))'
$tasklane job delete "$job"
