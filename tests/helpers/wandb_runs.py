"""Starts runs tracked by W&B in child processes, since wandb keeps its service and login for a whole process."""

import gzip
import json
import os
import re
import struct
import sys
import warnings
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from processes import in_child, start, wait

from lit_cfl.storage.csv_log import read_table
from lit_cfl.tracking import trackers
from lit_cfl.tracking.offline import folders_of

KEY = "0123456789" * 4
_BLOCK, _HEADER = 32768, 7
_WHOLE, _LAST = 1, 4


def tracked(path: Path, *options: str, rounds: int = 4, **variables: str | None) -> int:
    """Runs a small quickstart tracked by W&B, with these `WANDB_*` variables; returns the exit code."""
    return tracked_command(start(path, "--pictures.formats", "[png]", *options, rounds=rounds), **variables)


def tracked_command(arguments: list[str], **variables: str | None) -> int:
    return wait(in_child(arguments, lambda: set_variables(**variables)))


def set_variables(**variables: str | None) -> None:
    """Prepares a child process: sets W&B's variables, prints notices, and draws pictures only at the end."""
    trackers.DRAW_SECONDS = float("inf")
    warnings.simplefilter("default")
    warnings.showwarning = lambda *warning: print(warnings.formatwarning(*warning[:4]), file=sys.stderr)
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        del os.environ[name]
    own = {"NETRC": "/dev/null", "WANDB_CONFIG_DIR": "/dev/null"}  # hides the user's login
    os.environ.update(own | {f"WANDB_{name}": value for name, value in variables.items() if value is not None})


def notes(output: Path) -> list[str]:
    """Returns the notices that a child printed."""
    return re.findall(r"^Note: (.*)\.$", output.read_text(), flags=re.MULTILINE)


def folders(run: Path) -> list[Path]:
    """Returns a run's W&B folders, oldest first."""
    return folders_of(run / "wandb", "*")


def records(folder: Path) -> Iterator[Any]:
    """Yields the records in the `.wandb` file of a folder, up to the point where it was cut off."""
    from wandb.proto.wandb_internal_pb2 import Record

    for path in folder.glob("*.wandb"):
        yield from map(Record.FromString, entries(path.read_bytes()))


def history(folder: Path) -> list[dict[str, Any]]:
    """Returns the rows logged into a folder."""
    found = [record.history.item for record in records(folder) if record.WhichOneof("record_type") == "history"]
    return [{item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items} for items in found]


def logged(run: Path) -> list[dict[str, Any]]:
    """Returns the logged rows of all W&B folders of a run."""
    return [row for folder in folders(run) for row in history(folder)]


def entries(data: bytes) -> Iterator[bytes]:
    """Yields the complete entries of a file.

    They are stored in blocks of 32 KiB; each piece is preceded by a checksum, its length and its place in the entry.
    """
    at, pieces = _HEADER, b""  # skips the header of the file
    while at + _HEADER <= len(data):
        room = _BLOCK - at % _BLOCK
        if room < _HEADER:
            at += room
            continue
        length, place = struct.unpack_from("<HB", data, at + 4)
        at += _HEADER + length
        if at > len(data):  # the file was cut off
            return
        pieces += data[at - length : at]
        if place in (_WHOLE, _LAST):
            yield pieces
            pieces = b""


def numbers(row: dict[str, object]) -> dict[str, object]:
    """Returns the values of our metrics in a logged row, or in a row of `metrics.csv`."""
    return {
        name: value
        for name, value in row.items()
        # skips columns of media, such as picture.size
        if isinstance(value, int | float) and not name.startswith("_") and "." not in name
    }


def own_rows(run: Path) -> list[dict[str, object]]:
    return [numbers(row) for row in read_table(run / "metrics.csv")]


class Receiver(ThreadingHTTPServer):
    """Gives W&B's client the same answer to every request, and keeps their paths and bodies in `sent`.

    Args:
        status: Status of the answers, such as 401 to reject every key.
    """

    def __init__(self, status: int = 200) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.status, self.sent = status, list[tuple[str, bytes]]()
        self.address = f"http://127.0.0.1:{self.server_port}"
        Thread(target=self.serve_forever, daemon=True).start()

    def rounds(self) -> list[int]:
        """Returns the rounds of the rows that were sent."""
        sent = [json.loads(body).get("files", {}) for path, body in self.sent if path.endswith("/file_stream")]
        lines = [line for part in sent for line in part.get("wandb-history.jsonl", {"content": ()})["content"]]
        return [json.loads(line)["round"] for line in lines]

    def handle_error(self, *_: object) -> None:
        """Ignores errors, since wandb closes connections at any time."""


class _Answer(BaseHTTPRequestHandler):
    server: Receiver
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
        self.server.sent.append((self.path, body))
        project = {"id": "p", "name": "p", "entity": {"id": "e", "name": "someone"}}
        bucket = {"id": "b", "name": "b", "displayName": None, "config": "{}", "historyLineCount": 0}
        artifact = {"id": "a", "state": "COMMITTED", "artifactSequence": {"id": "s", "latestArtifact": None}}
        teams = {"edges": [{"node": {"name": "someone"}}]}
        viewer = {"id": "v", "entity": "someone", "username": "someone", "flags": "{}", "teams": teams}
        found = {"upsertBucket": {"bucket": bucket | {"project": project}, "inserted": True}, "viewer": viewer}
        found |= {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": []}, "model": None}
        found |= {"project": {"artifact": None}, "createArtifact": {"artifact": artifact}}
        data = json.dumps({"data": found} if self.path == "/graphql" else {}).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_PUT = do_GET  # noqa: N815  # names required by the library

    def log_message(self, *_: object) -> None:
        pass
