#!/usr/bin/env bash
# A researcher with ratings: how well does the judge agree, and do two systems differ?
set -e
geval-local score chats.csv -m assistant/helpfulness --field question='customer question' --field output='bot reply' -o rated.jsonl
geval-local meta-eval chats.csv -m assistant/helpfulness --human rating --field question='customer question' --field output='bot reply'
geval-local bias rated.jsonl --side system
geval-local report rated.jsonl --human rating -o rated.html
