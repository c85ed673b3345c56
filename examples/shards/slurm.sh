#!/usr/bin/env bash
# Shares of one run as an array of Slurm jobs. Each job has a GPU; one that is preempted or out of time is queued again.
#
#     job=$(sbatch --parsable examples/shards/slurm.sh DATA METRIC JUDGE OUT)
#     sbatch --dependency="afterok:$job" --wrap "geval-local merge OUT -o scores.jsonl"
#SBATCH --array=1-8
#SBATCH --gpus-per-task=1
#SBATCH --time=02:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
data=$1 metric=$2 judge=$3 out=$4

geval-local score "$data" -m "$metric" -j "$judge" --shard "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT" -o "$out" &
run=$!
# USR1 comes two minutes before the time is up, TERM on preemption: the run ends after its current batch, with code 3.
trap 'kill -TERM "$run" 2>/dev/null' USR1 TERM
wait "$run"
code=$?
while kill -0 "$run" 2>/dev/null; do # a signal has ended `wait`, not the run
    wait "$run"
    code=$?
done
if [ "$code" -eq 3 ]; then
    scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
fi
exit "$code"
