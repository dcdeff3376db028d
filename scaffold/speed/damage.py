"""Damages files, and checks that each is restored to the same bits, or refused in one line that names it.

    python scaffold/speed/damage.py --seed S [--first 0] [--damages 500] [--flips 2000] [--log FILE]

Draws damages (a flipped bit, truncation, deletion, emptying, replacement by another run's file of that name) of the
files listed in docs/results.md, in runs of FedGroup, FeSEM, CFL and FlexCFL under shift (killed in mid-run and resumed;
killed before the first save and resumed; finished and then resumed or evaluated), and in a data cache. The runs are
made once and copied for each damage, in forks of one warm process. Then it flips single bits of
checkpoints and loads them. It counts the outcomes:

        healed     exit 0, and the same bits as without the damage (except clocks and identities: same_files.py)
        named      exit 2, and one line that names the damaged file
        different  exit 0, and other results: a fault
        traceback  a fault
        unnamed    an error that does not name the file: a fault
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from kills import run_in_child
from same_files import find_differences, read_content

from lit_cfl.datamodules.cache import read_or_make
from lit_cfl.errors import InputError
from lit_cfl.pictures import files
from lit_cfl.runs.run_directory import RunDirectory
from lit_cfl.storage.checkpoint import Checkpoint
from lit_cfl.storage.digests import find_changed

SMALL = (
    *("--cohort_size", "4", "--local.epochs", "1", "--rounds", "4", "--pictures.formats", "[png]"),
    *("--tracking.wandb", "disabled", "--tracking.snapshots_every", "1", "--checkpoint.every_seconds", "0"),
)
SHIFT = '[{"class_path": "SwapAll", "init_args": {"probability": 0.5}}]'
SPLITS = ("--algorithm.eps1", "9", "--algorithm.eps2", "0.01", "--algorithm.warmup_rounds", "1")
EIGHT = ("--data.num_clients", "8")
RUNS: dict[str, tuple[str, ...]] = {
    "fedgroup": ("--config", "quickstart", *EIGHT, *SMALL, "--algorithm.pretrain_scale", "2"),
    "fesem": ("--config", "fesem/digits", *EIGHT, *SMALL, "--baseline", "null"),
    "cfl": ("--config", "cfl/digits", *EIGHT, *SMALL, "--cohort_size", "8", *SPLITS, "--baseline", "null"),
    "flexcfl": (
        "--config",
        "flexcfl/digits",
        *SMALL,
        "--data.partition.clients_per_group",
        "2",
        "--algorithm.pretrain_scale",
        "2",
        "--baseline",
        "null",
        "--data.shift",
        SHIFT,
    ),
}
DAMAGES = ("flip", "truncate", "delete", "empty", "swap")
FAULTS = ("different", "traceback", "unnamed")
Outcome = tuple[str, str]  # one of the five outcomes listed above, and the output


def damage_file(file: Path, damage: str, other: Path, rng: random.Random) -> None:
    """Damages a file in the given way; `swap` replaces it with `other`, the file of another run."""
    size = file.stat().st_size
    if damage == "flip" and size:
        data = bytearray(file.read_bytes())
        data[rng.randrange(size)] ^= 1 << rng.randrange(8)
        file.write_bytes(data)
    elif damage == "truncate" and size:
        os.truncate(file, rng.randrange(size))
    elif damage == "swap":
        shutil.copy(other, file)
    elif damage == "delete":
        file.unlink()
    else:
        os.truncate(file, 0)


def classify_outcome(code: int, said: str, file: Path, wrong: Callable[[], list[str]]) -> Outcome:
    """Classifies the outcome of a command on a directory with one damaged file."""
    if code not in (0, 2) or "Traceback" in said:
        return "traceback", f"exit {code}: {said[-400:]}"
    if code == 2:
        errors = [line for line in said.splitlines() if line.startswith("lit-cfl: error: ")]
        return ("named" if len(errors) == 1 and str(file) in errors[0] else "unnamed"), said[-400:]
    found = wrong()
    return ("different", "; ".join(found[:4])) if found else ("healed", "")


class Runs:
    """Run directories of one algorithm: of finished runs, and of runs killed before the first save or midway.

    Args:
        name: Name of an entry of `RUNS`.
        folder: Parent folder of the run directories.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.output, self.it = folder / "output.txt", folder / "it"
        folder.mkdir()
        for part, seed, rows in (("whole", 1, None), ("half", 1, 2), ("young", 1, 0), ("whole-2", 2, None)):
            self._make_run(folder / part, seed, rows)
        for part, rows in (("half-2", 2), ("young-2", 0)):
            self._make_run(folder / part, 2, rows)
        self.said = {"whole": self._evaluate(folder / "whole")}

    def _make_run(self, path: Path, seed: int, rows: int | None) -> None:
        words = ["run", *RUNS[self.name], "--seed", str(seed), "--run_dir", str(path)]
        code = run_in_child(words, self.output, partial(_kill_at_row, rows) if rows is not None else lambda: None)
        if code != (0 if rows is None else -signal.SIGKILL):
            raise RuntimeError(f"{path} ended with {code}: {self.output.read_text()}")

    def _evaluate(self, path: Path) -> str:
        if run_in_child(["evaluate", str(path)], self.output, lambda: None):
            raise RuntimeError(self.output.read_text())
        return self.output.read_text()

    def trial(self, rng: random.Random) -> tuple[str, Outcome]:
        part = rng.choice(["half", "half", "half", "young", "whole", "whole"])
        command = rng.choice(["resume", "evaluate"]) if part == "whole" else "resume"
        shutil.rmtree(self.it, ignore_errors=True)
        shutil.copytree(self.folder / part, self.it)
        file, damage = _draw_damage(self.it, self.folder / f"{part}-2", rng)
        damage_file(self.it / file, damage, self.folder / f"{part}-2" / file, rng)
        words = ["run", "--resume", str(self.it)] if command == "resume" else ["evaluate", str(self.it)]
        code = run_in_child(words, self.output, lambda: None)
        outcome = classify_outcome(code, self.output.read_text(), self.it / file, partial(self._find_faults, command))
        return f"{self.name} {part} {command}: {damage} {file}", outcome

    def _find_faults(self, command: str) -> list[str]:
        if command == "evaluate":
            return [] if self.output.read_text() == self.said["whole"] else ["other scores"]
        parts = [path for path in (self.it, self.it / "baseline") if path.exists()]
        unfit = [f"{part} does not fit its SHA256SUMS" for part in parts if find_changed(part) != []]
        return unfit or find_differences(self.it, self.folder / "whole")


