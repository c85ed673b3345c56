"""The server's log as JSON: one object a line on stderr, for machines. It holds no texts of requests."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import datetime, timezone

__all__ = ["log_json"]

#: Where uvicorn and this package write.
LOGGERS = ("geval_local", "uvicorn")


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        line = {"time": time, "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
        line |= getattr(record, "figures", {})
        if record.exc_info and record.exc_info[0] is not None:
            # The message of an exception may hold a text; its frames do not.
            frames = "".join(traceback.format_tb(record.exc_info[2]))
            line |= {"exception": record.exc_info[0].__name__, "frames": frames}
        return json.dumps(line)


def log_json() -> None:
    """Replace the handlers of the server's loggers."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.propagate = False
        logger.setLevel(logging.INFO)
