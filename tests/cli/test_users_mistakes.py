"""Tests a user's mistakes: each ends with exit code 2 and one line that names the option, the value and the remedy.

One row per rule. A row is a command, and after `=>` the words that its error must contain: the option's whole path, the
value and the remedy, as whole words and in any order, but no prose.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from filelock import FileLock

import lit_cfl
from lit_cfl.algorithms import FedAvg, FedGroup
from lit_cfl.cli.main import main
from lit_cfl.datamodules import Digits
from lit_cfl.errors import InputError
from lit_cfl.nets import MCLR
from lit_cfl.tasks import Classification

FILES = Path(__file__).with_name("mistakes")
ROOT = Path(__file__).parents[2]
SHORT = {
    "RUN": "run --config quickstart --baseline null --rounds 1",
    "COMPARE": "compare --config quickstart --algorithms",
    "TUNE": "tune --config study.yaml",
    "SPACE": "tune --config study.yaml --space",
    "TABLE": "data --data ArrayData --data.source",
    "LAUNCH": "launch --address http://127.0.0.1:1 --config",
}  # beginnings of commands

# refused before PyTorch is loaded
EARLY = r"""
# commands and their words
runn --config quickstart => runn | run
help run => help | run
list confgis => confgis | configs
--foo => --foo | --help
# files
run --config quickstrat => quickstrat | quickstart
run --config patient.yaml => patient.yaml | patients.yaml
run --config= => --config | empty | quickstart
run --config . => '.' | folder | base.yaml
run --config good.csv => good.csv | table | --data.source good.csv
run --config list.yaml => list.yaml | list | rounds
run --config empty.yaml => empty.yaml | nothing | rounds
run --config word.yaml => word.yaml | 'rounds' | options
run --config open.yaml => open.yaml | line 2, column 5 | begins in line 1
run --config tab.yaml => tab.yaml | line 2 | tab | spaces
run --config star.yaml => star.yaml | line 2 | *bn | '*bn'
run --config glued.yaml => glued.yaml | line 1 | cohort_size: 5
run --config latin.yaml => latin.yaml | UTF-8
run --config octal.yaml => octal.yaml | line 2 | 010 | 10
run --config sixty.yaml => sixty.yaml | line 1 | 1:30 | 90
run --config comma.yaml => comma.yaml | line 2 | 0,05 | lr: 0.05
tune --config two_numbers.yaml => two_numbers.yaml | line 3 | randint: 2, 6 | [2, 6]
run --config cycle.yaml => cycle.yaml | line 1 | alias
run --config twice.yaml => twice.yaml | rounds | twice | 1 | 3
"""

# refused with PyTorch, by classes and values
LATE = r"""
# words
report a_run --fig figures => --fig | --figures
run quickstart => quickstart | --config quickstart
run own/new.csv => own/new.csv | --data.source own/new.csv
data MNIST => MNIST | --data MNIST
run --config quickstart --rounds 3 4 => rounds | '3 4' | whole number
# names of options
run --config quickstart --cohort_siz 3 => cohort_siz | --cohort_size
run --config quickstart --cohort 8 => cohort | --cohort_size
run --config quickstart --algorithm.num_cluster 3 => num_cluster | num_clusters | FedGroup
run --config quickstart --task.optimizer.lrr 1 => lrr | lr | SGD
run --config quickstart --zzz 3 => zzz | --help
run --config quickstart --algorithm.tau 0.5 => tau | FedGroup | StoCFL
run --config quickstart --num_clusters 4 => num_clusters | --algorithm.num_clusters
run --config quickstart --task.net mine_net.Wide --net.width 3 => net.width | --task.net.width
# names of options in other programs
run --config quickstart --lr 0.1 => lr | --task.optimizer.lr
run --config quickstart --local.lr 0.1 => local | lr | --task.optimizer.lr
run --config quickstart --batch_size 5 => batch_size | --local.batch_size
run --config clients_per_round.yaml => clients_per_round | --cohort_size
tune --config study.yaml --num_samples 4 => num_samples | --limits.trials
# names of classes
run --config quickstart --algorithm FedGruop => algorithm | FedGruop | FedGroup
run --config quickstart --data CSVData => data | CSVData | ArrayData
run --config quickstart --task.net MyNet => task.net | MyNet | my_file.MyClass
run --data.partition.help IID => data | class_path
# more files
run --config braces.yaml => local | epochs:5 | epochs: 5
tune --config base.yaml => base | lr | --task.optimizer.lr
# directories
run --resume nothere => nothere | --config
run --resume a_rum => a_rum | a_run
run --resume a_run/seed-0/config.yaml => a_run/seed-0/config.yaml | file | --resume a_run/seed-0
run --resume a_comparison => a_comparison | lit-cfl compare --resume a_comparison
run --resume a_run --run_dir b => a_run | --run_dir b
run --config quickstart --new_plan => --new_plan | --resume
compare --resume a_run => a_run | lit-cfl run --resume a_run
compare --resume nothere => nothere | compare.yaml
tune --resume a_comparison => a_comparison | lit-cfl compare --resume a_comparison
evaluate nothere => nothere | config.yaml
evaluate a_comparison => a_comparison | a_comparison/FedAvg/seed-0
report nothere => nothere | lit-cfl run
report good.csv => good.csv | file | directory
report a_run --out . => --out | . | report.html
report a_run --figures all.png => --figures | all.png | folder
# comparisons
compare --algorithms FedAvg => --config quickstart
compare patients.yaml --algorithms FedAvg => --config patients.yaml
compare --config quickstart => --algorithms | FedAvg
COMPARE FedAvg,IFCA => FedAvg,IFCA | --algorithms FedAvg IFCA
COMPARE [FedAvg,IFCA] => [FedAvg,IFCA] | --algorithms FedAvg IFCA
COMPARE FedAvg FedAvgg => FedAvgg | FedAvg
COMPARE FedAvg ifca/digitz => ifca/digitz | ifca/digits
COMPARE FedAvg half.yaml => half.yaml | algorithm | class_path
COMPARE IFCA IFCA => IFCA | twice | A=IFCA B=IFCA
COMPARE a/b=IFCA => a/b | NAME
COMPARE pictures=IFCA => pictures | NAME
COMPARE data=IFCA => data | NAME
COMPARE a=fedavgm => a | fedavgm | FedAvg
COMPARE FedAvg IFCA --IFCA.rounds 3 => --IFCA.rounds | --rounds
COMPARE FedAvg IFCA --num_clusters 3 => num_clusters | --IFCA.num_clusters
COMPARE FedAvg IFCA --zzz 3 => zzz | --IFCA.OPTION
COMPARE IFCA --IFAC.num_clusters 4 => IFAC | IFCA
COMPARE IFCA --IFCA.lr 1 => IFCA | lr | --IFCA.task.optimizer.lr
COMPARE Ditto --Ditto.personal.lenght 2 => Ditto.personal | lenght | length
COMPARE IFCA --seeds 0 x => --seeds | x | 0 1 2
COMPARE IFCA --seeds 0-2 => --seeds | 0-2 | 0 1 2
COMPARE IFCA --seeds 1-30 => --seeds | 1-30 | 1 2 ... 30
COMPARE IFCA --seed 3 => --seed | --seeds
COMPARE IFCA --algorithm.num_clusters 3 => --algorithm.num_clusters | --FedGroup.num_clusters
COMPARE IFCA --baseline FedAvg => --baseline | --algorithms
COMPARE IFCA --json => --json | runs.csv
COMPARE IFCA --target nan => --target | nan | 0.8
COMPARE IFCA --target 0,5 => --target | 0,5 | 0.5
COMPARE IFCA --num_cpus 0 => --num_cpus | 0 | 1
compare --resume a_comparison --rounds 3 => --rounds | --compare_dir
# studies
TUNE --rounds 12 => rounds | base
TUNE --local.epochs 2 => local.epochs | base | space
TUNE --quiet => --quiet | lit-cfl run
TUNE --limits.trial 3 => limits | trial | trials
# values
RUN --rounds many => rounds | many | whole number
RUN --task.optimizer.lr abc => task.optimizer.lr | abc | number
RUN --task.optimizer.lr 0,05 => task.optimizer.lr | 0,05 | 0.05
RUN --engine fast => engine | fast | loop
RUN --local.batch_size ful => local.batch_size | ful | full
RUN --evaluation.per_client maybe => evaluation.per_client | maybe | true
RUN --seeds 0-2 => seeds | 0-2 | 0, 1, 2
RUN --baseline [FedAvg,IFCA] => baseline | [FedAvg,IFCA] | FedProx
RUN --tracking.loggers my.Logger => tracking.loggers | my.Logger | my.py
RUN --tracking.loggers TensorBord => tracking.loggers | TensorBord | TensorBoardLogger
RUN --local 5 => local | 5 | local.epochs
RUN --seeds '{a: 1}' => seeds | {a: 1} | list
RUN --personal '[a, null]' => personal[1] | null
RUN --config rotations.yaml => data.rotations | 90 | [90]
RUN --evaluation.fine_tune 3 => evaluation.fine_tune | 3 | null
RUN --config colon.yaml => local | epochs:5 | epochs: 5
RUN --config number.yaml => name | 2024 | '2024'
TABLE good.csv --data.columns state => data.columns | state | {name: value}
RUN --config inputs.yaml => data.columns.y | ['a', 'b'] | text
RUN --task.optimizer.betas 0.9 0.99 => betas | SGD | momentum
# null
RUN --rounds null => rounds | null | whole number
run --config quickstart --config no_group.yaml => local | null | options
RUN --algorithm null => algorithm | null | FedAvg
# classes by their path, and their options
run --config quickstart --data.skew Rotations() => data.skew | Rotations() | Rotations
RUN --algorithm mine_wrong.Mine => algorithm | mine_wrong.Mine | lit_cfl.algorithms.Algorithm
RUN --algorithm mine_wrong.Mien => algorithm | mine_wrong.Mien | Mine
RUN --algorithm mine_algoritm.Needs => mine_algoritm | mine_algorithm | mine_algoritm.py
RUN --task.optimizer 3 => task.optimizer | 3 | SGD
RUN --local.lr_schedule CosineAnnealingLR => local.lr_schedule | CosineAnnealingLR | T_max
RUN --algorithm mine_syntax.Mine => mine_syntax.py | line 1 | SyntaxError
RUN --algorithm mine_import.Mine => mine_import.py | line 3 | no licence
RUN --algorithm mine_package.Mine => mine_package.py | line 3 | pandoras_box | install
RUN --task.net mine_net.Broken => Broken | ZeroDivisionError | mine_net.py, line 8
RUN --task.net mine_net.Untyped => mine_net.Untyped | width | width: float
RUN --task.net mine_net.Sized => mine_net.Sized | input_shape | input_shape: list[int] | None = None
RUN --task.net mine_net.Whole --task.net.layer Flaten => task.net.layer | Flaten | path
RUN --task.net VGG16 => [1, 8, 8] | 32 x 32 | MLP
RUN --task.net torch.nn.Sequential --task.net.args [] => Sequential | args | class
RUN --task.net mine_net.py => task.net | mine_net.py | mine_net.CLASS
RUN --algorithm mine_algorithm.Needs => mine_algorithm.Needs | strength | init_args
RUN --algorithm datasets.Mine => datasets.Mine | datasets.py | rename
RUN --data my/own.csv => data | my/own.csv | --data.source
run --data Digits --task Classification --config no_class.yaml => algorithm | class_path
run --config quickstart --config beside.yaml => algorithm | num_clusters | init_args
run --config quickstart --config no_arguments.yaml => algorithm | init_args | null
run --config quickstart --config folders.yaml => folders.yaml | code | mine | full path
run --config patients.yaml => data, task, algorithm | --config quickstart
# numbers of one option
RUN --rounds 0 => rounds | 0 | 1
RUN --dropout 1 => dropout | 1.0 | below 1
RUN --seeds [1,1] => seeds | [1, 1] | different
RUN --seed -1 => seeds | [-1] | 0
RUN --name a/b => name | a/b | slashes
RUN --local.epochs 0 => epochs | 0 | 1
RUN --local.batch_size 0 => batch_size | 0 | 1
RUN --algorithm.num_clusters 0 => num_clusters | 0 | 1
RUN --algorithm.eta_g -1e-3 => eta_g | -0.001 | 0
RUN --task.optimizer.lr -1 => task.optimizer | -1.0
RUN --task.optimizer.lr .inf => learning rate | inf | 0
RUN --task.net MLP --task.net.hidden -4 => MLP.hidden | -4 | 1
RUN --evaluation.every 0 => evaluation.every | 0 | 1
RUN --evaluation.clients 0 => evaluation.clients | 0 | assigned
RUN --evaluation.fine_tune.length 0 => length | 0 | 1
RUN --checkpoint.every_seconds -1 => checkpoint.every_seconds | -1.0 | 0
RUN --stop.max_minutes 0 => stop.max_minutes | 0.0 | null
RUN --data.validation 1 => validation | 1 | below 1
RUN --data.num_clients 0 => num_clients | 0 | 1
RUN --data.rotations [30] => rotations | 30 | 90 | FreeRotations
RUN --device cuda:64 => device | cuda:64 | this machine
RUN --device gpu => device | gpu | cuda
# options in relation to each other, and to the data
RUN --seed 1 --seeds [2,3] => seed | seeds
RUN --cohort_size 41 => cohort_size | 41 | 40
RUN --algorithm.num_clusters 41 => num_clusters | 41 | 40
RUN --evaluation.clients 100 => evaluation.clients | 100 | 40
RUN --evaluation.class_counts true => evaluation.class_counts | evaluation.per_client
RUN --engine stack --plan.engine loop => engine | stack | plan.engine | loop
RUN --personal [nothere] => nothere | net.fc1
RUN --task Regression => task | Regression | classes | Classification
RUN --stop.metric test/accuracy => test/accuracy | val/accuracy
RUN --stop.metric val/weighted_acuracy => val/weighted_acuracy | val/weighted_accuracy
RUN --data.validation 0 --stop.target 0.9 => stop.metric | val/weighted_accuracy | validation
RUN --stop.target 90 --data.validation 0.2 => stop.target | 90 | 0.9
RUN --stop.metric val/tuned_accuracy => stop.metric | val/tuned_accuracy | evaluation.fine_tune
RUN --server SGD --server.lr 1 --shared '["linear[0]"]' => server | shared | one
RUN --algorithm FedEM --evaluation.fine_tune.length 1 => evaluation.fine_tune | FedEM | fine_tune
RUN --task.optimizer.lr 1e38 => round 1 | diverged
RUN --data.partition Dirichlet => num_clients | 40 | partition
# directories
RUN --run_dir taken => taken | --run_dir | --resume taken
RUN --run_dir good.csv/run => good.csv/run | --run_dir
RUN --run_dir locked => locked | --run_dir
RUN --run_dir own_files => own_files | metrics.csv | --run_dir
RUN --run_dir= => --run_dir | '' | folder
RUN --run_dir NAME_OF_300_BYTES => --run_dir | 300 | 255
run --resume a_run => a_run/config.yaml | original
run --resume later_run --new_plan => later_run/config.yaml | format 99
report later_run => later_run/config.yaml | format 99
evaluate unnumbered_run => unnumbered_run/config.yaml | format number
run --resume own_run => mine_inside.Net | own_run | folder
run --resume changed_run => changed_run/config.yaml | rounds | 8 | 9 | original
run --resume ran --rounds 2 => ran | rounds | 2 | 8
run --resume ran --cohort_size 4 => ran | cohort_size | 4 | --run_dir
run --resume ran --plan.rows_mib 7 => plan.rows_mib | 7 | --new_plan
run --resume ran --plan null => --plan | null | --new_plan
evaluate ran a_run => ran | a_run
evaluate --data Digits => --data | lit-cfl evaluate RUN_DIR
evaluate ran --rounds 3 => --rounds | --data
evaluate ran --data.test 0 => test data
assign ran --unlabeled => --unlabeled | --unlabelled
assign ran => --data
evaluate => run_dir | --help
evaluate a_comparison/FedAvg/seed-0 => a_comparison/FedAvg/seed-0 | config.yaml
report notes => notes | run
report several => several | several/a_run
report ran other_run => ran | other_run | data
data --data Digits --tiny => --tiny | lit-cfl run
data --data Digits --out good.csv/data => good.csv/data | --out
COMPARE IFCA --compare_dir taken => taken | --compare_dir
COMPARE IFCA --compare_dir a_comparison => a_comparison | --resume
compare --resume a_comparison => a_comparison/compare.yaml | original
TUNE --study_dir a_study => a_study | --study_dir | --resume
TUNE --study_dir taken => taken | --study_dir
TUNE --study_dir own_files => own_files | trials | --study_dir
tune --resume a_study => a_study/study.yaml | original
tune --resume a_study --num_repeats 3 => --num_repeats | --limits
# tables, arrays and partition files
TABLE good.csv --data.columns.y state => good.csv | state | columns
TABLE good.csv --data.columns '{y: y, clients: client}' => columns | clients | client
TABLE good.csv --data.columns '{y: y, client: y}' => columns | y | client
TABLE column_twice.csv => column_twice.csv | two columns
TABLE empty_cell.csv => empty_cell.csv | b | row 3
TABLE words.csv => words.csv | b | row 3 | many
TABLE more_cells.csv => more_cells.csv | row 3 | 5 | 4
TABLE commas.csv => commas.csv | b | 1,5 | row 3 | 1.5
TABLE blank.csv => blank.csv | No columns
TABLE no_inputs.csv => no_inputs.csv | column | inputs
TABLE moved.csv => cluster | client p
TABLE nothere.csv => nothere.csv | current folder
TABLE text.npz => text.npz | np.savez
TABLE huge.npz => huge.npz | memory
TABLE wrong_names.npz => wrong_names.npz | z | x
TABLE no_classes.npz => y | -1 | 0
TABLE infinite.npz => x | row 1
TABLE lengths.npz => y | 2 | 3
TABLE ids.npz => y | 50 | num_labels
TABLE float_ids.npz => client | 1e+17 | integers
TABLE good.csv --data.test 1.5 => test | 1.5 | below 1
data --data ArrayData => x | source
data --data mine_data.Negative => Negative | client 1 | -3 | 5
TABLE notes => notes | .npz | x
TABLE good.csv --data.partition IID --data.partition.num_clients 100 => 100 | 24
data --data Digits --data.partition_file text.npz => text.npz | damaged
data --data Digits --data.partition_file nothere.npz => nothere.npz | RUN_DIR/partition.npz
data --data Digits --data.rotations [0,180] --data.partition_file ran/partition.npz \
    => ran/partition.npz | skew | options
