"""What ``meta-eval`` lets judges score: `kept_runs`, under their signature, to avoid scoring twice."""
