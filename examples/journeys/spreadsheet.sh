#!/usr/bin/env bash
# A spreadsheet in, the worst rows and why out. Run it from an empty directory beside chats.csv.
set -e
geval-local score chats.csv -m assistant/helpfulness -m style/conciseness --field question='customer question' --field output='bot reply' --lowest 5 -o scored.csv
geval-local reasons scored.csv -m assistant/helpfulness --lowest 3 --tokens 24 -o reasons.jsonl
geval-local report scored.csv --reasons reasons.jsonl -o report.html
geval-local calibrate scored.csv -m assistant/helpfulness --human rating -o calibration.json
