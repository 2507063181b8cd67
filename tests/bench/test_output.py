"""What the benchmark prints and writes is read by others: pandas, people."""

import json
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from dear_mpi.bench.case import OPERATIONS
from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.output import FORMATS, WIDTH, fitted, object_of, show_bench
from dear_mpi.bench.run import Report, against_peers
from dear_mpi.ranks.world import run_world
from tests.bench.readers import footer_of, read_table, unfolded
from tests.bench.test_bench import row

ITEMSIZES = {"fp64": 8, "fp32": 4, "fp16": 2, "bf16": 2, "int32": 4, "uint8": 1}
NAMES = ("native", "ring", "auto")
SPLIT = ("reduce_scatter", "all_gather", "all_to_all")  # whose counts are per rank in nccl-tests


def report(*rows, names=NAMES, left_out=None):
    return Report(against_peers(rows), None, names, left_out or [])


def printed(form, *rows, **more):
    return "".join(
        f"{line.plain if isinstance(line, Text) else line}\n" for line in FORMATS[form].lines(report(*rows, **more))
    )


def placed_rows(*, wrong=0):
    return [
        row(name, nbytes, time_us, placement=placement, wrong=wrong, backend="MPI")
        for placement, slower in (("out of place", 2.0), ("in place", 1.0))
        for nbytes in (64, 1 << 20)
        for name, time_us in (("native", slower * nbytes), ("ring", 3 * slower * nbytes))
    ]


COUNTS = st.integers(0, 10**9)
TIMES = st.floats(1e-3, 1e9)


@st.composite
def odd_rows(draw):
    """A row whose figures agree with each other, at the ends of what there is."""
    dtype, ranks = draw(st.sampled_from(list(ITEMSIZES))), draw(st.integers(2, 5))
    collective = draw(st.sampled_from(["all_reduce", "broadcast", *SPLIT]))
    count = draw(COUNTS) // ranks * ranks
    low, time_us, high = sorted(draw(st.tuples(TIMES, TIMES, TIMES)))
    rate = count * ITEMSIZES[dtype] / time_us * 1e-3
    return row(
        draw(st.sampled_from(NAMES)), 64, collective=collective, ranks=ranks, bytes=count * ITEMSIZES[dtype],
        count=count, dtype=dtype,
        op=draw(st.sampled_from(["sum", "average", "max"])) if collective == "all_reduce" else "none",
        placement=draw(st.sampled_from(["in place", "out of place"])), p50_us=time_us, ci_low_us=low, ci_high_us=high,
        mean_us=time_us, algbw_GBps=rate, busbw_GBps=rate, wrong=draw(st.sampled_from([0, 1, 10**7])),
    )  # fmt: skip


def alike(text_value, value, width):
    """As near as a number can come in so many characters."""
    assert text_value == pytest.approx(value, rel=0.5 if width == 6 and value >= 1e6 else 0.06, abs=0.005)


@pytest.mark.parametrize("collective", OPERATIONS)
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_busbw_is_what_the_words_say(collective, ranks):
    factor = OPERATIONS[collective].busbw.replace("2(", "2*(")
    assert eval(factor, {"n": ranks}) == pytest.approx(OPERATIONS[collective].factor(ranks))


def test_the_table_tells_what_changes_no_bit():
    begin = "Bits of our sums are the same in all runs and schedules"
    rows = {name: row(name, 64, ranks=3, hosts=[3]) for name in ("native", "ring", "ordered", "shared")}
    for names, said in (
        (("native", "ring"), f"{begin}, but not on other numbers of ranks."),
        (
            tuple(rows),
            f"{begin}, and for ordered, shared also with all sizes and cuts, but not on other numbers of ranks.",
        ),
        (("native",), None),
    ):
        text = unfolded(printed("table", *(rows[name] for name in names), names=names))
        assert (said in text) if said else begin not in text


@pytest.mark.parametrize("width", [6, 7])
@given(st.floats(0, 1e30))
def test_a_number_fits_its_column(width, value):
    text = fitted(value, width)
    assert len(text) <= width
    assert float(text) == pytest.approx(value, rel=0.5, abs=0.005)