data --data Digits --data.skew LabelShifts --data.skew.shifts [0,x] => data.skew.shifts | x | whole number
data --data Digits --data.partition LabelGroups --data.partition.groups '[[0, 1], [x]]' \
    => data.partition.groups | x | whole number
data --data Digits --data.rotations [] => rotations | list | cluster
# comparisons
COMPARE FedAvg IFCA --IFCA.num_clusters 41 => IFCA | num_clusters | 41 | 40
COMPARE IFCA --seeds 0 0 => seeds | [0, 0] | different
COMPARE IFCA --target 80 => --target | 80 | 0.8
COMPARE IFCA --target 0 => --target | 0 | above 0
COMPARE IFCA --plan.device cuda:1 => cuda:1 | CUDA_VISIBLE_DEVICES
COMPARE IFCA --num_cpus 4096 => --num_cpus | 4096 | less
COMPARE IFCA --config no_group.yaml => local | null | options
COMPARE mine_algorithm.Needs => strength | --Needs.strength
compare --config fedavg/digits --algorithms FedAvg IFCA => --IFCA.num_clusters
COMPARE IFCA --device cuda:1 => device | cuda:1 | cuda
# spaces of studies
run --config study.yaml => base | lit-cfl tune
tune --config no_space.yaml => space | --config
tune --config quickstart => quickstart | base | space
TUNE --base.rounds 8 => --base.rounds | base
TUNE --base no/such => base | no/such
TUNE --metric test/accuracy => metric | test/accuracy | val/accuracy
TUNE --metric val/tuned_accuracy => metric | val/tuned_accuracy | evaluation.fine_tune
TUNE --metric val/weighted_acuracy => metric | val/weighted_acuracy | val/weighted_accuracy
TUNE --second_metric val/loss => second_metric | val/loss | traffic/mib
TUNE --num_repeats -1 => num_repeats | -1 | 0
TUNE --seeds [1,1] => seeds | [1, 1] | different
TUNE --limits.trials 0 => limits.trials | 0 | 1
TUNE --limits.minutes 0 => limits.minutes | 0.0 | above 0
TUNE --limits.target .nan => limits.target | nan | 0.95
TUNE --limits.trials 2 --points '[{algorithm.eta_g: 0.1, algorithm.num_clusters: 3}, \
    {algorithm.eta_g: 0.2, algorithm.num_clusters: 3}]' => limits.trials | 2 | 3
