"""What a loaded model must not lack: weights for every parameter, and memory for some of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from geval_local.errors import JudgeError, WeightsError
from geval_local.models.entry import JudgeEntry

__all__ = ["check_gaps", "check_placement"]


def check_gaps(entry: JudgeEntry, directory: Path, report: dict[str, Any]) -> None:
    """Refuse what transformers only warns about: a parameter without weights would hold random numbers.

    Parameters
    ----------
    entry : JudgeEntry
        Whose model it is.
    directory : Path
        Where its files are.
    report : dict
        What transformers tells of its loading.

    Raises
    ------
    WeightsError
        If parameters are missing or have another shape.
    """
    missing = sorted(str(key) for key in report["missing_keys"])
    mismatched = sorted(str(item[0]) for item in report["mismatched_keys"])
    if missing or mismatched:
        shown = ", ".join((missing + mismatched)[:3]) + (", ..." if len(missing + mismatched) > 3 else "")
        raise WeightsError(
            f"judge {entry.name!r}: the weights in {directory} do not fit its config.json: {len(missing)} parameters "
            f"are missing and {len(mismatched)} have another shape ({shown})",
            hint="They would be initialised at random. Check that config.json and weights belong together and that "
            "this is a causal language model with its head.",
        )


def check_placement(entry: JudgeEntry, model: Any) -> None:
    """Refuse a placement that leaves all weights on disk: accelerate then runs into tensors without data.

    Raises
    ------
    JudgeError
        If a device map has put everything there.
    """
    places = set((getattr(model, "hf_device_map", None) or {}).values())
    if places == {"disk"}:
        size = model.get_memory_footprint() / 1e6
        tied = ", which it shares with its head," if model.config.get_text_config().tie_word_embeddings else ""
        raise JudgeError(
            f"judge {entry.name!r} ({size:,.0f} MB of weights): the device map found no memory for any part of it, not "
            f"even for its embedding{tied} and a model cannot run from the disk alone",
            hint="Make memory free, halve the weights with --dtype bfloat16, take a smaller judge, or have all of it "
            "loaded into main memory, whatever is free there, with --device cpu instead of --device-map.",
        )
