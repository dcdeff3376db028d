"""Tests that common mistakes of new users give one-line errors that name the option or the file."""

import io
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from lit_cfl.cli.main import main
from lit_cfl.config import catalogue
from lit_cfl.config.files import read_config
from lit_cfl.datamodules import Digits
from lit_cfl.rounds import Cohorts

pytestmark = pytest.mark.nightly  # a table of tests states these facts

QUICK = yaml.safe_load(catalogue.configs()["quickstart"].read_text())
FILES = {
    "wrong_syntax.py": "class Mine(:\n    pass\n",
    "wrong_import.py": "import torch\n\nraise RuntimeError('no licence')\n",
    "wrong_package.py": "import torch\nimport pandoras_box\n",
    "twice_space.yaml": "space: {}\nspace: {}\n",
    "wrong_class.py": "class Mine:\n    pass\n",
    "wrong_net.py": "from torch import nn\n\nclass Net(nn.Module):\n    def __init__(self):\n        self.x = 1 / 0\n",
    "list.yaml": "- rounds\n- 3\n",
    "empty.yaml": "# rounds: 3\n",
    "word.yaml": "rounds\n",
    "visits.csv": "x,y\n1,0\n",
    "open.yaml": "rounds: [1\nname: x\n",
    "tab.yaml": "local:\n\tepochs: 5\n",
    "star.yaml": "rounds: 5\npersonal: [*bn]\n",
    "indent.yaml": "name: x\nrounds: 5\n  cohort_size: 3\n",
    "quote.yaml": 'name: "x\nrounds: 4\n',
    "colon.yaml": "local:\n  epochs:5\n",
    "glued.yaml": "cohort_size:5\nrounds: 3\n",
    "latin.yaml": "name: caf\xe9\n",
    "text.npz": "three clients\n",
    "octal.yaml": "name: x\nseeds: [1, 010]\n",
    "sixty.yaml": "rounds: 1:30\n",
    "comma.yaml": "rounds: 3\ntask: {optimizer: {class_path: SGD, init_args: {lr: 0,05}}}\n",
    "share.yaml": "data:\n  init_args: {validation: 0,2, copies: true}\n",
    "rate.yaml": "task: {optimizer: {lr: 1:30.5}}\n",
}


@pytest.fixture(autouse=True)
def in_a_folder_with_wrong_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # the fixture also forgets the modules that were imported from this folder
    for name, text in FILES.items():
        Path(name).write_text(text, encoding="latin-1")
    Path("twice.yaml").write_text(yaml.safe_dump(QUICK) + "rounds: 4\n")
    Path("group.yaml").write_text("epochs: null\nbatch_size: 5\n")
    Path("within.yaml").write_text("local: {epochs: 1, batch_size: 2, epochs: 3}\n")
    write_huge(Path("huge.npz"))
    for name, changes in {
        "nothing": {"rounds": None},
        "without_epochs": {"local": {"epochs": None}},
        "dotted": {"local.epochs": None},
        "no_class": {"algorithm": {"num_clusters": 4}},
        "beside": {"algorithm": {"class_path": "FedGroup", "num_clusters": 4}},
        "rate_beside": {"task": changed_optimizer({"class_path": "torch.optim.SGD", "lr": 0.1})},
        "empty_arguments": {"algorithm": {"class_path": "FedGroup", "init_args": None}},
        "year": {"name": 2024},
        "empty_group": {"local": None},
        "several": {"algorithm": ["FedAvg", "IFCA"]},
        "both_seeds": {"seed": 1, "seeds": [2, 3]},
    }.items():
        Path(f"{name}.yaml").write_text(yaml.safe_dump(QUICK | changes))


def changed_optimizer(optimizer: dict[str, Any]) -> dict[str, Any]:
    return QUICK["task"] | {"init_args": QUICK["task"]["init_args"] | {"optimizer": optimizer}}


