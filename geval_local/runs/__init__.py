"""Durable runs: a directory in which every finished pack is committed, so that an interrupted run goes on.

``lock`` keeps a second process out, ``manifest`` says what the run is, ``store`` holds the outcomes, ``windows`` reads
ahead, ``run`` is the loop, ``export`` writes the files, ``cache`` remembers outcomes across runs.
"""
