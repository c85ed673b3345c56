#!/usr/bin/env bash
# A gate in a pipeline: the second run fails, and says which rows are the worst.
set -e
geval-local init chats.csv -j nano -o evaluation.yaml
geval-local run evaluation.yaml --check
geval-local run evaluation.yaml
geval-local run evaluation.yaml --set 'gates.all={mean: ">= 4.9", label_mass: ">= 0"}' || test $? -eq 1
