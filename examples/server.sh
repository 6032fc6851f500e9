# For the examples: a server, started if TASKLANE_URL names none, and stopped with what else was started.
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
if [ -z "${TASKLANE_URL:-}" ]; then
    port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    export TASKLANE_URL="http://127.0.0.1:$port"
    $tasklane dev --listen "127.0.0.1:$port" --data-dir "$scratch/data" > "$scratch/server.log" 2>&1 &
    children="$children $!"
    until $tasklane stats > /dev/null 2>&1; do
        kill -0 "${children##* }" 2> /dev/null || { cat "$scratch/server.log" >&2; exit 1; }
        sleep 0.1
    done
fi
