"""``frame.geval.score(...)`` for frames of pandas and polars."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from geval_local.errors import ConfigurationError
from geval_local.frames.scoring import Metrics, ascore_frame, score_frame

__all__ = ["GevalAccessor", "register_accessors"]


class GevalAccessor:
    """What ``frame.geval`` is."""

    def __init__(self, frame: Any) -> None:
        self._frame = frame

    def score(self, metrics: Metrics, judge: Any = None, **options: Any) -> Any:
        """Score the rows; parameters, result and errors as in `geval_local.score_frame`."""
        return score_frame(self._frame, metrics, judge, **options)

    async def ascore(self, metrics: Metrics, judge: Any = None, **options: Any) -> Any:
        """Score the rows beside an event loop, as `geval_local.ascore_frame`."""
        return await ascore_frame(self._frame, metrics, judge, **options)


def register_accessors() -> list[str]:
    """Give the frames of the libraries that are installed, pandas and polars, the accessor ``geval``."""
    found = [name for name in ("pandas", "polars") if find_spec(name) is not None]
    if not found:
        raise ConfigurationError(
            "neither pandas nor polars is installed", hint="pip install 'geval-local[pandas]', or [polars]."
        )
    if "pandas" in found:
        import pandas as pd

        if getattr(pd.DataFrame, "geval", None) is not GevalAccessor:
            pd.api.extensions.register_dataframe_accessor("geval")(GevalAccessor)
    if "polars" in found:
        import polars as pl

        if not hasattr(pl.DataFrame, "geval"):
            pl.api.register_dataframe_namespace("geval")(GevalAccessor)
    return found
