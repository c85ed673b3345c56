"""Requests in, label log-probabilities out: the engines, and the probe that chooses between them."""
