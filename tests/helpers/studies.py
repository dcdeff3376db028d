"""Small studies on digits for the tests of `tune/`."""

from pathlib import Path
from typing import Any

import yaml

BASE = yaml.safe_load("""
name: tiny
seeds: [0]
rounds: 4
cohort_size: 5
selection: round_robin_first
data: {class_path: Digits, init_args: {num_clients: 12, rotations: [0, 180], test: 0.2, validation: 0.25}}
task:
  class_path: Classification
  init_args: {net: {class_path: MCLR}, optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.1}}}
local: {epochs: 1, batch_size: 10}
pictures: {formats: []} # drawing would take two seconds per run
algorithm: {class_path: FedGroup, init_args: {num_clusters: 2, pretrain_scale: 3}}
""")
SPACE = {"algorithm.eta_g": {"uniform": [0.0, 0.3]}, "algorithm.num_clusters": {"randint": [2, 4]}}
STUDY = {"name": "tiny-study", "base": BASE, "space": SPACE, "limits": {"trials": 3}, "num_repeats": 0}
SLOW = {"class_path": "own_slow.Slow", "init_args": {"rate": 0.0, "pause": 0.0}}
ALGORITHMS = yaml.safe_load("""
choice:
- {class_path: IFCA, space: {num_clusters: {randint: [2, 4]}}}
- class_path: FedGroup
  init_args: {pretrain: {length: 2, unit: epochs}}
  space: {num_clusters: {choice: [2, 3]}, eta_g: {loguniform: [0.001, 0.1]}}
""")


def study_file(folder: Path, **changes: Any) -> Path:
    """Writes a study's file with some options changed."""
    path = folder / "study-to-run.yaml"
    path.write_text(yaml.safe_dump(STUDY | changes))
    return path


def base(**changes: Any) -> dict[str, Any]:
    return BASE | changes
