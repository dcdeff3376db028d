import pytest
import torch
from digits_experiment import digits
from few_rounds import AVERAGING, batch_norm, last, states, truth_for
from quadratic import ids, quadratic_clients, rng
from torch.testing import assert_close

from lit_cfl.algorithms import IFCA, Algorithm, FedAvg, FedGroup, Oracle, StoCFL
from lit_cfl.algorithms.shared_layers import with_shared_layers
from lit_cfl.testing import QuadraticWork, check_algorithm

TRUTH = torch.arange(8) % 2
SHARED, OWN = slice(2), slice(2, 4)  # conv1 and fc1, two columns each


def test_shared_layers_train_as_in_fedavg_and_the_others_as_in_each_cluster_alone():
    work = quadratic_clients(8, true_clusters=TRUTH)
    found, alone, joint = (last(one, work) for one in (with_shared_layers(Oracle(), ["conv*"]), Oracle(), FedAvg()))
    assert torch.equal(found.models[:, OWN], alone.models[:, OWN])
    assert_close(found.models[:, SHARED], joint.models[:, SHARED].expand(2, -1), rtol=0, atol=1e-12)
    assert not torch.allclose(alone.models[:, SHARED], joint.models[:, SHARED])


def test_all_layers_shared_is_fedavg_whatever_the_clusters():
    work = quadratic_clients(8)
    found, joint = last(with_shared_layers(IFCA(num_clusters=3), ["*"]), work), last(FedAvg("equal"), work)
    assert_close(found.models, joint.models.expand(3, -1), rtol=0, atol=1e-12)


def test_cluster_that_nobody_trains_has_the_shared_layers_and_keeps_its_own():
    work, algorithm = quadratic_clients(8, true_clusters=TRUTH), with_shared_layers(Oracle(), ["conv1"])
    before, after = states(algorithm, work, [ids(0, 1), ids(2, 4)])  # the second round trains only cluster 0
    assert torch.equal(after.models[1, SHARED], after.models[0, SHARED])
    assert not torch.equal(after.models[1, SHARED], before.models[1, SHARED])
    assert torch.equal(after.models[1, OWN], before.models[1, OWN])


def test_new_cluster_starts_from_the_shared_layers():
    work = quadratic_clients(8, true_clusters=TRUTH.index_fill(0, ids(7), 5))
    work.population = torch.arange(7)
    algorithm = with_shared_layers(Oracle(), ["conv1"])
    state = last(algorithm, work, [ids(0, 1), ids(2, 3)])
    placed, _ = algorithm.place(state, ids(7), work, rng())
    new = placed.models[placed.index[7]]
    assert torch.equal(new[SHARED], state.models[0, SHARED])
    assert torch.equal(new[OWN], work.initial(0)[OWN])
    starts = []

    class Listening(QuadraticWork):
        def fit(self, models, clients, *arguments, purpose="train", **options):
            starts.extend([models] if purpose == "train" else [])
            return super().fit(models, clients, *arguments, purpose=purpose, **options)

    listening = Listening(work.centers, work.num_examples, 0.25, steps=3)
    last(with_shared_layers(StoCFL(tau=1.0), ["conv1"]), listening, [ids(0, 1), ids(2, 3, 0)])
    assert len(starts) > 0
    assert all(torch.equal(models[:, SHARED], models[:1, SHARED].expand(len(models), -1)) for models in starts)


@pytest.mark.parametrize("kind", AVERAGING)
def test_algorithms_with_shared_layers_keep_the_contract_and_share_them(kind: type[Algorithm]):
    sharing = with_shared_layers(kind(), ["conv1"])
    check_algorithm(sharing)
    for state in states(sharing, quadratic_clients(8, **truth_for(kind))):
        assert torch.equal(state.models[:, SHARED], state.models[:1, SHARED].expand(len(state.models), -1))
    assert (type(sharing).__name__, with_shared_layers(sharing, None)) == (kind.__name__, kind())


def test_mix_of_clusters_leaves_the_shared_layers():
    algorithms = (FedGroup(2, pretrain_scale=2, eta_g=rate) for rate in (0.5, 0.0))
    mixed, plain = (last(with_shared_layers(one, ["conv1"]), quadratic_clients(8)) for one in algorithms)
    assert torch.equal(mixed.models[:, SHARED], plain.models[:, SHARED])
    assert not torch.allclose(mixed.models[:, OWN], plain.models[:, OWN])


def test_running_statistics_go_with_their_layer():
    prepared = digits(task=batch_norm, algorithm=IFCA(num_clusters=2), shared=["1"], rounds=2).prepare(3)
    *_, found = prepared.rounds()
    layout = prepared.engine.layout
    columns = layout.columns_with_buffers(["batchnorm1d[0]"])
    assert len(columns) == 4 * 64  # weights, biases, running means and variances
    assert torch.equal(found.state.models[0, columns], found.state.models[1, columns])
    others = layout.columns("linear[0]")
    assert not torch.allclose(found.state.models[0, others], found.state.models[1, others])
