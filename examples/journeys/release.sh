#!/usr/bin/env bash
# A data set as its authors released it: a correlation with people. Run it where the folder `data` with release.jsonl is.
set -e
geval-local score data/release.jsonl -m assistant/helpfulness -j nano -o release.csv
geval-local meta-eval data/release.jsonl --results release.csv --human expert_annotations.helpfulness --no-baselines
