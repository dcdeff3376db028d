"""What the generators behind the papers' tables have in common: pieces of labels, and bad input."""

import pytest
import torch
from paper_cases import balanced, divided, pool_of
from quadratic import ids

from lit_cfl.data import ClientIndex
from lit_cfl.datamodules.partition import MNIST1000, Ditto500, FedProxFEMNIST, Partition
from lit_cfl.datamodules.partition.labels import consecutive_starts, cyclic_labels, join_pieces
from lit_cfl.errors import InputError

# Pieces


def test_pieces_are_cut_from_the_lists_of_their_labels():
    of_label = ClientIndex.from_lists([ids(10, 11, 12, 13), ids(20, 21), ids(30, 31, 32)])
    found = join_pieces(
        of_label, torch.tensor([[0, 2], [2, 1]]), torch.tensor([[1, 0], [1, 1]]), torch.tensor([[3, 1], [2, 0]])
    )
    assert [one.tolist() for one in found] == [[11, 12, 13, 30], [31, 32]]


def test_pieces_of_a_label_follow_one_another():
    starts = consecutive_starts(torch.tensor([[0, 1], [1, 2], [2, 0]]), torch.tensor([[3, 5], [2, 4], [1, 7]]), 3)
    assert starts.tolist() == [[0, 0], [5, 0], [4, 3]]


def test_types_of_clients_are_cyclic():
    assert cyclic_labels(4, 2, 3).tolist() == [[0, 1], [1, 2], [2, 0], [0, 1]]


# Bad input


@pytest.mark.parametrize("partition", [MNIST1000(), Ditto500(), FedProxFEMNIST()], ids=lambda one: type(one).__name__)
def test_other_label_spaces_are_refused(partition: Partition):
    name = type(partition).__name__
    eleven, nine = torch.arange(11).repeat(900), torch.arange(9).repeat(900)
    with pytest.raises(InputError, match=f"{name} is a rule for the labels 0 to 9, but there is a label 10"):
        divided(partition, pool_of(eleven, eleven, 11))
    with pytest.raises(InputError, match=f"{name} needs .* and label 9 has 0; take more data"):
        divided(partition, pool_of(nine, nine))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MNIST1000(0), "classes of MNIST1000 is 0; give 1 to 10"),
        (lambda: MNIST1000(11), "classes of MNIST1000 is 11; give 1 to 10"),
        (
            lambda: divided(MNIST1000(), pool_of(balanced(999))),
            "MNIST1000 needs 1000 examples of each label, .* has 999",
        ),
        (lambda: Ditto500(-1), "seed of Ditto500 is -1"),
        (lambda: divided(Ditto500(), pool_of(balanced(6000))), "Ditto500 tests on the source's test part"),
        (
            lambda: divided(Ditto500(), pool_of(balanced(6000), balanced(40))),
            r"Ditto500 needs \d+ examples of each label",
        ),
        (lambda: FedProxFEMNIST(0), "num_clients is 0 and images_per_label 4000; give 1 or more"),
        (lambda: FedProxFEMNIST(images_per_label=0), "images_per_label 0; give 1 or more"),
    ],
)
def test_impossible_generators_are_refused(make: object, message: str):
    with pytest.raises(InputError, match=message):
        make()
