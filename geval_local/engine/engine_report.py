"""What is said of the engine that serves a model."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EngineReport"]


@dataclass(frozen=True)
class EngineReport:
    """Which engine serves a model, and why.

    Attributes
    ----------
    engine : str
        ``trie``, ``cache`` or ``padded``.
    reason : str or None
        Why it is not one that shares more; None if it is the first or was asked for.
    difference : float or None
        How far label log-probabilities (nats) from this engine, or from the last that was probed, and from one prompt
        at a time are apart, see `probe.TOLERANCE`; in float32 where a half-precision model fits into memory so. None if
        there was no probe.
    tolerance : float or None
        What was allowed.
    probe_tokens : int
        Length of the longest probe prompt.
    window : int or None
        The model's smallest sliding window, or the chunk of its recurrent layers, if the probe was too short to
        reach it.
    """

    engine: str
    reason: str | None = None
    difference: float | None = None
    tolerance: float | None = None
    probe_tokens: int = 0
    window: int | None = None

    @property
    def text(self) -> str:
        """One line for people."""
        if self.engine == "padded":
            return self.engine if self.reason is None else f"padded (no prefix sharing: {self.reason})"
        notes = [] if self.reason is None else [f"no trie: {self.reason}"]
        if self.difference is not None:
            notes.append(f"differs by {self.difference:.1e} nats from one at a time on {self.probe_tokens} tokens")
        if self.window is not None:
            notes.append(f"window {self.window} not reached")
        return f"{self.engine} ({', '.join(notes)})" if notes else self.engine
