"""Sizes and links as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dear_mpi.reporting.units import format_bytes, parse_bytes, parse_link, parse_links, parse_rates, parse_sizes
from dear_mpi.simulate.network import read_network
from dear_mpi.training.fabric.plan_cost import network_of

FACTORS = {"b": 1, "kb": 1024, "mb": 1024**2, "gb": 1024**3, "kib": 1024, "mib": 1024**2, "gib": 1024**3}
BITS_PER_S = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12, "GbE": 1e9}
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1}
SPELLINGS = st.sampled_from([str, str.lower, str.upper, str.title])
SPACES = st.sampled_from(["", " ", "  "])


@given(number=st.integers(0, 2**20), unit=st.sampled_from(list(FACTORS)), spelling=SPELLINGS, space=SPACES)
def test_sizes_are_binary_in_any_spelling(number, unit, spelling, space):
    text = f"{space}{number}{space}{spelling(unit)}{space}"
    assert parse_bytes(text) == number * FACTORS[unit]


@given(nbytes=st.integers(0, 2**50))
def test_a_written_size_reads_as_itself(nbytes):
    assert parse_bytes(format_bytes(nbytes)) == nbytes


@given(
    number=st.integers(1, 10**6),
    unit=st.sampled_from(list(BITS_PER_S)),
    delay=st.integers(0, 86400),
    time_unit=st.sampled_from(list(SECONDS)),
)
def test_links_are_decimal_and_in_bits(number, unit, delay, time_unit):
    link = parse_link(f"{number}{unit}, {delay}{time_unit}")
    assert link.bandwidth == pytest.approx(number * BITS_PER_S[unit] / 8)
    assert link.latency_s == pytest.approx(delay * SECONDS[time_unit])


SIZES = {
    **{
        text: [4**power for power in range(1, 14)]
        for text in ("4B:64MiB", "4:64M", "4b:64MB", "4:65536K", "4B:67108864")
    },
    "4B": [4],
    "1KiB,4B": [1024, 4],
    "1.5KiB,.5kb,1e3b,2.5e-1 kb": [1536, 512, 1000, 256],
    "4B:65B,1KiB": [4, 16, 64, 65, 1024],
    "7B:7B": [7],
}


@pytest.mark.parametrize("text", SIZES)
def test_sizes(text):
    assert parse_sizes(text) == SIZES[text]


@pytest.mark.parametrize(("texts", "gbit_per_s"), [
    (("400gbit", "400Gbps", "400gbps", "400 Gb/s", "400Gbit/s", "50GB/s", "50GBps", "0.4Tb/s"), 400),
    (("800mbit", "800Mbps", "100MB/s", "0.8Gbit/s"), 0.8),
])  # fmt: skip
def test_bandwidths_as_others_write_them(texts, gbit_per_s):
    for text in texts:
        assert parse_link(f"{text},2us").bandwidth == pytest.approx(gbit_per_s * 1e9 / 8)
        assert parse_rates(f"{text}/{text}") == pytest.approx((gbit_per_s * 1e9 / 8,) * 2)
        both = parse_links(f"{text},2us/{text},5us,hosts=2")
        assert both == parse_links(f"{texts[0]},2us/{texts[0]},5us,hosts=2")


def test_latency_may_be_left_out():
    assert parse_link("10gbit") == parse_link("10 Gbit,0us")


@pytest.mark.parametrize("text", ["10gbit,50us", "10gbit,2us/1gbit,50us,hosts=2", "1gbit/2gbit,1us,per_host=3"])
def test_a_link_and_a_network_are_one_text(text):
    hosts = tuple(rank // (6 if "/" not in text else 3) for rank in range(6))
    assert network_of(parse_links(text), hosts) == read_network(text, 6).network


UNITS = "units are b, kb, mb, gb, kib, mib, gib"
RANGES = ("8:64M:2", "8:64M:x1", "64M:8", ":8", "8:", "8:16:x", "64B:4B", "0B", "0B:4B", "4B:8B:16B")
ERRORS = {
    parse_sizes: {
        **dict.fromkeys(RANGES, "sizes '"),
        "4B:": "sizes '4B:' must be a size, or a range of two, as in 4B:64MiB or 4B:64MiB:x2",
        "4B,,8B": "sizes '' must be a size, or a range",
        "4X": "size '4X' cannot be read",
        "-5": "size '-5' cannot be read: write it like 25MB; units are b, kb, mb, gb, kib, mib, gib, k, m, g",
        "1e400": "size '1e400' is too large",
    },
    parse_bytes: {
        "25": f"size '25' has no unit: write it like 25MB; {UNITS}",
        "": f"size '' cannot be read: write it like 25MB; {UNITS}",
        "-1MB": "size '-1MB' cannot be read",
        "1,5MB": "size '1,5MB' cannot be read",
        "nanMB": "size 'nanMB' cannot be read",
        "10gbit": "size '10gbit' cannot be read",
    },
    parse_links: {
        "10": "bandwidth '10' has no unit",
        "1gbit/1gbit": "link '1gbit/1gbit' must be one link, or INSIDE/BETWEEN,hosts=N, or INSIDE/BETWEEN,per_host=N",
        "1gbit,hosts=2": "link '1gbit,hosts=2' must be one link, or INSIDE",
        "1gbit/1gbit,hosts=2,per_host=1": "link '1gbit/1gbit,hosts=2,per_host=1' must be one link",
        "1gbit,hosts=2/1gbit,hosts=2": "link '1gbit,hosts=2/1gbit,hosts=2' has hosts twice",
        "1gbit/1gbit,hosts=0": "link '1gbit/1gbit,hosts=0': hosts must be a whole number above zero, not '0'",
        "1gbit/1gbit,o=1us,hosts=2": "link '1gbit/1gbit,o=1us,hosts=2': o is unknown. Allowed: hosts=, per_host=",
        "1gbit/0gbit,hosts=2": "bandwidth '0gbit' must be above zero",
        "1gbit/1gbit,1d,hosts=2": "latency '1d' cannot be read",
    },
    parse_rates: {
        "10gbit": "rates '10gbit' must be two bandwidths, INSIDE/BETWEEN, as 100gbit/10gbit",
        "1gbit/0gbit": "bandwidth '0gbit' must be above zero",
        "1gbit/1gbit/1gbit": "bandwidth '1gbit/1gbit' cannot be read",
    },
    parse_link: {
        "10": "bandwidth '10' has no unit: write it like 10gbit,50us, 400Gbps or 25GB/s; units are kbit, mb",
        "": "bandwidth '' cannot be read",
        "25MB": "bandwidth '25MB' cannot be read",
        "25gb/s": "bandwidth '25gb/s' cannot be read: write it like 10gbit,50us, 400Gbps or 25GB/s",
        "0GB/s": "bandwidth '0Gbit' must be above zero",
        "10gbit,50": "latency '50' has no unit: write it like 10gbit,50us; units are ns, us, ms, s",
        "10gbit,-5us": "latency '-5us' cannot be read",
        "10gbit,50us,3us": "latency '50us,3us' cannot be read",
    },
}


@pytest.mark.parametrize(("parse", "text"), [(parse, text) for parse, texts in ERRORS.items() for text in texts])
def test_errors(parse, text):
    with pytest.raises(ValueError) as error:  # noqa: PT011 (the message is compared as it is, not as a pattern)
        parse(text)
    assert str(error.value).startswith(ERRORS[parse][text])