TUNE --resources.cpus 0 => resources.cpus | 0.0 | above 0
TUNE --resources.gpus -1 => resources.gpus | -1.0 | 0
TUNE --searcher TPESampeler => searcher | TPESampeler | TPESampler
TUNE --searcher '{class_path: TPESampler, init_args: {sed: 1}}' => searcher | TPESampler | sed | seed
TUNE --searcher '{class_path: RandomSampler, init_args: {seed: x}}' => searcher | seed | x | whole number
TUNE --scheduler ASHASchedulr => scheduler | ASHASchedulr | ASHAScheduler
TUNE --stopping.eta 0.5 => stopping.eta | 0.5 | 1
TUNE --stopping.first 1 \
    --space '{algorithm: {choice: [FedAvg, {class_path: FLHC, init_args: {warmup_rounds: 2, num_clusters: 2}}]}}' \
    => stopping.first | 1 | 4
TUNE --ray.address ray://127.0.0.1:1 => ray://127.0.0.1:1 | lit-cfl launch
TUNE --points 3 => points | 3 | algorithm.eta_g
TUNE --points '{a: 1}' => points | {'a': 1} | list
TUNE --points '[{algorithm.eta_g: 0.1}]' => points | 1 | algorithm.num_clusters
TUNE --points '[{algorithm.eta_g: 0.4, algorithm.num_clusters: 2}]' => points | algorithm.eta_g | 0.4 | 0.3
TUNE --points '[{algorithm.eta_g: 0.1, algorithm.num_cluster: 2}]' \
    => points | algorithm.num_cluster | algorithm.num_clusters
