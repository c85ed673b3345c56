"""Data frames of pandas and polars in and out.

- `scoring`: `score_frame` and `ascore_frame`
- `libraries`: rows out of a frame, and figures into a copy of it, as each library has them
- `accessor`: ``frame.geval.score(...)``

Nothing here imports pandas or polars before it is given one of their frames, or asked to register the accessor.
"""
