"""Tests that personal layers are trained but never averaged, on quadratic clients."""

from functools import partial
from typing import Any

import pytest
import torch
from digits_experiment import digits
from few_rounds import ALL, SPLITS, batch_norm, last, states, truth_for
from quadratic import ids, quadratic_clients, rng
from torch import Tensor
from torch.optim import Adam
from torch.testing import assert_close

from lit_cfl.algorithms import (
    CFL,
    FLHC,
    IFCA,
    AdaCFL,
    Algorithm,
    FedAvg,
    FedGroup,
    FedGrouProx,
    FedProx,
    FeSEM,
    FlexCFL,
    LayerCFL,
    Oracle,
    StoCFL,
)
from lit_cfl.algorithms.personal_layers import _PersonalWork, with_personal_layers
from lit_cfl.algorithms.server_optimizer import with_server
from lit_cfl.algorithms.shared_layers import with_shared_layers
from lit_cfl.errors import InputError
from lit_cfl.testing import QuadraticWork, check_algorithm

TRUTH = torch.arange(8) % 2
KEPT, SENT = slice(2), slice(2, 4)  # conv1 and fc1, two columns each
EVERYONE = torch.arange(8)
SPLITTING: list[Algorithm] = [kind(**SPLITS | {"warmup_rounds": 1}) for kind in (CFL, AdaCFL, LayerCFL)]
SENDING: list[Algorithm] = [kind() for kind in ALL if kind().reason_without_personal is None]
# their clusters depend on models, not on losses or data
BY_MODELS = (FedAvg, FedProx, FeSEM, FLHC, FedGroup, FedGrouProx, FlexCFL, StoCFL, Oracle)


def keeping(algorithm: Algorithm) -> Algorithm:
    return with_personal_layers(algorithm, ["conv1"])


class Rest(QuadraticWork):
    """Clients and initial models of `work`, restricted to the columns that are not personal."""

    def __init__(self, work: QuadraticWork, **options: Any) -> None:
        settings: dict[str, Any] = {"steps": 3, "layers": {"fc1": 2}} | options
        super().__init__(work.centers[:, SENT], work.num_examples, 0.25, **settings)
        self._whole = work

    def initial(self, number: int) -> Tensor:
        return self._whole.initial(number)[SENT]


@pytest.mark.parametrize("algorithm", [*SENDING, *SPLITTING], ids=repr)
def test_algorithms_keep_the_contract(algorithm: Algorithm):
    check_algorithm(keeping(algorithm))


@pytest.mark.parametrize("algorithm", [*(kind() for kind in BY_MODELS), *SPLITTING], ids=repr)
def test_means_clusters_and_mixes_are_those_of_models_without_the_layers(algorithm: Algorithm):
    """Clients differ most in column 0, which is personal and so must not decide their clusters."""
    work = quadratic_clients(8, **truth_for(algorithm))
    work.centers[:, 2] = torch.where(EVERYONE < 4, 5.0, -5.0)  # differs from the pattern in column 0
    rest = Rest(work, **truth_for(algorithm))
    for found, expected in zip(states(keeping(algorithm), work), states(algorithm, rest), strict=True):
        for name, value in vars(expected).items():
            same = getattr(found, name)
            if isinstance(value, Tensor):
                assert_close(same, value, rtol=0, atol=1e-12, msg=name)
            elif isinstance(value, dict):
                assert {k: row.tolist() for k, row in same.items()} == {k: row.tolist() for k, row in value.items()}
            else:
                assert same == value if isinstance(value, list) else same == pytest.approx(value)


@pytest.mark.parametrize("algorithm", [FedAvg(), FedGroup(2, pretrain_scale=2, eta_g=0.1), StoCFL(lambda_=0.0)])
def test_each_client_trains_its_own_layers_from_where_it_left_them(algorithm: Algorithm):
    work, rounds = quadratic_clients(8), 3
    state = last(keeping(algorithm), work, [EVERYONE] * rounds)
    start = work.initial(0)[KEPT]
    for client in range(8):
        center = work.centers[client, KEPT]
        assert_close(state.own_layers[client], center + 0.75 ** (3 * rounds) * (start - center))
    served = keeping(algorithm).serve(state, ids(6, 1))
    models = served.own.models_of(ids(6, 1), served.models, served.index)
    assert torch.equal(models[:, KEPT], torch.stack([state.own_layers[6], state.own_layers[1]]))
    assert torch.equal(models[:, SENT], served.models[served.index][:, SENT])