LONG = "a/folder/of/mine/with/a/long/name/mine.py:" + "ring" * 20
NAMES_OF_TABLE = ("native", "auto", LONG)


def test_the_table_of_people_is_narrow_and_has_what_differs():
    """Whatever varies, and however long a name is, a line or a remark."""
    kinds = list(product(("fp32", "bf16"), ("sum", "average"), ("in place", "out of place"), ("private", "shared")))
    made = [
        replace(row(name, size), dtype=dtype, op=op, placement=placement, memory=memory, wrong=10**7)
        for size in (1000, 10**9)
        for dtype, op, placement, memory in kinds
        for name in NAMES_OF_TABLE
    ]
    left_out = [(f"{LONG}: {'why ' * 60}", "all_reduce", 4)]
    text = printed("table", *made, names=NAMES_OF_TABLE, left_out=left_out)
    assert max(map(len, text.splitlines())) <= WIDTH
    rows = read_table(text)
    assert len(rows) == len(made)
    assert list(rows[0]) == ["algorithm", "size", "type", "op", "placed", "memory", "time us", "±%",
                             "busbw GB/s", "/peer", "wrong"]  # fmt: skip
    assert [rows[0][name] for name in ("algorithm", "size", "type", "op", "placed", "memory", "wrong")] == [
        "native", "1000 B", "fp32", "sum", "in", "private", "10000000 WRONG"]  # fmt: skip
    short = rows[-1]["algorithm"]
    assert LONG.endswith(short.removeprefix("…"))
    assert "".join(f"# {short} is {LONG}".split()) in "".join(unfolded(text).replace("#     ", "").split())


def test_a_wrong_value_stands_out():
    text = printed("table", *placed_rows(wrong=3))
    assert footer_of(text)[0] == [(24, "FAILED")]
    assert {line["wrong"] for line in read_table(text)} == {"3 WRONG"}
    styles = [
        line.style for line in FORMATS["table"].lines(report(*placed_rows(wrong=3))) if not line.plain.startswith("#")
    ]
    assert styles == ["bold red"] * 8


def test_noise_is_marked_and_left_out():
    noisy = replace(row("ring", 8, 5.0), ci_low_us=1.0, ci_high_us=9.0)
    text = printed("table", row("native", 4, 2.0), row("native", 8, 2.0), row("ring", 4, 2.0), noisy)
    (marked,) = [line for line in read_table(text) if "!" in line["±%"]]
    assert (marked["size"], marked["±%"]) == ("8 B", "80.00!")
    quiet = [4 * 1.5 / 2e3, 4 * 1.5 / 2e3, 8 * 1.5 / 2e3]
    assert footer_of(text)[1] == pytest.approx([sum(quiet) / 3], rel=1e-4)
    assert noisy.median_us.is_noisy
    assert "# ±%: half of the 95 % interval of the median" in text


def test_few_samples_have_no_interval():
    """That of one sample would have no width: as sure as can be."""
    made = replace(row("ring", 8, 5.0), ci_low_us=5.0, ci_high_us=5.0, algbw_GBps=1.0, busbw_GBps=1.0)
    found = [read_table(printed("table", replace(made, samples=samples)))[0]["±%"] for samples in (1, 5, 6)]
    assert found == ["-", "-", "0.00"]


def samples_of(made):
    return replace(made, times_us=[[1.5, 2.5], [3.5, 4.5]])


def test_json_goes_through_pandas(tmp_path):
    pandas = pytest.importorskip("pandas")
    made = [samples_of(each) for each in placed_rows()]
    file = tmp_path / "rows.json"
    for raw in (False, True):
        file.write_text(json.dumps({"host": "a", "rows": [object_of(each, raw=raw) for each in made]}))
        table = pandas.json_normalize(json.loads(file.read_text()), "rows")
        assert [Row(**row) for row in table.astype(object).where(table.notna(), None).to_dict("records")] == [
            each if raw else replace(each, times_us=None) for each in made
        ]


def test_a_name_of_no_format_is_refused_with_those_there_are():
    message = "format 'tabel' is unknown: did you mean 'table'\\? Allowed: table"
    with pytest.raises(ValueError, match=message):
        run_world(lambda world: show_bench(world, report(row("ring", 64)), "tabel"), threads=1)
