#!/usr/bin/env bash
# A platform engineer: several workers, the page of their results, and a server.
set -e
geval-local score chats.csv -m assistant/helpfulness --field question='customer question' --field output='bot reply' --workers 2 -o scored.csv
geval-local report scored.csv -o scored.html
geval-local serve -j nano --port "${PORT:-8399}" 2> server.log & server=$!
trap 'kill $server' EXIT
curl --silent --retry 300 --retry-delay 1 --retry-all-errors --fail --output /dev/null "http://127.0.0.1:${PORT:-8399}/ready"
curl --silent --fail "http://127.0.0.1:${PORT:-8399}/v1/score" -H 'Content-Type: application/json' -d '{"metric": "assistant/helpfulness", "rows": [{"question": "Where is my parcel?", "output": "It arrives tomorrow."}]}'
