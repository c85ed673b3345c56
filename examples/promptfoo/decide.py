"""A Python assertion for promptfoo: the criterion in `config` becomes a predicate about prompt and output."""

import json
import os
import urllib.request

URL = os.environ.get("GEVAL_LOCAL_URL", "http://127.0.0.1:8399")


def get_assert(output, context):
    """Ask the server how likely it is that the criterion holds."""
    config = context.get("config") or {}
    question = {"type": "predicate", "name": "criterion", "instructions": config["criterion"]}
    messages = [{"role": "user", "content": str(context.get("prompt", ""))}, {"role": "assistant", "content": output}]
    body = {"model": config.get("model", "jev-latest"), "input": messages, "questions": [question]}
    headers = {"Content-Type": "application/json"}
    if os.environ.get("GEVAL_LOCAL_API_KEY"):
        headers["Authorization"] = f"Bearer {os.environ['GEVAL_LOCAL_API_KEY']}"
    request = urllib.request.Request(f"{URL}/v1/decisions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        probability = json.load(answer)["answers"][0]["probability"]
    threshold = config.get("threshold", 0.5)
    return {
        "pass": probability >= threshold,
        "score": probability,
        "reason": f"P({config['criterion']!r}) = {probability:.3f}, at least {threshold} passes",
    }
