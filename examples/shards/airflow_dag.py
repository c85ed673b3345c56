"""Shares of one run as tasks of Airflow: each is tried again after an interruption, and goes on where it was."""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

SHARES = 8
OUT = "/data/runs/{{ ds }}"
SCORE = f"geval-local score /data/{{{{ ds }}}}.jsonl -m summarization/coherence -j /weights/judge -o {OUT}"

with DAG("geval_local", schedule="@daily", start_date=datetime(2026, 1, 1), catchup=False):
    # Code 3 is an interruption: what is finished is kept, and the next try goes on with it.
    score = BashOperator.partial(
        task_id="score",
        bash_command=f"{SCORE} --shard $SHARD",
        append_env=True,
        retries=5,
        retry_delay=timedelta(minutes=1),
    ).expand(env=[{"SHARD": f"{number}/{SHARES}"} for number in range(1, SHARES + 1)])
    merge = BashOperator(task_id="merge", bash_command=f"geval-local merge {OUT} -o {OUT}.jsonl --fail-under 3.5")
    score >> merge
