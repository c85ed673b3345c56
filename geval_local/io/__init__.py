"""Rows in, results out: readers, samples, writers, and the manifest beside a result file."""
