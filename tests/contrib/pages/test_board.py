"""The board alone, in a page of somebody else: it is given an element and a program, and told what to show."""

from dear_mpi.collectives import programs
from dear_mpi.contrib.pages.algorithms import BOARD
from dear_mpi.contrib.pages.steps import steps_of
from dear_mpi.contrib.pages.whole import SCRIPTS

MAKE = """data => {
    document.body.innerHTML = "<div id=mine style='width: 800px'></div>";
    window.clicked = [];
    const onFollow = (chunk) => clicked.push(chunk);
    window.mine = board(document.getElementById("mine"), readProgram(data), { onFollow });
    mine.show({ at: 0 });
}"""
TOKENS = "[...document.querySelectorAll('.token')].filter(each => each.style.display !== 'none').length"
COMPLETE = "document.querySelectorAll('.bar.complete').length"


def test_a_board_stands_alone(scripts):
    page = scripts(*SCRIPTS, *BOARD)
    page.evaluate(MAKE, steps_of(programs("ring", "reduce_scatter", 4), [0] * 4))
    assert page.evaluate(COMPLETE) == 0
    page.evaluate("mine.show({ at: 0, flight: 0.5 })")
    assert page.evaluate(TOKENS) == 4
    page.evaluate("mine.show({ at: 3, followed: 1 })")
    assert page.evaluate(TOKENS) == 0
    assert page.evaluate(COMPLETE) == 4
    page.locator(".bar").nth(6).click()
    assert page.evaluate("clicked") == [2]
