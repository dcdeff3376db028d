"""The critical-difference diagram shows each method at its mean rank, and a line for each group."""

from lit_cfl.pictures.ranks import draw_ranks, rank_diagram
from lit_cfl.pictures.svg import as_svg
from lit_cfl.statistics import Ranking

RANKING = Ranking({"a": 1.0, "b": 1.5, "c": 2.5, "d": 4.0}, 10, 9.0, 0.0123, 1.0)


def test_methods_are_rows_at_their_ranks_and_groups_are_lines_below_them():
    figure = rank_diagram(RANKING)
    ((panel,),) = figure.rows
    (points,) = panel.points
    assert {panel.y_ticks[y]: x for x, y in zip(points.x, points.y, strict=True)} == RANKING.mean_ranks
    assert list(points.y) == sorted(points.y, reverse=True)  # the best above
    first, second, length = panel.curves
    assert (list(first.x), list(second.x)) == ([1.0, 1.5], [1.5, 2.5])  # (a, b) and (b, c)
    assert (first.notes[0], second.notes[0]) == ("a, b", "b, c")
    assert max(*first.y, *second.y) < min(points.y)
    assert set(first.y) != set(second.y)
    assert length.x[1] - length.x[0] == RANKING.critical_difference
    assert "p = 0.012" in figure.caption
    assert "differ by 1.00 or less" in figure.caption
    assert figure.values.rows == [["a", 1.0], ["b", 1.5], ["c", 2.5], ["d", 4.0]]


def test_diagram_is_drawn_for_papers_and_pages():
    axes = draw_ranks(RANKING).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b", "c", "d"]
    assert ">c<" in as_svg(rank_diagram(RANKING))