SPACE {} => space | empty | option
SPACE '[1' => space | '[1'
SPACE '{rounds: {choice: [5, 10]}}' => space | rounds | base
SPACE '{seeds: {choice: [[0], [1]]}}' => seeds
SPACE '{algorithm.eta_g: {uniform: [0, 1], choice: [1]}}' => algorithm.eta_g | uniform
SPACE '{algorithm.eta_g: {uniform: [0, .inf]}}' => algorithm.eta_g | [0, inf]
SPACE '{algorithm.eta_g: {randint: [0.5, 2]}}' => algorithm.eta_g | [0.5, 2]
SPACE '{algorithm.eta_g: {uniform: [-1, 1]}}' => algorithm.eta_g | -1.0
SPACE '{algorithm.measure: {choice: [edc, cosine]}}' => algorithm.measure | cosine
SPACE '{algorithm.eta_gg: {uniform: [0, 1]}}' => eta_gg | eta_g | FedGroup
SPACE '{algorithm.eta_g: [0, 1]}' => space | algorithm.eta_g | [0, 1] | uniform
SPACE '{algorithm.eta_g: {unifrom: [0, 1]}}' => space | algorithm.eta_g | unifrom | uniform
SPACE '{algorithm.eta_g: {uniform: [1, 0]}}' => space | algorithm.eta_g | [1, 0] | lower
SPACE '{algorithm.eta_g: {loguniform: [0, 1]}}' => space | algorithm.eta_g | 0 | above 0
SPACE '{algorithm.eta_g: {uniform: [0, 1], step: 2}}' => space | algorithm.eta_g | step | 2 | 1
SPACE '{algorithm.eta_g: {uniform: [0, 1], step: 0.3}}' => space | algorithm.eta_g | step | 0.3 | multiple
SPACE '{algorithm.num_clusters: {randint: [3, 3]}}' => space | algorithm.num_clusters | [3, 3] | lower
SPACE '{algorithm.num_clusters: {lograndint: [0, 8]}}' => space | algorithm.num_clusters | 0 | 1
SPACE '{algorithm.num_clusters: {randint: [2, 8], step: 2}}' => space | algorithm.num_clusters | step | 2 | uniform
SPACE '{algorithm.num_clusters: {choice: [2, 2]}}' => space | algorithm.num_clusters | [2, 2] | different
SPACE '{algorithm.num_clusters: {uniform: [2, 4]}}' => algorithm.num_clusters | 2.0 | randint
SPACE '{algorithm.num_clusters: {choice: [2, 40]}}' --dry-run => space | algorithm.num_clusters | 40 | 12
SPACE '{algorithm: IFCA}' => space | algorithm | IFCA | choice
SPACE '{algorithm: {choice: [IFCA, IFCA]}}' => space | IFCA | twice | once
SPACE '{algorithm: {choice: [FedAvg, IFCAA]}}' => algorithm | IFCAA | IFCA
SPACE '{algorithm: {choice: [{class_path: IFCA, spaces: {}}]}}' => space | spaces | class_path
SPACE '{algorithm: {choice: [{class_path: IFCA, space: [k]}]}}' => space | IFCA | ['k'] | options
SPACE '{algorithm: {choice: [{class_path: IFCA, init_args: {k: 3}, space: {k: {randint: [2, 5]}}}]}}' \
    => space | IFCA.k | init_args
