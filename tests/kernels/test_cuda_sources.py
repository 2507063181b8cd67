"""The CUDA sources without a GPU: NVIDIA's compilers accept them, and run by the host they give NumPy's bits.

The comparisons themselves are in ``tests/shim/checks.py``, since they run twice: here, and under sanitizers.
"""

import ctypes
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.shim import build, checks

NVCC = shutil.which("nvcc")
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="nvcc is not installed: the kernels are not compiled for GPUs")
FILES = list(build.EXPRESSIONS)
OPTIONS = ["--std=c++17", "--fmad=false"]  # those of kernels/cuda_backend.py


def architectures():
    """The newest generation from Volta to Blackwell that nvcc knows; with EVERY_ARCHITECTURE=1 all."""
    listed = subprocess.run([NVCC, "--list-gpu-arch"], capture_output=True, text=True, check=True, timeout=600).stdout
    known = set(map(int, re.findall(r"compute_(\d+)$", listed, re.MULTILINE)))
    found = sorted(known & {70, 75, 80, 90, 100})  # 86 to 89 run the code of 80
    return found if os.environ.get("EVERY_ARCHITECTURE") else found[-1:]


def unit_of(file, folder, names):
    """A file that takes the address of these kernels: what nobody uses is not compiled."""
    unit = folder / "unit.cu"
    addresses = ", ".join(f"(const void*)&{name}" for name in names)
    unit.write_text(f'#include "{build.CUDA / file}"\nconst void* kernels[] = {{{addresses}}};\n', "utf-8")
    return unit


def compiled(unit, binary, *options):
    command = [NVCC, *OPTIONS, "--Werror", "all-warnings", *options, "-o", binary, unit]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


@needs_nvcc
@pytest.mark.parametrize("file", FILES)
def test_every_kernel_compiles_without_a_warning_and_keeps_subnormal_numbers(file, tmp_path):
    """CuPy compiles with -ftz=true whatever it is told, which would flush them to zero; NumPy has them."""
    assert architectures(), f"{NVCC} knows no architecture from 70 to 100"
    names = build.EXPRESSIONS[file][:: 1 if os.environ.get("EVERY_ARCHITECTURE") else 7]
    unit, ptx = unit_of(file, tmp_path, names), tmp_path / "unit.ptx"
    for number in architectures():
        compiled(unit, ptx, "--ptx", f"-arch=compute_{number}", "--ftz=true")
        text = ptx.read_text("utf-8")
        assert text.count(".entry") == len(names)
        assert re.findall(r"\S*ftz\S*", text) == []
        compiled(ptx, tmp_path / "unit.cubin", "--cubin", f"-arch=sm_{number}", "-Xptxas", "-O0")  # faster


def nvrtc():
    """The library of NVRTC, beside nvcc or from the package nvidia-cuda-nvrtc, or None."""
    toolkit = [Path(NVCC).resolve().parents[1]] if NVCC else []
    package = importlib.util.find_spec("nvidia")
    folders = [*toolkit, *map(Path, package.submodule_search_locations if package else [])]
    found = [path for folder in folders for path in sorted(folder.glob("**/libnvrtc.so*"))]
    return ctypes.CDLL(str(found[0])) if found else None


@pytest.mark.parametrize("file", FILES)
def test_nvrtc_compiles_every_kernel_by_its_name_expression(file):
    """As CuPy does it: from one text, with no folder to include from."""
    library = nvrtc()
    if library is None:
        pytest.skip("libnvrtc is neither beside nvcc nor installed by nvidia-cuda-nvrtc: what CuPy does is not tried")
    program, names = ctypes.c_void_p(), [name.encode() for name in build.EXPRESSIONS[file]]
    text = build.source(file).encode()
    assert not library.nvrtcCreateProgram(ctypes.byref(program), text, file.encode(), 0, None, None)
    for name in names:
        assert not library.nvrtcAddNameExpression(program, name)
    options = [
        option.encode() for option in (*OPTIONS, "--gpu-architecture=sm_90", "--device-as-default-execution-space")
    ]
    result = library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    size = ctypes.c_size_t()
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    assert (result, log.value) == (0, b""), log.value.decode()
    lowered = ctypes.c_char_p()
    for name in names:
        assert not library.nvrtcGetLoweredName(program, name, ctypes.byref(lowered))
        assert lowered.value


@pytest.mark.parametrize(("file", "name"), [(file, name) for file in FILES for name in checks.CHECKS[file]])
def test_same_bits_as_numpy(file, name):
    with np.errstate(all="ignore"):  # of the reference: overflow and NaN are meant
        checks.CHECKS[file][name](build.kernel)


def sanitized(checks_or_mistake):
    command = [sys.executable, "-m", "tests.shim.checks", checks_or_mistake]
    environment = build.sanitizer_environment()
    return subprocess.run(command, cwd=build.ROOT, env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("file", FILES)
def test_the_same_under_sanitizers(file):
    done = sanitized(file)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"done: {len(checks.CHECKS[file].keys() - checks.FURTHER)}\n"


@pytest.mark.parametrize("planted", checks.PLANTED, ids=lambda function: function.__name__)
def test_sanitizers_see_a_planted_mistake(planted):
    done = sanitized(planted.__name__)
    assert done.returncode != 0, "nobody noticed"
    assert checks.PLANTED[planted] in done.stderr


@pytest.mark.parametrize(("grid", "arguments", "error"), [
    ((0,), (None, None, None, 0, 8), ValueError),
    ((1,), (None, None, None, 0), TypeError),
    ((1,), (None, None, None, np.int32(0), 8), TypeError),
])  # fmt: skip
def test_the_shim_refuses_what_cuda_refuses_or_misreads(grid, arguments, error):
    run = build.kernel("accumulate.cu", "accumulate<float, Sum>")
    with pytest.raises(error, match="accumulate<float, Sum>"):
        run(grid, (256,), arguments)


def test_a_kernel_from_a_text_of_its_own():
    text = "template <typename T> __global__ void fill(T* out, T x) { out[4 * blockIdx.x + threadIdx.x] = x; }"
    out = np.zeros(10, np.int16)
    build.kernel_from_source(text, "fill<short>")((2,), (4,), (out, np.int16(7)))
    assert out.tolist() == [7] * 8 + [0, 0]
