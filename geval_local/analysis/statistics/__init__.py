"""Correlations, resampling and tests."""