SPACE '{algorithm: {choice: [IFCA]}, algorithm.num_clusters: {randint: [2, 4]}}' => space | algorithm.num_clusters
SPACE '{algorithm.num_clusters: {grid: [2, 3]}, algorithm.eta_g: {uniform: [0, 1]}}' \
    => space | algorithm.eta_g | grid
SPACE '{algorithm.num_clusters: {grid: [2, 3]}, algorithm.eta_g: {choice: [0, 1]}}' \
    => space | algorithm.eta_g | choice | grid
SPACE '{algorithm.num_clusters: {grid: [2, 3, 4, 5]}}' => limits.trials | 3 | 5
SPACE '{algorithm.num_clusters: {grid: [2, 3, 4]}}' --searcher TPESampler => searcher | TPESampler | grid
SPACE '{algorithm: {choice: [FedAvg, {class_path: IFCA, space: {num_clusters: {grid: [2]}}}]}}' => grid | choice
SPACE '{algorithm: {choice: [FedAvg, IFCA]}}' --points '[{algorithm: FedAvgg}]' => points | algorithm | FedAvgg | FedAvg
SPACE '{algorithm.num_clusters: {choice: [2, 3]}}' --points '[{algorithm.num_clusters: 4}]' \
    => points | algorithm.num_clusters | 4 | 2, 3
