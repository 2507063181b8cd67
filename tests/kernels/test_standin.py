"""The stand-in for CuPy: its values are NumPy's, and it finds every wait that is missing, and no other."""

import threading

import numpy as np
import pytest

from dear_mpi.kernels.optimizers import Adam
from dear_mpi.models.layers import SoftmaxCrossEntropy
from dear_mpi.models.networks import ALL_MODELS
from tests.standin import fixture
from tests.standin.checked_transport import CheckedTransport
from tests.standin.fixture import expect_race

standin = fixture.standin


@pytest.fixture
def streams(standin):
    """Two streams that nothing orders."""
    return [standin.cuda.Stream(non_blocking=True) for _ in range(2)]


def in_thread(function):
    """Run it in a thread of its own; its result, or its error."""
    results, errors = [], []

    def body():
        try:
            results.append(function())
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


# ---- Values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mix",
    [
        lambda cp, x: np.asarray(x),
        lambda cp, x: np.ones(3) + x,
        lambda cp, x: x.__setitem__(slice(2), np.ones(2)),
        lambda cp, x: np.ones(3).__setitem__(slice(3), x),
        lambda cp, x: cp.add(x, x, out=np.ones(3)),
        lambda cp, x: cp.copyto(x, np.ones(3)),
    ],
)
def test_numpy_arrays_do_not_mix(standin, mix):
    with pytest.raises(TypeError):
        mix(standin, standin.zeros(3))


@pytest.mark.parametrize("name", ALL_MODELS)
def test_models_give_the_bits_of_numpy(standin, name):
    shape = (6,) if name == "gpt" else (8, 8)
    rng = np.random.default_rng(0)
    x = rng.integers(0, 20, (4, 6)) if name == "gpt" else rng.standard_normal((4, *shape)).astype(np.float32)
    targets = rng.integers(0, 20, (4, 6) if name == "gpt" else 4)

    def run(put):
        layers = ALL_MODELS[name](shape, 20, np.random.default_rng(1), np.dtype(np.float32))
        loss = SoftmaxCrossEntropy()
        parameters = [parameter for layer in layers for parameter in layer.parameters]
        for parameter in parameters:
            parameter.value, parameter.grad = put(parameter.value), put(parameter.grad)
        y = put(x)
        for layer in layers:
            y = layer.forward(y)
        values = [y, loss.forward(y, put(targets))]
        dy = loss.backward(0.1)
        for layer in reversed(layers):
            dy = layer.backward(dy)
        return [standin.asnumpy(value) for value in [*values, *(parameter.grad for parameter in parameters)]]

    for ours, theirs in zip(run(standin.asarray), run(lambda array: array), strict=True):
        np.testing.assert_array_equal(ours, theirs)


# ---- Streams and events ---------------------------------------------------------------------------------------------


def test_two_streams_without_an_event_race(standin, streams):
    x = standin.zeros(4)
    standin.cuda.Stream.null.synchronize()
    with streams[0]:
        x += 1
    with streams[1]:
        with expect_race(standin, "setitem on stream .* writes bytes 0 to 16 .*wait for what writes them: add"):
            x[:2] = 0
        with expect_race(standin, "reads bytes 0 to 32"):
            x.sum()
        standin.zeros(4)  # memory of its own


def test_readers_do_not_race_but_a_writer_waits_for_them(standin, streams):
    x = standin.zeros(4)
    standin.cuda.Stream.null.synchronize()
    for stream in streams:
        with stream:
            kept = x + 1
    with streams[0], expect_race(standin, "writes .* what reads them"):
        x.fill(2)
    streams[0].wait_event(streams[1].record())
    with streams[0]:
        x.fill(2)
    assert kept.get(streams[1]).tolist() == [1] * 4


def test_an_event_orders_what_was_launched_before_it(standin, streams):
    one, two = streams
    x = standin.zeros(4)
    one.wait_event(standin.cuda.Stream.null.record())
    with one:
        x += 1
        event = one.record()
        late = x * 2
    two.wait_event(event)
    with two:
        y = x + 1
        with expect_race(standin, "reads"):
            late + 1
    two.synchronize()
    assert y.get().tolist() == [2] * 4


def test_a_blocking_copy_to_the_host_waits_for_its_own_stream_alone(standin, streams):
    with streams[0]:
        x = standin.ones(3)
    with expect_race(standin, "get of float64"):
        x.get()
    with streams[0]:
        assert x.tolist() == [1] * 3
    assert x.get().tolist() == [1] * 3, "the host has waited, so the null stream may read too"


# ---- The host and MPI -----------------------------------------------------------------------------------------------


def pinned(standin, count):
    import cupyx

    return cupyx.zeros_pinned(count, np.float32)


def copy(standin, dst, src, stream):
    places = [array.data.ptr if isinstance(array, standin.ndarray) else array.ctypes.data for array in (dst, src)]
    standin.cuda.runtime.memcpyAsync(*places, src.nbytes, standin.cuda.runtime.memcpyDefault, stream.ptr)


def test_the_host_waits_before_it_reads_what_was_copied_out(standin, streams):
    x, host = standin.ones(8, np.float32), pinned(standin, 8)
    streams[0].wait_event(standin.cuda.Stream.null.record())
    copy(standin, host, x, streams[0])
    with expect_race(standin, "the host reads bytes 8 to 16 of pinned memory"):
        standin.check_host_access(host[2:4])
    streams[0].synchronize()
    standin.check_host_access(host)
    assert host.tolist() == [1] * 8


