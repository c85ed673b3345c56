#!/usr/bin/env bash
# Shares of one run on the GPUs of one machine, one process a GPU, by GNU parallel. Run it again after an interruption.
#
#     CARDS=4 SHARES=8 bash examples/shards/parallel.sh DATA METRIC JUDGE OUT
set -euo pipefail
data=$1 metric=$2 judge=$3 out=$4 cards=${CARDS:-2}
shares=${SHARES:-$cards}

# The line for each share is read by a shell once more.
printf -v score '%q ' geval-local score "$data" -m "$metric" -j "$judge" -o "$out"
# {%} is the number of the free place, from 1; a share that fails is tried three times.
seq "$shares" | parallel --jobs "$cards" --retries 3 --line-buffer --tag \
    "CUDA_VISIBLE_DEVICES=\$(({%} - 1)) $score --shard {}/$shares"
geval-local merge "$out" -o "$out.jsonl"
