#!/usr/bin/env bash
# A chat log: which conversations went wrong, at which turn, and why. Run it where the folder `data` with chats.jsonl is.
set -e
geval-local score data/chats.jsonl -m conversation/goal_completion -j nano --lowest 3 -o conversations.csv
geval-local score data/chats.jsonl -m assistant/helpfulness --turns assistant -j nano --lowest 3 -o turns.jsonl
geval-local reasons turns.jsonl -m assistant/helpfulness --lowest 2 --tokens 24 -o reasons.jsonl
geval-local report turns.jsonl --reasons reasons.jsonl -o turns.html
