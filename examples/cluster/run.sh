#!/bin/sh
# Three servers and two workers on one machine; a worker and a server are killed, and nothing is lost.
# Usage: run.sh [redis|postgres]. Needs `tasklane`, and `redis-server` or PostgreSQL's programs, unless TASKLANE_STORE names a
# database that may be used.
set -eu
cd "$(dirname "$0")"
kind=${1:-redis}
tasklane=${TASKLANE:-tasklane}
scratch=$(mktemp -d)
children=
stop() {
    for child in $children; do kill "$child" 2> /dev/null || true; done
    wait
    rm -rf "$scratch"
}
trap stop EXIT
trap 'exit 1' INT TERM
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

start_redis() {
    redis-server --port "$port" --bind 127.0.0.1 --dir "$scratch" --appendonly yes --appendfsync always > "$scratch/redis.log" &
    children="$children $!"
    until redis-cli -p "$port" ping > /dev/null 2>&1; do sleep 0.1; done
    export TASKLANE_STORE="redis://127.0.0.1:$port"
}

start_postgres() {
    for programs in /usr/lib/postgresql/*/bin "$(dirname "$(command -v postgres || echo /)")"; do
        if [ -x "$programs/initdb" ]; then break; fi
    done
    # It refuses to run as root.
    as=
    mkdir "$scratch/postgres"
    if [ "$(id -u)" -eq 0 ]; then
        as="setpriv --reuid=65534 --regid=65534 --clear-groups --"
        chmod 755 "$scratch"
        chown 65534:65534 "$scratch/postgres"
    fi
    (cd "$scratch/postgres" && $as "$programs/initdb" -U tasklane --auth=trust -D data > log 2>&1)
    $as "$programs/postgres" -D "$scratch/postgres/data" -p "$port" -h 127.0.0.1 -k "$scratch/postgres" > "$scratch/postgres.log" 2>&1 &
    children="$children $!"
    until "$programs/pg_isready" -q -h 127.0.0.1 -p "$port"; do sleep 0.1; done
    export TASKLANE_STORE="postgres://tasklane@127.0.0.1:$port/postgres"
}

# The file says what a cluster is made of; only the port is another one here.
export TASKLANE_CONFIG="$PWD/$kind.yaml"
if [ -z "${TASKLANE_STORE:-}" ]; then
    port=$(free_port)
    "start_$kind"
fi

servers=
for name in a b c; do
    port=$(free_port)
    $tasklane server --listen "127.0.0.1:$port" --data-dir "$scratch/$name" > "$scratch/$name.log" 2>&1 &
    children="$children $!"
    servers="$servers $!:$port"
done
for name in left right; do
    $tasklane worker --name "$name" --capacity 4 --data-dir "$scratch/$name" > "$scratch/$name.log" 2>&1 &
    children="$children $!"
    eval "$name=$!"
done
set -- $servers
export TASKLANE_URL="http://127.0.0.1:${1#*:}"
until [ "$($tasklane worker list --json 2> /dev/null | wc -l)" -eq 2 ]; do sleep 0.1; done
$tasklane worker list

echo "eight tasks of six seconds, over both workers"
ids=
for number in 1 2 3 4 5 6 7 8; do
    id=$(echo '{"taskName":"nap","taskType":"SHELL","queue":"naps'$number'","payload":"sleep 6; echo attempt $TASKLANE_ATTEMPT"}' | $tasklane submit -)
    ids="$ids $id"
done
until [ "$($tasklane list --status RUNNING --json | wc -l)" -eq 8 ]; do sleep 0.1; done

echo "kill -9 of worker left, and of one server"
kill -9 "$left" "${2%:*}"
for id in $ids; do $tasklane wait "$id" > /dev/null; done
$tasklane list
echo "finished: $($tasklane list --status SUCCESS --json | wc -l), run again elsewhere: $($tasklane list --json | grep -c '"attempt":2')"