def test_the_host_waits_before_it_overwrites_what_is_copied_in(standin, streams):
    x, host = standin.empty(8, np.float32), pinned(standin, 8)
    copy(standin, x, host, streams[0])
    standin.check_host_access(host)
    with expect_race(standin, "the host writes"):
        standin.check_host_access(host.ctypes.data, 4, write=True)
    event = streams[0].record()
    event.synchronize()
    standin.check_host_access(host, write=True)


def test_a_send_under_way_may_be_read_but_not_overwritten(standin):
    x = standin.zeros(4)
    with expect_race(standin, "a send to rank 1 reads"):
        CheckedTransport(Silent()).send_init(x, 1, 0).Start()
    standin.cuda.Stream.null.synchronize()
    send = CheckedTransport(Silent()).send_init(x[1:3], 1, 0)
    send.Start()
    x + 1
    x[3:] = 1
    with expect_race(standin, "setitem on the null stream writes bytes 8 to 24 .*: a send to rank 1, which is under"):
        x[...] = 1
    assert not send.Test()
    send.Wait()
    x[...] = 2


def test_a_buffer_that_is_received_into_may_not_be_touched(standin):
    x = standin.zeros(4)
    standin.cuda.Stream.null.synchronize()
    transport = CheckedTransport(Silent())
    receive = transport.recv_init(x, 1, 0)
    receive.Start()
    with expect_race(standin, "a receive from rank 1"):
        x + 1
    with expect_race(standin, "a send to rank 0 reads"):
        transport.send_init(x, 0, 0).Start()
    receive.Wait()
    x += 1
    with expect_race(standin, "a receive from rank 1 writes .*: add on the null stream"):
        receive.Start()
    assert transport.name == "silent"


class Silent:
    """A transport on which nothing arrives until it is waited for."""

    name = "silent"

    def send_init(self, data, peer, tag):
        return self

    recv_init = send_init

    def Start(self):
        pass

    Wait = Free = Start

    def Test(self):
        return False


# ---- Devices and memory ---------------------------------------------------------------------------------------------


def test_a_thread_that_chose_no_device_is_refused_when_asked_to(standin, monkeypatch):
    def without():
        return standin.zeros(3).tolist()

    def chosen():
        with standin.cuda.Device(0):
            return without()

    assert in_thread(without) == [0] * 3
    monkeypatch.setenv("STANDIN_STRICT_DEVICE", "1")
    with pytest.raises(RuntimeError, match="invalid device context"):
        in_thread(without)
    assert in_thread(chosen) == [0] * 3
    x = standin.zeros(3)
    standin.cuda.Stream.null.synchronize()
    with pytest.raises(RuntimeError, match="invalid device context"):
        in_thread(CheckedTransport(Silent()).send_init(x, 1, 0).Start)


@pytest.fixture
def places(standin):
    """Four arrays of 32 numbers, in one slab."""
    from dear_mpi.kernels import cuda_backend

    slab = cuda_backend.allocate(1024)
    slab[...] = 0
    standin.cuda.Stream.null.synchronize()
    return cuda_backend, [slab[start : start + 128].view(np.float32) for start in (0, 256, 512, 768)]


def test_footprints_of_our_own_kernels_are_exact(standin, streams, places):
    cuda_backend, (one, two, three, _) = places
    with streams[0]:
        cuda_backend.packer([one[:8], two[:4]], [three[:8], three[8:12]], 1.0)()
    with streams[1]:
        one + two
        three[12:] = 1
        with expect_race(standin, "what writes them: kernel pack<float>"):
            three[11:12].tolist()
        with expect_race(standin, "what reads them: kernel pack<float>"):
            two[3:4].fill(0)
        two[4:].fill(0)


def test_the_sources_of_a_sum_are_read_and_nothing_beside_them(standin, streams, places):
    cuda_backend, (one, two, three, _) = places
    with streams[0]:
        cuda_backend.combiner(one[:8], [two[4:12]], [three[:8]], "sum")()
    with streams[1]:
        two + three
        for what, part in {"reads": two[11:12], "writes": one[7:8]}.items():
            with expect_race(standin, f"what {what} them: kernel accumulate_all<float, Sum>"):
                part.fill(0)
        for part in (one[8:], two[:4], two[12:], three[8:]):
            part.fill(0)


def test_an_update_touches_its_arrays_and_nothing_beside_them(standin, streams, places):
    cuda_backend, (grads, values, mean, square) = places
    grads = grads.view(np.float16)
    with streams[0]:
        arrays, adam = [values[:8], [mean[:8], square[:8]]], Adam()
        cuda_backend.updater(grads[:8], *arrays, adam, finite=None)(adam, 1, 1.0)
    with streams[1]:
        grads + 1
        for what, part in {"reads": grads[7:8], "writes": values[7:8]}.items():
            with expect_race(standin, f"what {what} them: kernel update<float, Half, Adam, "):
                part.fill(0)
        for state in (mean, square):
            with expect_race(standin, "what writes them: kernel update<float, Half, Adam, "):
                state[7:8].tolist()
        for array in (grads, values, mean, square):
            array[8:].fill(0)
