"""Logs as lines of JSON."""

import datetime
import json
import logging
import sys
from typing import Any, TextIO

LOGGERS = ("dspine", "uvicorn", "uvicorn.error")


class JsonLines(logging.Formatter):
    """One object per record. A record's attribute `fields` adds to it."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        when = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        fields: dict[str, Any] = {
            "time": when.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


def set_up(stream: TextIO | None = None) -> None:
    """Sends what the server and uvicorn have to say to `stream`, by default standard error, and to no other place."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines())
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(logging.INFO)
    # Its children hand their records on to "uvicorn" as well.
    logging.getLogger("uvicorn.error").handlers = []
    logging.getLogger("uvicorn.error").propagate = True