def write_huge(path: Path) -> None:
    """Writes an `.npz` file of a few bytes whose header declares 7 TiB."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f8", "fortran_order": False, "shape": (10**12,)})
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("x", "y"):
            archive.writestr(f"{name}.npy", head.getvalue() + struct.pack("<d", 1.0))


RUN = "run --config quickstart --baseline null --rounds 1 "


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (RUN + "--task.optimizer.lr -1", "task.optimizer cannot be made: Invalid learning rate: -1.0"),
        (RUN + "--task.optimizer torch.optim.SDG", "torch.optim has no class 'SDG' (did you mean SGD?)"),
        (RUN + "--task.net MLP --task.net.hidden -4", "MLP.hidden is -4; it must be 1 or more"),
        (RUN + "--algorithm wrong_syntax.Mine", "wrong_syntax.py, line 1: SyntaxError: invalid syntax"),
        (RUN + "--data wrong_syntax.Mine", "wrong_syntax.py, line 1: SyntaxError: invalid syntax"),
        (RUN + "--task.net wrong_syntax.Mine", "wrong_syntax.py, line 1: SyntaxError: invalid syntax"),
        (RUN + "--algorithm wrong_import.Mine", "wrong_import.py, line 3: RuntimeError: no licence"),
        (RUN + "--task wrong_import.Mine", "wrong_import.py, line 3: RuntimeError: no licence"),
        (RUN + "--task.net wrong_import.Mine", "wrong_import.py, line 3: RuntimeError: no licence"),
        (
            RUN + "--algorithm wrong_class.Mine",
            "algorithm: 'wrong_class.Mine' is not a subclass of lit_cfl.algorithms.Algorithm; derive it",
        ),
        (
            RUN + "--data wrong_class.Mine",
            "data: 'wrong_class.Mine' is not a subclass of lit_cfl.datamodules.FederatedDataModule; derive it",
        ),
        (
            RUN + "--task wrong_class.Mine",
            "task: 'wrong_class.Mine' is not a subclass of lightning.LightningModule; derive it",
        ),
        (
            RUN + "--task.net wrong_class.Mine",
            "task.net: 'wrong_class.Mine' is not a subclass of torch.nn.Module; derive it from that",
        ),
        (RUN + "--algorithm wrong_class.Mien", "wrong_class has no class 'Mien' (did you mean Mine?)"),
        (RUN + "--task.net wrong_net.Net", "Net raised ZeroDivisionError: division by zero (in "),
        (RUN + "--seed 1 --seeds [2,3]", "seed and seeds are both given; leave one of them out"),
        (RUN + "--seed -1", "seeds is [-1]; give different whole numbers of 0 or more"),
        (RUN + "--evaluation.clients 100", "evaluation.clients is 100, but only 40 clients take part"),
        (RUN + "--rounds null", "rounds is null; give a whole number, or leave it out"),
        (RUN + "--algorithm FedAvg --local.epochs abc", "local.epochs is 'abc'; give a whole number"),
        (
            RUN + "--data my/own.csv",
            "'my/own.csv' is a file, not a data module; write --data ArrayData --data.source my/own.csv",
        ),
        (RUN + "--data own.npz", "data: 'own.npz' is a file, not a data module"),
        (
            RUN + "--tracking.loggers my.Logger",
            "tracking.loggers[0]: 'my.Logger': there is no module 'my'; put my.py",
        ),
        (RUN + "--tracking.wandb on", "tracking.wandb is 'on'; give online, offline, disabled or null"),
        (RUN + "--data.num_clients 0", "num_clients is 0; give 1 or more"),
        (
            RUN + "--data.partition_file text.npz",
            "is not a .npz file, or holds objects (not a zip archive)",
        ),
        (
            RUN + "--data ArrayData --data.source text.npz",
            "text.npz is damaged, is not a .npz file, or holds",
        ),
        (RUN + "--data ArrayData --data.source huge.npz", "huge.npz is damaged, or too large for the memory"),
        ("run --config list.yaml", "list.yaml holds a list instead of options; write one per line, such as rounds"),
        ("run --config empty.yaml", "empty.yaml holds nothing instead of options"),
        (
            "run --config visits.csv",
            "visits.csv is a table, not an experiment; name it in an experiment as the source",
        ),
        ("run --config word.yaml", "word.yaml holds only 'rounds' instead of options"),
        ("run --config open.yaml", "open.yaml is not a YAML file: line 2, column 5: "),
        (
            "run --config indent.yaml",
            "line 3, column 14: mapping values are not allowed in this context; indent the",
        ),
        (
            "run --config quote.yaml",
            "found unexpected end of stream while scanning a quoted scalar that begins in line 1",
        ),
        (
            RUN + "--config colon.yaml",
            "local is 'epochs:5'; write a space after the colon: epochs: 5",
        ),
        ("run --config tab.yaml", "line 2 has a tab, which YAML does not allow there; use spaces"),
        ("run --config star.yaml", "line 2: YAML takes *bn for an alias; write it in quotes: '*bn'"),
        ("run --config glued.yaml", "line 1 has no value; write a space after the colon: cohort_size: 5"),
        ("run --config latin.yaml", "latin.yaml is not UTF-8 text: "),
        (
            "run --config octal.yaml",
            "octal.yaml: line 2: 010 is 8 in YAML, which reads it in base 8; write 10 or 8",
        ),
        (
            "run --config sixty.yaml",
            "sixty.yaml: line 1: 1:30 is 90 in YAML, which reads it in base 60; write 90",
        ),
        ("run --config comma.yaml", "comma.yaml: line 2: lr: 0,05 has a decimal comma; write lr: 0.05"),
        ("data --config share.yaml", "line 2: validation: 0,2 has a decimal comma; write validation: 0.2"),
        ("run --config rate.yaml", "rate.yaml: line 1: 1:30.5 is 90.5 in YAML"),
        ("tune --config sixty.yaml", "sixty.yaml: line 1: 1:30 is 90 in YAML"),
        ("run --resume twice.yaml", "twice.yaml holds no run to resume"),
        ("run --config twice.yaml", "twice.yaml: 'rounds' is given twice, in lines "),
        ("run --config within.yaml", "within.yaml: 'epochs' is given twice, in lines 1 and 1"),
        ("data --config twice.yaml", "twice.yaml: 'rounds' is given twice, in lines "),
        ("compare --config twice.yaml --algorithms FedAvg IFCA", "twice.yaml: 'rounds' is given twice, in lines "),
        ("tune --config twice_space.yaml", "twice_space.yaml: 'space' is given twice, in lines 1 and 2"),
        ("launch --config twice_space.yaml --address http://x:8265", "twice_space.yaml: 'space' is given twice"),
        (
            RUN + "--algorithm wrong_package.Mine",
            "wrong_package.py, line 2: No module named 'pandoras_box'; install the package that has it",
        ),
        (RUN + "--task.net wrong_package.Mine", "wrong_package.py, line 2: No module named "),
        (
            RUN + "--task.optimizer torch.optm.SGD",
            "task.optimizer: 'torch.optm.SGD': there is no module 'torch.optm' (did you mean SGD?)",
        ),
        (RUN + "--algorithm no_such_file.Mine", "there is no module 'no_such_file'; put no_such_file.py next to"),
        ("run --config nothing.yaml", "rounds is null; give a whole number, or leave it out"),
        ("run --config without_epochs.yaml", "local.epochs is null; give a whole number, or leave it out"),
        ("run --config dotted.yaml", "local.epochs is null; give a whole number, or leave it out"),
        (RUN + "--local group.yaml", "local.epochs is null; give a whole number, or leave it out"),
        ("run --config no_class.yaml", "algorithm names no class; write algorithm: {class_path: NAME, init_args: "),
        (
            "run --config beside.yaml",
            "algorithm: 'num_clusters' is next to class_path; write options "
            "under init_args: {class_path: FedGroup, init_args: {num_clusters: 4}}",
        ),
        ("run --config rate_beside.yaml", "task.optimizer: 'lr' is next to class_path"),
        ("run --config empty_arguments.yaml", "algorithm: init_args is null; write options below it, one per line"),
        ("run --config empty_group.yaml", "local is null; give its options, such as local.epochs, or leave it out"),
        (
            "compare --config empty_group.yaml --algorithms FedAvg",
            "local is null; give its options, such as local.epochs, or leave it out",
        ),
        ("run --config several.yaml", "algorithm is ['FedAvg', 'IFCA']; give one of AdaCFL, "),
        ("run --config year.yaml", "name is 2024, which is not text; write it in quotes: '2024'"),
        ("run --config both_seeds.yaml", "seed and seeds are both given"),
        ("list foo", "invalid choice: 'foo' (choose from 'algorithms', "),
        ("list confgis", "(did you mean configs?); see lit-cfl list --help"),
        (RUN + "--config=", "--config is empty; give a file"),
        (RUN + "--task.optimizer.lr nan", "task.optimizer.lr is 'nan'; give a number"),
        (RUN + "--dropout 12,5%", "dropout is '12,5%'; write 0.125"),
        (
            RUN + "--data.newcomers Zurich",
            "data.newcomers is 'Zurich'; give a number",
        ),
        (RUN + "--data.newcomers 20%", "data.newcomers is '20%'; write 0.2"),
        (RUN + "--cohort_size 0.1", "cohort_size is '0.1'; give a whole number"),
        (RUN + "--cohort_size 10%", "cohort_size is '10%'; give a whole number"),
        (RUN + "--local.batch_size ful", "local.batch_size is 'ful' (did you mean full?); give full or a whole number"),
        (RUN + "--local.epochs 0", "error: epochs is 0; give 1 or more"),
        (RUN + "--evaluation.fine_tune.length 0", "length is 0; a budget of 0 epochs trains nothing; give 1 or"),
        (RUN + "--task.optimizer.lr 0,05", "task.optimizer.lr is '0,05'; write 0.05"),
        (RUN + "--task.optimizer.lr .nan", "the learning rate is nan; give a number of 0 or more"),
        (RUN + "--task.optimizer.lr .inf", "the learning rate is inf; give a number of 0 or more"),
        (
            RUN + "--stop.target 90 --data.validation 0.2",
            "val/weighted_accuracy is a share; give a number above 0 and at most 1, such as 0.9",
        ),
        ("evaluate", "the following arguments are required: run_dir; see lit-cfl evaluate --help"),
        ("--foo", "unrecognized arguments: --foo; its options: --version, --help; see lit-cfl --help"),
        ("report runs/x --fig figures", "unrecognized arguments: --fig figures (did you mean --figures?)"),
    ],
)
def test_the_mistake_is_named_in_one_line(words: str, expected: str, capsys: pytest.CaptureFixture[str]):
    assert main(words.split()) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert expected in last
    assert last.startswith("lit-cfl: error: ")
    assert not list(Path().rglob("metrics.csv"))


@pytest.mark.parametrize("word", ["10", "0", "0x1F", "1_000", "0.5", "1e-3", "'010'", "2024-01-01", "12:30 h", "-0.07"])
def test_numbers_that_mean_what_they_say_are_read(word: str):
    Path("plain.yaml").write_text(f"name: {word}\n")
    assert list(read_config("plain.yaml")) == ["name"]


def test_a_file_of_a_run_is_not_taken_for_its_directory(capsys: pytest.CaptureFixture[str]):
    Path("mine").mkdir()
    Path("mine/config.yaml").write_text("rounds: 1\n")
    Path("mine/checkpoint.pt").write_text("")
    assert main(["run", "--resume", "mine/checkpoint.pt"]) == 2
    assert "mine/checkpoint.pt is a file of a run; give its directory: --resume mine" in capsys.readouterr().err


def test_seed_on_the_command_line_takes_the_place_of_a_files_seeds(capsys: pytest.CaptureFixture[str]):
    assert main((RUN + "--tiny --seed 5 --run_dir run").split()) == 0
    assert yaml.safe_load(Path("run/config.yaml").read_text())["seeds"] == [5]


def test_a_users_folder_named_datamodules_is_not_taken_for_ours(tmp_path: Path):
    Path("datamodules").mkdir()
    Path("datamodules/__init__.py").write_text(
        "from lit_cfl.datamodules import Digits\n\nclass Mine(Digits):\n    pass\n"
    )
    assert main((RUN + "--data datamodules.Mine --tiny --run_dir run").split()) == 0


@pytest.mark.parametrize("engine", ["trainer", "loop"])
def test_error_of_a_users_module_names_the_client_and_the_round(engine: str):
    data, cohorts = Digits(validation=0.1).federated(0), Cohorts(10, "round_robin_first")
    first, second = (set(cohorts.at(round, data.population, 0).tolist()) for round in (0, 1))
    client = min(second - first)
    images, _ = data.examples.batch(data.train[client])
    Path(f"own_{engine}.py").write_text(
        "from lit_cfl.tasks import Classification\n\n\nclass Picky(Classification):\n"
        "    def losses(self, batch):\n"
        f"        if self.training and abs(float(batch[0].sum()) - {float(images.sum())}) < 1e-2:\n"
        "            raise LookupError('no such thing')\n"
        "        return super().losses(batch)\n"
    )
    options = f"--task own_{engine}.Picky --task.net MCLR --engine {engine} --local.batch_size full --plan.lanes 1"
    words = f"{RUN} {options} --algorithm FedAvg --cohort_size 10 --rounds 2 --seed 0"
    with pytest.raises(LookupError, match="no such thing") as raised:
        main(words.split())
    assert raised.value.__notes__ == [f"It was raised in round 2, while client {client} was trained."]


SCORED = """
from lit_cfl.tasks import Classification

class Scored(Classification):
    def outcomes(self, batch):
        if len(batch[1]) > 10:  # the check before the rounds has one example of each label
            raise LookupError("no such thing")
        return super().outcomes(batch)
"""
FEW = "--data.num_clients 4 --cohort_size 4 --local.epochs 1 --rounds 1 --task.net MCLR"


@pytest.mark.parametrize(
    ("module", "algorithm", "notes"),
    [
        (
            "own_scored",
            "FedAvg",
            ["while model 0 of the clients 0, 1, 2, 3 on test data was scored", "in the evaluation of round 1"],
        ),
        ("own_losses", "IFCA", ["in round 1, in losses on the clients 0, 1, 2, 3"]),
    ],
)
def test_error_in_scoring_names_the_round_the_split_and_whose_model_it_was(
    module: str, algorithm: str, notes: list[str]
):
    Path(f"{module}.py").write_text(SCORED)
    words = f"{RUN} {FEW} --task {module}.Scored --algorithm {algorithm} --data.validation 0"
    with pytest.raises(LookupError, match="no such thing") as raised:
        main(words.split())
    assert raised.value.__notes__ == [f"It was raised {note}." for note in notes]
