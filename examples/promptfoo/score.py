"""A Python assertion for promptfoo: a preset metric of `geval-local serve`, with exact label probabilities."""

import json
import os
import urllib.error
import urllib.request

URL = os.environ.get("GEVAL_LOCAL_URL", "http://127.0.0.1:8399")


def get_assert(output, context):
    """Score the output on the metric in `config`; the test's variables are the metric's other fields."""
    config = context.get("config") or {}
    row = {"prompt": str(context.get("prompt", "")), **context.get("vars", {}), "output": output}
    body = {"metric": config["metric"], "rows": [row]}
    body |= {name: config[name] for name in ("model", "threshold") if name in config}
    headers = {"Content-Type": "application/json"}
    if os.environ.get("GEVAL_LOCAL_API_KEY"):
        headers["Authorization"] = f"Bearer {os.environ['GEVAL_LOCAL_API_KEY']}"
    request = urllib.request.Request(f"{URL}/v1/score", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            found = json.load(answer)["rows"][0]["geval"][config["metric"]]
    except urllib.error.HTTPError as refused:
        return {"pass": False, "score": 0, "reason": refused.read().decode()}
    if found.get("score") is None:
        return {"pass": False, "score": 0, "reason": f"unscored: {found['error']}"}
    shares = ", ".join(f"{label}: {p:.0%}" for label, p in found["probabilities"].items())
    return {
        "pass": found.get("passed", True),
        # promptfoo's scores are 0 to 1.
        "score": found["normalized"],
        "namedScores": {config["metric"]: found["normalized"]},
        "reason": f"{config['metric']} {found['score']:.2f}, {config.get('threshold')} passes ({shares})",
    }