def test_clients_that_do_not_train_in_a_round_keep_their_layers():
    work = quadratic_clients(8)
    work.num_examples = work.num_examples.clone()
    work.num_examples[4] = 0
    before, after = states(keeping(FedAvg()), work, [ids(0, 1, 4, 2), ids(4, 2)])
    assert set(before.own_layers) == set(after.own_layers) == {0, 1, 2}
    assert after.own_layers[0] is before.own_layers[0]
    assert not torch.equal(after.own_layers[2], before.own_layers[2])


def test_client_without_layers_starts_from_the_mean_of_its_cluster_and_is_served_it():
    work, algorithm = quadratic_clients(8, true_clusters=TRUTH), keeping(Oracle())
    before, after = states(algorithm, work, [ids(0, 2, 1), ids(4, 3)])
    own = before.own_layers
    means = torch.stack([(own[0] + own[2]) / 2, own[1]])
    served = algorithm.serve(before, ids(4, 3))
    assert_close(served.models[:, KEPT], means)
    assert torch.equal(served.own.models_of(ids(4, 3), served.models, served.index), served.models[served.index])
    for client, mean in ((4, means[0]), (3, means[1])):
        center = work.centers[client, KEPT]
        assert_close(after.own_layers[client], center + 0.75**3 * (mean - center))


def test_cluster_without_layers_has_the_mean_of_all_clients_and_the_first_ones_those_of_w0():
    work, algorithm = quadratic_clients(8, true_clusters=TRUTH), keeping(Oracle())
    start, _ = algorithm.init(work, rng())
    assert_close(algorithm.serve(start, EVERYONE).models[:, KEPT], work.initial(0)[KEPT].expand(2, -1))
    state = last(algorithm, work, [ids(0, 2, 4)])
    mean = torch.stack([state.own_layers[client] for client in (0, 2, 4)]).mean(0)
    assert_close(algorithm.serve(state, EVERYONE).models[1, KEPT], mean)


def test_newcomer_is_placed_with_the_mean_of_each_cluster_and_keeps_none():
    work, algorithm = quadratic_clients(8), keeping(IFCA(2))
    state = last(algorithm, work, [EVERYONE[:6]] * 3)
    more = quadratic_clients(8)
    # the second model fits this client exactly, if completed with the mean of the personal layers
    more.centers[7] = algorithm.serve(state, EVERYONE).models[1]
    placed, _ = algorithm.place(state, ids(7), more, rng())
    assert placed.index[7] == 1
    assert placed.own_layers.keys() == state.own_layers.keys() == set(range(6))


def clients_at_hand(work: QuadraticWork) -> tuple[_PersonalWork, Tensor, dict[int, Tensor]]:
    """Gives personal layers to two of these clients.

    Returns the clients, the mean layers of each cluster, and the two clients' personal layers.
    """
    own = {2: torch.tensor([7.0, 8.0]).double(), 5: torch.tensor([-1.0, 4.0]).double()}
    clusters, means = torch.eye(2).double(), torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]).double()
    return _PersonalWork(work, torch.arange(2), work.initial(0)[:2], own, lambda: (clusters, means)), means, own


def test_losses_of_a_client_are_with_its_own_layers_and_else_with_those_of_each_cluster():
    work = quadratic_clients(8)
    clients, means, own = clients_at_hand(work)
    models = torch.cat([torch.eye(2), torch.full((1, 2), 9.0)]).double()  # the third model is not a cluster's
    found = clients.losses(models, ids(5, 0, 2, 1))
    for row, client in enumerate((5, 0, 2, 1)):
        layers = own[client].expand(3, -1) if client in own else means
        apart = torch.cat([layers, models], dim=1) - work.centers[client]
        assert_close(found[row], 0.5 * apart.square().sum(1))
    assert clients.losses(models, ids()).shape == (0, 3)
    assert work.costs.scored == int(work.num_examples[[5, 0, 2, 1]].sum()) * 3


def test_losses_of_examples_are_listed_in_the_order_of_the_clients():
    work = quadratic_clients(8)
    clients, _, _ = clients_at_hand(work)
    models, asked = torch.eye(2).double(), ids(5, 0, 2, 1)
    sizes = work.num_examples[asked]
    expected = clients.losses(models, asked).repeat_interleave(sizes, dim=0).T
    assert_close(clients.example_losses(models, asked), expected)
    assert clients.example_losses(models, ids()).shape == (2, 0)
    weights = torch.full((int(sizes.sum()),), 0.5)
    fitted = clients.fit(models, asked, ids(0, 1, 0, 0), weights=weights)
    center = work.centers[2, SENT]
    # halving the loss has the effect of halving the learning rate
    assert_close(fitted.rows[2], center + 0.875**3 * (models[0] - center))


