"""A table of numbers on colours."""

import numpy as np
from matplotlib.colors import to_rgba

from benchmarks.reproduction.heat_table import heat_table


def test_colours_are_white_at_0_and_symmetric_and_numbers_can_be_read_on_them():
    values = np.array([[0.0, 3.0, 60.0], [0.0, -3.0, -60.0]])
    figure = heat_table(10 + values, values, ["up", "down"], ["a b", "c", "d"], "points", linear=5.0)
    axes, bar = figure.axes
    (image,) = axes.images
    shade = np.asarray(image.norm(values))
    assert np.allclose(shade[:, 0], 0.5)
    assert np.allclose(shade[0] + shade[1], 1)
    assert 0.55 < shade[0, 1] < 0.7 < shade[0, 2] == 1  # 3 points can be seen beside 60
    orange, purple = (image.cmap(image.norm(value)) for value in (20.0, -20.0))
    assert orange[0] > orange[2]
    assert purple[2] > purple[0]
    texts = {text.get_text(): to_rgba(text.get_color())[0] for text in axes.texts}
    assert texts == {"10.0": 0, "13.0": 0, "70.0": 1, "7.0": 0, "-50.0": 1}
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a\nb", "c", "d"]
    ticks = [0, *(sign * size for size in (5, 10, 20, 50) for sign in (1, -1))]
    assert {label.get_text() for label in bar.get_yticklabels()} == set(map(str, ticks))
