#!/usr/bin/env bash
# A chat model as a GGUF file: MODEL=/path/model.gguf bash gguf.sh
set -e
geval-local score chats.csv --limit 3 -m assistant/helpfulness -j "$MODEL" --field question='customer question' --field output='bot reply' -o gguf.jsonl
geval-local report gguf.jsonl -o gguf.html
