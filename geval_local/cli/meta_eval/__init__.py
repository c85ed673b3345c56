"""What ``meta-eval`` puts side by side: judges, kept scores, other people's outputs, reference metrics."""
