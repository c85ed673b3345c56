#!/usr/bin/env bash
# Two systems in one wide table: one sentence that says which is better. Run it where the folder `data` with wide.csv is.
set -e
geval-local score data/wide.csv -m assistant/helpfulness -j nano --system-columns answer_old answer_new --group-by ticket -o wide.jsonl
geval-local compare wide.jsonl --system system --group-by ticket --page systems.html