def _kill_at_row(rows: int) -> None:
    """Makes this process kill itself when a run has `rows` rows and is about to write the next one."""
    add_row = RunDirectory.add_row

    def dying(directory: RunDirectory, row: dict[str, object]) -> dict[str, object]:
        if len(directory.rows) == rows:
            os.kill(os.getpid(), signal.SIGKILL)
        return add_row(directory, row)

    RunDirectory.add_row = dying  # type: ignore[method-assign,assignment]


def _draw_damage(path: Path, other: Path, rng: random.Random) -> tuple[Path, str]:
    """Draws a file and its damage; the kind of file is drawn first, so that the many pictures do not dominate."""
    kinds: dict[str, list[Path]] = {}
    for file in sorted(path.rglob("*")):
        name = file.relative_to(path)
        if file.is_file() and "wandb" not in name.parts:
            kinds.setdefault(name.name if len(name.parts) == 1 else f"{name.parent}/{name.suffix}", []).append(name)
    file = rng.choice(kinds[rng.choice(sorted(kinds))])
    return file, rng.choice([damage for damage in DAMAGES if damage != "swap" or (other / file).is_file()])


class Cache:
    """A data cache with two entries; each trial copies the cache and damages the first entry."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.it = folder / "cache", folder / "it"
        for key in ("it", "other"):
            self._read(self.folder, key)
        self.entry, self.other = (Path(name) for name in self._names)

    _names: tuple[str, ...] = ()

    def _read(self, place: Path, key: str) -> dict[str, np.ndarray]:
        os.environ["LITCFL_CACHE"] = str(place)
        try:
            arrays = read_or_make([key], lambda: _arrays(key))
        finally:
            del os.environ["LITCFL_CACHE"]
        new = sorted(path.name for path in place.iterdir() if path.name not in self._names)
        self._names += tuple(new) if place == self.folder else ()
        return arrays

    def trial(self, rng: random.Random) -> tuple[str, Outcome]:
        shutil.rmtree(self.it, ignore_errors=True)
        shutil.copytree(self.folder, self.it)
        file, damage = self.it / self.entry, rng.choice(DAMAGES)
        damage_file(file, damage, self.it / self.other, rng)
        what = f"cache: {damage}"
        try:
            found = self._read(self.it, "it")
        except InputError as error:
            return what, ("named" if str(file) in str(error) else "unnamed", str(error))
        except Exception as error:
            return what, ("traceback", repr(error))
        expected = _arrays("it")
        same = found.keys() == expected.keys() and all(np.array_equal(found[key], expected[key]) for key in expected)
        left = find_differences(self.it, self.folder)
        return what, ("healed", "") if same and not left else ("different", "; ".join(left))


def _arrays(key: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(len(key))
    return {"images": rng.integers(0, 256, (20, 8, 8), dtype=np.uint8), "names": np.array(["Ada", key])}


def load_flipped_checkpoint(runs: Runs, rng: random.Random) -> tuple[str, Outcome]:
    """Loads a checkpoint after flipping one of its bits, or a bit of a file in `rows/` next to it."""
    path = runs.folder / rng.choice(["half", "whole"])
    files = [path / "checkpoint.pt", *sorted(path.glob("rows/*.pt"))[:1]]
    file, at = files[-1 if rng.random() < 0.2 else 0], rng.random()
    shutil.rmtree(runs.it, ignore_errors=True)
    runs.it.mkdir()
    shutil.copy(path / "checkpoint.pt", runs.it)
    if (path / "rows").exists():
        shutil.copytree(path / "rows", runs.it / "rows")
    flipped = runs.it / file.relative_to(path)
    data = bytearray(flipped.read_bytes())
    place, bit = int(at * len(data)), rng.randrange(8)
    data[place] ^= 1 << bit
    flipped.write_bytes(data)
    what = f"{runs.name} load: bit {bit} of byte {place} of {flipped.name}"
    try:
        found = Checkpoint(runs.it).load()
    except InputError as error:
        return what, ("named" if str(flipped) in str(error) else "unnamed", str(error))
    except Exception as error:  # a damaged file may raise anything; each such error is a fault
        return what, ("traceback", repr(error))
    return what, ("healed" if _are_same(found, Checkpoint(path).load()) else "different", "")


def _are_same(found: object, expected: object) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        import torch

        paths = [Path(folder) / f"{number}.pt" for number in range(2)]
        for path, value in zip(paths, (found, expected), strict=True):
            torch.save(value, path)
        return paths[0].read_bytes().replace(b"0/", b"1/") == paths[1].read_bytes() or read_content(
            paths[0]
        ) == read_content(paths[1])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--damages", type=int, default=500)
    parser.add_argument("--first", type=int, default=0, help="number of the first damage, to run them in parts")
    parser.add_argument("--flips", type=int, default=2000)
    parser.add_argument("--of", nargs="+", default=[*RUNS, "cache"], choices=[*RUNS, "cache"])
    parser.add_argument("--log", type=Path, help="JSONL file, a line per damage; those in the file are not tried again")
    given = parser.parse_args(arguments)
    done = [json.loads(line) for line in given.log.read_text().splitlines()] if given.log and given.log.exists() else []
    counts = Counter((line["of"], line["outcome"]) for line in done)
    begun, files._DPI = time.monotonic(), 20  # a low resolution, since pictures dominate the cost of a small run
    with tempfile.TemporaryDirectory(prefix="damage-") as place:
        folder = Path(place)
        subjects: dict[str, Runs | Cache] = {}
        for name in given.of:
            subjects[name] = Cache(folder / name) if name == "cache" else Runs(name, folder / name)
            print(f"{name} made, {time.monotonic() - begun:.0f} s", flush=True)
        few = [name for name in given.of if name == "cache"]  # it gets a tenth of the damages
        many = [name for name in given.of if name in RUNS]

        def drawn() -> Iterator[tuple[str, str, Outcome]]:
            for number in range(given.first + len(done), given.damages):
                rng = random.Random(f"{given.seed} {number}")
                kind = few[number % 10] if number % 10 < len(few) else rng.choice(many or few)
                yield kind, *subjects[kind].trial(rng)
            runs = [subject for subject in subjects.values() if isinstance(subject, Runs)]
            done_flips = max(0, given.first + len(done) - given.damages)
            for number in range(done_flips, given.flips if runs else 0):
                rng = random.Random(f"{given.seed} flip {number}")
                yield "flips of checkpoints", *load_flipped_checkpoint(runs[number % len(runs)], rng)

        for number, (kind, what, (word, said)) in enumerate(drawn(), given.first + len(done) + 1):
            counts[kind, word] += 1
            if word in FAULTS:
                print(f"{word}: {what}: {said}", flush=True)
            if given.log:
                with given.log.open("a") as log:
                    log.write(json.dumps({"of": kind, "what": what, "outcome": word, "said": said}) + "\n")
            if number % 50 == 0:
                print(f"{number} tried, {time.monotonic() - begun:.0f} s", flush=True)
    for kind in sorted({kind for kind, _ in counts}):
        row = {word: counts[kind, word] for word in ("healed", "named", *FAULTS)}
        print(f"{kind}: " + ", ".join(f"{count} {word}" for word, count in row.items()), flush=True)
    return 1 if any(counts[key] for key in counts if key[1] in FAULTS) else 0


if __name__ == "__main__":
    sys.exit(main())
