"""The public test kit: tests an algorithm without nets, data or an engine.

`QuadraticWork` gives clients with closed-form answers; `check_algorithm` checks the contract that all our algorithms
keep. In your own test:

    from lit_cfl.testing import check_algorithm
    from my_file import MyAlgorithm

    def test_my_algorithm_keeps_the_contract():
        check_algorithm(MyAlgorithm())
"""

from lit_cfl.testing.contract import check_algorithm
from lit_cfl.testing.quadratic import QuadraticWork

__all__ = ["QuadraticWork", "check_algorithm"]
