"""Starts runs tracked by W&B in child processes, since wandb keeps its service and login for a whole process."""

import gzip
import json
import os
import re
import struct
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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


def records(folder: Path) -> list[Any]:
    """Returns all records in the `.wandb` file of a folder."""
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = folder.glob("*.wandb")
    return [Record.FromString(data) for _, data in entries(path.read_bytes())]


def logged(run: Path) -> list[dict[str, float]]:
    """Returns the logged rows of all W&B folders of a run."""
    return [row for folder in folders(run) for row in history(folder)]


def history(folder: Path) -> Iterator[dict[str, float]]:
    """Yields the rows logged into a folder, up to the point where its file was cut off."""
    from google.protobuf.message import DecodeError
    from wandb.proto.wandb_internal_pb2 import Record

    for path in folder.glob("*.wandb"):
        for _, data in entries(path.read_bytes()):
            with suppress(DecodeError):  # a full disk may leave holes
                record = Record.FromString(data)
                if record.WhichOneof("record_type") == "history":
                    items = record.history.item
                    yield {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}


def entries(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields the complete entries of a file, each with the position of its end.

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
        if at > len(data) or not place:  # the file was cut off, or has zeros at the end
            return
        pieces += data[at - length : at]
        if place in (_WHOLE, _LAST):
            yield at, pieces
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


@contextmanager
def server_that_refuses() -> Iterator[str]:
    """Runs a server that rejects every key; yields its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Refuses)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


class _Refuses(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._refuse()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._refuse()

    def _refuse(self) -> None:
        self.send_response(401)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    """Stand-in for the parts of W&B's server that a run needs; `sent` records the requests' paths and bodies."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Takes)
        self.sent: list[tuple[str, bytes]] = []
        self.address = f"http://127.0.0.1:{self.server_port}"
        Thread(target=self.serve_forever, daemon=True).start()

    def history(self) -> list[dict[str, Any]]:
        """Returns the lines of a run's history, ordered by the offsets that the client gave."""
        lines: dict[int, dict[str, Any]] = {}
        for path, body in self.sent:
            sent = json.loads(body) if path.endswith("/file_stream") else {}
            part = sent.get("files", {}).get("wandb-history.jsonl")  # a heartbeat of a slow run has no history
            for number, line in enumerate(part["content"] if part else ()):
                lines[part["offset"] + number] = json.loads(line)
        return [lines[number] for number in sorted(lines)]

    def rounds(self) -> list[int]:
        """Returns the rounds in the history."""
        return [line["round"] for line in self.history()]

    def artifacts(self) -> list[bytes]:
        """Returns the requests that create artifacts."""
        return [
            body for path, body in self.sent if path == "/graphql" and re.search(rb"mutation CreateArtifact\b", body)
        ]

    def handle_error(self, *_: object) -> None:
        """Ignores errors, since wandb closes connections at any time."""

    def close(self) -> None:
        """Stops the server."""
        self.shutdown()
        self.server_close()


def upload(folder: Path) -> Server:
    """Uploads a folder by `wandb sync`; returns the closed server that received the contents."""
    server = Server()
    words = [sys.executable, "-m", "wandb", "sync", str(folder)]
    variables = {"WANDB_API_KEY": KEY, "WANDB_BASE_URL": server.address, "WANDB_CONFIG_DIR": "/dev/null"}
    others = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    subprocess.run(words, env=others | variables, check=True, capture_output=True, timeout=120)
    server.close()
    return server


class _Takes(_Refuses):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
        self.server.sent.append((self.path, body))
        self._answer({"data": self._data(json.loads(body))} if self.path == "/graphql" else {})

    do_PUT = do_POST  # noqa: N815  # the name required by the library

    def _data(self, asked: dict[str, Any]) -> dict[str, Any] | None:
        given = asked.get("variables") or {}
        if "upsertBucket" in asked["query"]:
            project = {"id": "p", "name": given["project"], "entity": {"id": "e", "name": "someone"}}
            bucket = {"id": "b", "name": given["name"], "displayName": None, "config": "{}", "historyLineCount": 0}
            return {"upsertBucket": {"bucket": bucket | {"project": project}, "inserted": True}}
        if "createRunFiles" in asked["query"]:
            files = [{"name": name, "uploadUrl": f"{self.server.address}/put/{name}"} for name in given["files"]]
            return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}
        if "viewer" in asked["query"]:
            teams = {"edges": [{"node": {"name": "someone"}}]}
            return {"viewer": {"id": "v", "entity": "someone", "username": "someone", "flags": "{}", "teams": teams}}
        if "query ArtifactType(" in asked["query"]:
            return {"project": {"artifact": None}}  # no artifact of that name exists
        if re.search(r"mutation CreateArtifact\b", asked["query"]):
            artifact = {"id": "a", "state": "COMMITTED", "artifactSequence": {"id": "s", "latestArtifact": None}}
            return {"createArtifact": {"artifact": artifact}}
        return {"model": self._resumed(given["name"])} if "RunResumeStatus" in asked["query"] else None

    def _resumed(self, name: str) -> dict[str, Any] | None:
        """Returns the server's answer about a run that was started before, or None."""
        history = self.server.history()
        if not history:
            return None
        last = json.dumps(history[-1])
        texts = {"summaryMetrics": last, "historyTail": json.dumps([last]), "eventsTail": "[]", "config": "{}"}
        counts = {"historyLineCount": len(history), "logLineCount": 0, "eventsLineCount": 0}
        bucket = {"id": "b", "name": name, "displayName": name, "tags": [], "wandbConfig": '{"t": 1}'} | texts | counts
        return {"id": "p", "name": "p", "entity": {"id": "e", "name": "someone"}, "bucket": bucket}

    def _answer(self, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