def test_algorithm_that_trains_a_client_twice_in_a_round_is_refused():
    clients, _, _ = clients_at_hand(quadratic_clients(8))
    clients.fit(torch.eye(2).double(), ids(3))
    for asked in (ids(1, 1), ids(4, 3)):
        with pytest.raises(InputError, match="several models of one client"):
            clients.fit(torch.eye(2).double(), asked)


def test_gradients_and_statistics_of_a_client_are_with_its_own_layers():
    work = quadratic_clients(8)
    clients, means, own = clients_at_hand(work)
    asked, model = ids(5, 0, 2), torch.tensor([0.0, 1.0]).double()  # the model of the second cluster
    assert_close(clients.gradients(model, asked), model - work.centers[asked][:, SENT])
    sketched = clients.gradients(model, asked, lambda rows: rows[:, :1])
    assert_close(sketched, (model - work.centers[asked][:, SENT])[:, :1])
    found = clients.map(lambda inputs, labels, module: module(inputs)[0], asked, model)
    for client, difference in zip(asked.tolist(), found, strict=True):
        whole = torch.cat([own.get(client, means[1]), model])
        assert_close(difference, work.centers[client] - whole)
    assert clients.map(lambda inputs, labels: inputs[0], asked)[2].tolist() == work.centers[2].tolist()
    from_w0 = clients.map(lambda inputs, labels, module: module(inputs)[0], asked, work.initial(0)[SENT])
    assert_close(torch.stack(from_w0), work.centers[asked] - work.initial(0))  # w_0 is sent with all layers


def test_what_is_compared_is_trained_from_w0_whole_and_kept_by_nobody():
    work = quadratic_clients(8)
    clients, _, own = clients_at_hand(work)
    starts, fit = list[Tensor](), work.fit
    work.fit = lambda models, *rest, **options: starts.append(models) or fit(models, *rest, **options)
    fitted = clients.fit(work.initial(0)[None, SENT], ids(2, 0), purpose="pretrain")
    assert torch.equal(starts[0], work.initial(0)[None])
    assert fitted.rows.shape == (2, 2)
    assert clients.kept == own


def test_centre_of_another_model_has_the_layers_of_the_client_too():
    work = quadratic_clients(8)
    clients, _, own = clients_at_hand(work)
    centers = torch.tensor([[0.0, 0.0], [10.0, -10.0]]).double()
    fitted = clients.fit(torch.eye(2).double(), ids(2), ids(1), prox=2.0, centers=centers, center=ids(1))
    whole, begin = torch.cat([own[2], centers[1]]), torch.cat([own[2], torch.eye(2).double()[1]])
    resting = (work.centers[2] + 2 * whole) / 3
    end = resting + 0.25**3 * (begin - resting)
    assert_close(fitted.rows[0], end[SENT])
    assert_close(clients.kept[2], end[KEPT])


def test_server_optimizer_and_shared_layers_work_with_personal_ones():
    work, server = quadratic_clients(8), partial(Adam, lr=0.1)
    served = with_server(FedAvg(), server)
    found, expected = last(keeping(served), work), last(served, Rest(work))
    assert torch.equal(found.models, expected.models)
    assert torch.equal(found.server["exp_avg"], expected.server["exp_avg"])
    true, sharing = {"true_clusters": TRUTH}, with_shared_layers(Oracle(), ["fc1"])
    both = quadratic_clients(8, layers={"conv1": 2, "fc1": 1, "fc2": 1}, **true)
    found, alone = last(keeping(sharing), both), last(sharing, Rest(both, layers={"fc1": 1, "fc2": 1}, **true))
    assert torch.equal(found.models, alone.models)
    assert found.models[0, 0] == found.models[1, 0]
    check_algorithm(keeping(with_server(FedGroup(), server)))
    check_algorithm(keeping(with_shared_layers(IFCA(), ["fc1"])))


@pytest.mark.parametrize(("affine", "pattern", "columns"), [(True, "batchnorm[*]", 4 * 64), (False, "1", 2 * 64)])
def test_running_statistics_belong_to_their_layer(affine: bool, pattern: str, columns: int):
    task = partial(batch_norm, affine=affine)
    *_, found = digits(task=task, algorithm=FedAvg(), personal=[pattern], rounds=2).prepare(3).rounds()
    assert found.state.own_columns.numel() == columns  # weights and biases, running means and variances
    means = torch.stack([row[-128:-64] for row in found.state.own_layers.values()])
    assert means.abs().sum(1).min() > 0
    assert (means[0] - means[1]).abs().max() > 0
    assert found.state.models.shape == (1, 650)
