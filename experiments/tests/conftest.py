"""Settings of all tests of the experiments: local data sets, no network, no tracking."""

import os
from pathlib import Path

SHARED_DATA = Path(__file__).parents[3] / "shared" / "data"
if SHARED_DATA.is_dir():
    os.environ.setdefault("LITCFL_DATA", str(SHARED_DATA))
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a missing copy is an error at once, without retries
os.environ["WANDB_MODE"] = "disabled"
