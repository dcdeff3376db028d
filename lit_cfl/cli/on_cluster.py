"""Runs a command on the cluster, in the job's folder: `python -m lit_cfl.cli.on_cluster`."""

import json
import sys
from pathlib import Path

from lit_cfl.cli.main import main
from lit_cfl.storage.given_paths import expand_home
from lit_cfl.tune.launching.job_package import JOB
from lit_cfl.tune.launching.results import store


def run_job() -> int:
    """Runs the command, and stores its results even if it failed. Returns its exit code."""
    job = json.loads(Path(JOB).read_text("utf-8"))
    folder = expand_home(job["folder"])
    try:
        return main([*job["words"], str(folder)])
    finally:
        if job["storage"] is not None and folder.is_dir():
            store(folder, job["storage"])
            print(f"stored: {job['storage']}")


if __name__ == "__main__":
    sys.exit(run_job())
