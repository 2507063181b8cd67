"""Texts in columns."""

from collections.abc import Iterator, Sequence


def aligned(lines: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of columns, two apart: the first column begins on the left, all others end on the right.

    >>> list(aligned([["", "us"], ["ring", "12.5"]]))
    ['        us', 'ring  12.5']
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for first, *others in lines:
        texts = (text.rjust(width) for text, width in zip(others, widths[1:], strict=True))
        yield "  ".join([first.ljust(widths[0]), *texts])
