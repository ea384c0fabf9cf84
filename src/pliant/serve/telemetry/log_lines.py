"""Log lines with the fields of their request, as text or JSON."""

import json
import logging
import sys
import time
from typing import Literal, TextIO, final

from pliant.serve.telemetry.request_context import current_request

MODEL_LOG = "pliant.serve.repository"
"""The logger of loads, unloads and evictions of models."""
LogFormat = Literal["text", "json"]
_OF_LINES = ("request_id", "trace_id", "span_id", "model", "model_version", "identity")
_ACCESS = ("method", "path", "status", "grpc_status", "seconds", "client", "node")
"""Fields that a record may have in `extra`."""


@final
class RequestFields(logging.Filter):
    """Adds the current request's fields to every record that lacks them; empty outside requests."""

    def filter(self, record: logging.LogRecord) -> bool:
        context = current_request()
        values = {} if context is None else context.log_fields
        for name in _OF_LINES:
            if not hasattr(record, name):
                setattr(record, name, values.get(name, ""))
        return True


@final
class TextLines(logging.Formatter):
    """Time and message, followed by the request's id, trace, model and version, if there is a request."""

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        about = " ".join(f"{name}={getattr(record, name)}" for name in _OF_LINES if getattr(record, name, ""))
        head, *rest = line.split("\n", 1)  # a traceback follows on further lines
        return "\n".join([f"{head} [{about}]" if about else head, *rest])


@final
class JsonLines(logging.Formatter):
    """One JSON object per line: time (RFC 3339, UTC), level, logger, message, request fields, traceback."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in (*_OF_LINES, *_ACCESS):
            if (value := getattr(record, name, "")) != "":
                line[name] = value
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def log_to(stream: TextIO | None, form: LogFormat, is_verbose: bool) -> logging.Handler:
    """Write all log lines of the process to `stream` (default: standard error) in `form`.

    This replaces the handler of an earlier call. `is_verbose` adds at least one line for each request; loads
    and unloads of models after the start always have one.
    Returns the handler, which is installed on the root logger, so that the caller can remove it.
    """
    root = logging.getLogger()
    for earlier in [one for one in root.handlers if isinstance(one.formatter, TextLines | JsonLines)]:
        root.removeHandler(earlier)
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.addFilter(RequestFields())
    handler.setFormatter(JsonLines() if form == "json" else TextLines("%(asctime)s %(message)s"))
    root.addHandler(handler)
    logging.captureWarnings(form == "json")
    logging.getLogger(MODEL_LOG).setLevel(logging.INFO)
    if is_verbose:
        logging.getLogger("pliant.serve").setLevel(logging.INFO)
    return handler


def logs_json() -> bool:
    """Whether the log lines of this process are JSON."""
    return any(isinstance(one.formatter, JsonLines) for one in logging.getLogger().handlers)
