"""What is written in a picture can be read."""

from itertools import combinations


def seen(axis):
    """The numbers at an axis, without those that are off its ends."""
    low, high = sorted(axis.get_view_interval())
    return [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]


def assert_readable(figure):
    """Nothing is cut off, and no two texts lie on each other."""
    texts = [*figure.texts, *(text for legend in figure.legends for text in legend.get_texts())]
    for axes in figure.axes:
        ticks = [label for axis in (axes.xaxis, axes.yaxis) for label in seen(axis)] if axes.axison else []
        texts += [axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts, *ticks]
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts if text.get_text()]
    for text, box in boxes:
        assert 0 <= box.x0 < box.x1 <= figure.bbox.x1, text
        assert 0 <= box.y0 < box.y1 <= figure.bbox.y1, text
    assert not [(one, other) for (one, first), (other, second) in combinations(boxes, 2) if first.overlaps(second)]