# clusters
launch --config quickstart => --address
LAUNCH nothere.yaml => nothere.yaml
LAUNCH quickstart --dry-run => --dry-run | --address
LAUNCH quickstart --round 3 => round | --rounds
LAUNCH quickstart --env NOT_SET_HERE => --env | NOT_SET_HERE=VALUE
LAUNCH study.yaml --resume a_study => --resume | --config
LAUNCH quickstart --run_dir taken => taken | --run_dir
LAUNCH quickstart --follow job => --follow | --config
launch --address http://127.0.0.1:1 => --config
launch --address ftp://host --config quickstart => --address | ftp://host | http://HOST:8265
LAUNCH quickstart --run_dir new => http://127.0.0.1:1 | 8265
"""


def cases(table: str) -> list[tuple[str, list[str]]]:
    """Reads the rows of a table: each command, with the words of its error."""
    rows = []
    for line in re.findall("^[^#\n].*", re.sub(r"\\\n\s*", "", table), re.MULTILINE):
        command, words = line.split(" => ")
        start, _, rest = command.partition(" ")
        rows.append((f"{SHORT.get(start, start)} {rest}".strip(), words.split(" | ")))
    return rows


def missing_words(error: str, words: list[str]) -> list[str]:
    """Returns the words that an error lacks; a part of a longer name, path of options or number does not count."""
    return [word for word in words if not re.search(rf"(?<![\w.]){re.escape(word)}(?!\.?\w)", error)]


def write_odd_files(folder: Path) -> None:
    """Writes files that the tools for this project's own files would refuse, and arrays."""
    (folder / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    (folder / "mine_syntax.py").write_text("class Mine(:\n    pass\n")
    (folder / "text.npz").write_text("three clients\n")
    x, y = np.ones((4, 2), np.float32), np.arange(4)
    np.savez(folder / "wrong_names.npz", x=x, z=y)
    np.savez(folder / "no_classes.npz", x=x, y=y - 1)
    np.savez(folder / "infinite.npz", x=np.where(np.arange(4)[:, None] == 1, np.inf, x), y=y)
    np.savez(folder / "lengths.npz", x=x[:3], y=y[:2])
    np.savez(folder / "ids.npz", x=np.ones((60, 2), np.float32), y=np.array(20 * [0, 1, 50]))
    np.savez(folder / "float_ids.npz", x=x, y=y, client=y + 1e17)
    with zipfile.ZipFile(folder / "huge.npz", "w") as archive, archive.open("x.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (10**12, 1)})
        file.write(bytes(8))


def write_run(run: Path, folder: Path, old: str, new: str) -> None:
    changed, number = re.subn(old, new, (run / "config.yaml").read_text(), flags=re.MULTILINE)
    assert number
    (folder / "config.yaml").write_text(changed)


@pytest.fixture(scope="module")
def files(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Makes a folder with users' files and directories, in which no command may write anything."""
    folder = tmp_path_factory.mktemp("mistakes") / "here"
    shutil.copytree(FILES, folder)
    write_odd_files(folder)
    shutil.copytree(whole, folder / "ran")
    shutil.copytree(FILES / "a_run", folder / "taken")
    shutil.copytree(FILES / "a_run", folder / "several" / "a_run")
    for name in ("locked", "changed_run", "later_run", "unnumbered_run", "own_run", "other_run"):
        (folder / name).mkdir()
    shutil.copy(whole / "checkpoint.pt", folder / "changed_run")
    write_run(whole, folder / "changed_run", r"^rounds: 8", "rounds: 9")
    write_run(whole, folder / "later_run", r"^format: \d+", "format: 99")
    write_run(whole, folder / "unnumbered_run", r"^format: \d+\n", "")
    write_run(whole, folder / "own_run", r"lit_cfl\.nets\.MCLR", "mine_inside.Net")
    write_run(whole, folder / "other_run", "num_clients: 12", "num_clients: 13")
    (folder / "own_run" / "mine_inside.py").write_text("class Net: ...\n")
    with pytest.MonkeyPatch.context() as patch, FileLock(folder / "locked" / ".lock"):
        patch.setattr(sys, "dont_write_bytecode", True)
        patch.setattr(sys, "path", list(sys.path))  # commands append the current folder
        for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
            patch.delenv(name, raising=False)
        patch.chdir(folder)
        (folder / "runs").mkdir()  # a refused command may leave this folder
        yield folder
    for name in [name for name, module in sys.modules.items() if str(folder) in str(getattr(module, "__file__", ""))]:
        del sys.modules[name]


def written(folder: Path) -> dict[Path, tuple[int, int]]:
    """Lists the files and folders in a folder; of files, also the size and the time of the last change."""
    found = {path: path.stat() for path in folder.rglob("*") if path.name != ".lock"}
    return {path: (stat.st_size, stat.st_mtime_ns) if path.is_file() else (0, 0) for path, stat in found.items()}


def words_of(command: str) -> list[str]:
    return shlex.split(command.replace("NAME_OF_300_BYTES", 300 * "x"))


@pytest.mark.parametrize(("command", "words"), [pytest.param(*row, id=row[0]) for row in cases(EARLY) + cases(LATE)])
def test_a_mistake_is_named_in_one_line(command: str, words: list[str], files: Path, capsys):
    before = written(files)
    code = main(words_of(command))
    said = capsys.readouterr().err.splitlines()
    assert [line.startswith("lit-cfl: error: ") for line in said].count(True) == 1, said
    assert missing_words(said[-1], words) == [], said[-1]
    assert code == 2
    assert written(files) == before


IN_A_PROCESS = """
import contextlib, io, sys
from lit_cfl.cli.main import main
for line in sys.stdin.read().splitlines():
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main(line.split("\\0"))
    print({"torch", "lightning", "numpy", "sklearn", "ray"} & set(sys.modules) or "nothing")
"""


def test_lists_help_and_early_mistakes_load_nothing_heavy(files: Path):
    commands = ["--help", "list configs", *(command for command, _ in cases(EARLY))]
    lines = "\n".join("\0".join(words_of(command)) for command in commands)
    options: Any = {"capture_output": True, "text": True, "env": os.environ | {"PYTHONPATH": str(ROOT)}}
    ended = subprocess.run([sys.executable, "-c", IN_A_PROCESS], input=lines, check=False, **options)
    loaded = dict(zip(commands, ended.stdout.splitlines(), strict=True))
    assert {command: answer for command, answer in loaded.items() if answer != "nothing"} == {}, ended.stderr


def experiment(**options: Any) -> lit_cfl.Experiment:
    return lit_cfl.Experiment(Digits(8), make_task, **{"algorithm": FedAvg(), "rounds": 1} | options)


def quickstart() -> lit_cfl.Experiment:
    return lit_cfl.load_experiment("quickstart")


def make_task() -> Classification:
    return Classification(MCLR([1, 8, 8], 10), partial(torch.optim.SGD, lr=0.1))


IN_PYTHON: dict[str, tuple[Callable[[], object], list[str]]] = {
    "a number as text": (lambda: experiment(rounds="20"), ["rounds", "'20'", "whole number"]),
    "one seed": (lambda: experiment(seeds=3), ["seeds", "3", "[3]"]),
    "a word": (lambda: experiment(selection="round-robin"), ["selection", "round-robin", "round_robin_first"]),
    "a wrong number": (lambda: experiment(algorithm=FedGroup(3, pretrain=3)), ["FedGroup", "pretrain", "3", "Budget"]),
    "a class": (lambda: experiment(algorithm=FedAvg), ["algorithm", "FedAvg", "FedAvg(...)"]),
    "a name": (lambda: experiment(algorithm="FedAvg"), ["algorithm", "FedAvg", "Algorithm"]),
    "a task": (lambda: lit_cfl.Experiment(Digits(8), make_task(), FedAvg()), ["task", "lambda: Classification(...)"]),
    "options of no group": (lambda: experiment().with_options(server={"lr": 1}), ["server", "{'lr': 1}", "option"]),
    "a number for a file": (lambda: lit_cfl.load_experiment(3), ["3", "file"]),
    "an option next to a class": (
        lambda: lit_cfl.load_experiment(quickstart().to_dict() | {"server": {"class_path": "SGD", "lr": 1}}),
        ["server", "'lr'", "init_args"],
    ),
    "what was made in Python": (
        lambda: lit_cfl.load_experiment(quickstart().to_dict() | {"made_in_python": True}),
        ["configuration", "Python"],
    ),
    "an option of a group": (lambda: quickstart().with_options(local={"epoch": 3}), ["local", "'epoch'", "epochs"]),
    "null": (lambda: quickstart().with_options(rounds=None), ["rounds", "null", "whole number"]),
    "examples as data": (lambda: lit_cfl.Experiment(torch.ones(3, 2), make_task, FedAvg()), ["data", "Tensor"]),
    "words in one text": (lambda: lit_cfl.load_experiment("quickstart", "--rounds 3"), ["words", "--rounds 3", "list"]),
    "a run of a name": (lambda: lit_cfl.run("quickstart"), ["quickstart", "lit_cfl.load_experiment(FILE)"]),
    "a mode as callbacks": (lambda: lit_cfl.run(experiment(), "new", "resume"), ["callbacks", "mode='resume'"]),
    "a cluster": (lambda: lit_cfl.load_run("ran").module(9), ["cluster", "9", "0 to 3"]),
    "a client": (lambda: lit_cfl.load_run("ran").client_module(40), ["client", "40", "0 to 11"]),
    "a dry run in Python": (lambda: lit_cfl.compare("quickstart", ["FedAvg"], words=["--dry-run"]), ["--dry-run"]),
    "a dry run of a study": (lambda: lit_cfl.tune("study.yaml", ["--dry-run"]), ["--dry-run"]),
    "a comparison made in Python": (lambda: lit_cfl.compare(experiment(), ["FedAvg"]), ["YAML", "lit_cfl.run"]),
}


@pytest.mark.parametrize("name", IN_PYTHON)
def test_a_mistake_in_python_is_named(name: str, files: Path):
    make, words = IN_PYTHON[name]
    before = written(files)
    with pytest.raises(InputError) as error:
        make()
    assert missing_words(str(error.value), words) == [], error.value
    assert written(files) == before
