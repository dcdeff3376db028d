"""A user's file in which `mypy` must find Lit-CFL's types, and exactly one error."""

from typing import assert_type

from lit_cfl import compare, load_run
from lit_cfl.algorithms import FedGroup

algorithm = FedGroup(num_clusters="four")  # type: ignore[arg-type]  # the mistake: mypy says where none is found
assert_type(algorithm.pretrain_scale, int)  # each of these lines is an error if the types are Any
assert_type(load_run("runs/mine").round, int)
assert_type(compare("quickstart", ["FedAvg"]).notes, list[str])
