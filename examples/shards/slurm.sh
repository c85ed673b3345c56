#!/usr/bin/env bash
# N shares of one run as an array of Slurm jobs. Each job has a GPU; one that is preempted or out of time is queued again.
#
#     job=$(sbatch --parsable --array=1-8 examples/shards/slurm.sh 8 DATA METRIC JUDGE OUT [OPTION ...])
#     sbatch --dependency="afterok:$job" --wrap "geval-local merge OUT -o scores.jsonl"
#
# N is given, not taken from the array: an array of the failed jobs alone, --array=3,5, is still of 8 shares.
#SBATCH --gpus-per-task=1
#SBATCH --time=02:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
shares=$1 data=$2 metric=$3 judge=$4 out=$5
shift 5

# USR1 comes two minutes before the time is up, TERM on preemption: the run ends after its current batch, with code 3.
run= heard= stopped=
stop() { [ -z "$run" ] || kill -TERM "$run" 2> /dev/null; }
trap 'heard=1 stopped=1; stop' USR1 TERM
geval-local score "$data" -m "$metric" -j "$judge" --shard "$SLURM_ARRAY_TASK_ID/$shares" -o "$out" "$@" &
run=$!
[ -z "$stopped" ] || stop # it was heard before the run had a number
wait "$run"
code=$?
while [ "$heard" ]; do # a signal has ended `wait`, and given its code; the run's own is still to come
    heard=
    wait "$run"
    code=$?
done
if [ "$code" -eq 3 ] || { [ "$stopped" ] && [ "$code" -gt 128 ]; }; then # or while Python started
    scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
fi
exit "$code"
