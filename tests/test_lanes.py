"""Tests that the default lane covers every argument value, although it runs only some of the cells."""

import pytest
from lanes import every_third, thinned


@pytest.mark.parametrize("lengths", [(7,), (2, 2), (2, 3), (3, 5), (5, 5), (4, 2)])
def test_the_default_lane_meets_every_value_of_several_arguments(lengths: tuple[int, ...]):
    cells = thinned(*map(range, lengths))
    kept = [cell.values for cell in cells if not cell.marks]
    assert len(kept) < len(cells)
    if len(lengths) == 1:
        assert kept == [(0,), (3,), (6,)]
    else:
        assert [{values[axis] for values in kept} for axis in range(len(lengths))] == [set(range(n)) for n in lengths]


def test_every_third_case_is_in_the_default_lane():
    cells = every_third([(k, str(k)) for k in range(8)])
    assert [cell.values for cell in cells] == [(k, str(k)) for k in range(8)]
    assert [cell.values[0] for cell in cells if not cell.marks] == [0, 3, 6]
