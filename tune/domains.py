"""Ray Tune's domains of what a study searches."""

from typing import Any

from ray import tune as ray_tune

from lit_cfl.tune.spaces import Distribution, Integers, OneOf, Space, as_plain


def domains(space: Space) -> dict[str, Any]:
    """Ray's domain of each parameter; with several algorithms those of all, of which a trial reads its own."""
    chosen = {"algorithm": ray_tune.choice(list(space.algorithms))} if space.algorithms else {}
    return chosen | {p.key: domain(p.distribution) for p in space.parameters}


def domain(distribution: Distribution) -> Any:
    """Ray's domain. Values of a choice that are no plain numbers or texts travel as YAML."""
    if isinstance(distribution, OneOf):
        plain = [as_plain(value) for value in distribution.values]
        return ray_tune.grid_search(plain) if distribution.grid else ray_tune.choice(plain)
    if isinstance(distribution, Integers):
        drawn = ray_tune.lograndint if distribution.log else ray_tune.randint
        return drawn(distribution.low, distribution.high)
    low, high = distribution.low, distribution.high
    if distribution.step:
        return ray_tune.quniform(low, high, distribution.step)
    return ray_tune.loguniform(low, high) if distribution.log else ray_tune.uniform(low, high)
