"""Products of quantized matrices in panels of rows (``panels.h``)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from llama_py._native import ggml_h as G
from llama_py.core.rules import extra_buffer_types
from tests.native import builds
from tests.native.graphs import Graph

TYPES = {
    "Q4_K": G.GGML_TYPE_Q4_K,
    "Q5_K": G.GGML_TYPE_Q5_K,
    "Q6_K": G.GGML_TYPE_Q6_K,
    "Q4_0": G.GGML_TYPE_Q4_0,
    "Q4_1": G.GGML_TYPE_Q4_1,
    "Q5_0": G.GGML_TYPE_Q5_0,
    "Q5_1": G.GGML_TYPE_Q5_1,
    "IQ4_NL": G.GGML_TYPE_IQ4_NL,
    "IQ4_XS": G.GGML_TYPE_IQ4_XS,
}
#: Numbers of a column that share a scale.
SHARED = {"Q4_K": 256, "Q5_K": 256, "Q6_K": 256, "IQ4_XS": 256}
#: What GCC calls CPUs whose instructions panels are made for, and Linux the last of these.
CPUS = {"haswell": "avx2", "alderlake": "avx_vnni", "icelake-server": "avx512_vnni"}
#: In an order by which the sums of a panel's parts begin and end differently.
LENGTHS = (256, 768, 1536)


ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Weights:
    """A quantized matrix: ``(rows, bytes)``, and what its numbers are."""

    kind: str
    data: npt.NDArray[np.uint8]
    values: npt.NDArray[np.float32]


def quantized(kind: str, rows: int, length: int) -> Weights:
    """Random rows, each with numbers of its own size."""
    random = np.random.default_rng(rows + length)
    sizes = 2.0 ** random.integers(-8, 4, (rows, 1))
    numbers = np.asarray(random.normal(0, 1, (rows, length)) * sizes, np.float32)
    data = np.zeros((rows, G.ggml_row_size(TYPES[kind], length)), np.uint8)
    importance = np.ones(length, np.float32)
    G.ggml_quantize_chunk(
        TYPES[kind], numbers.ctypes.data, data.ctypes.data, 0, rows, length, importance.ctypes.data
    )
    values = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind])
    return Weights(kind, data, np.asarray(values, np.float32))


def exact_columns(kind: str, count: int, length: int) -> npt.NDArray[np.float32]:
    """Columns that are quantized as they are: integers up to 127 times a power of two."""
    random = np.random.default_rng(count)
    shared = SHARED.get(kind, 32)
    blocks = random.integers(-127, 128, (count, length // shared, shared))
    blocks[..., random.integers(shared)] = random.choice([-127, 127])
    scales = 2.0 ** random.integers(-6, 3, (count, length // shared, 1))
    return np.asarray((blocks * scales).reshape(count, length), np.float32)


@pytest.fixture(scope="module")
def panels() -> G.ggml_backend_buffer_type_t:
    """The type of buffers; the machine may have none."""
    for each in extra_buffer_types():
        if G.ggml_backend_buft_name(each) == b"CPU_PANELS":
            return each
    pytest.skip("this build is for a CPU without AVX2, or the rule is off")


Multiply = Callable[..., npt.NDArray[np.float32]]


@pytest.fixture
def placed(panels: G.ggml_backend_buffer_type_t) -> Iterator[Callable[..., Any]]:
    """Puts weights into panels."""
    context = G.ggml_init(G.ggml_init_params(mem_size=1 << 20, mem_buffer=None, no_alloc=True))
    buffers = []

    def place(weights: Weights, *shape: int) -> Any:
        sizes = (*shape, *(1,) * (3 - len(shape)))
        tensor = G.ggml_new_tensor_3d(context, TYPES[weights.kind], *sizes)
        buffers.append(G.ggml_backend_alloc_ctx_tensors_from_buft(context, panels))
        G.ggml_backend_tensor_set(tensor, weights.data.ctypes.data, 0, weights.data.nbytes)
        return tensor

    yield place
    for buffer in buffers:
        G.ggml_backend_buffer_free(buffer)
    G.ggml_free(context)


@pytest.fixture
def multiply(placed: Callable[..., Any]) -> Multiply:
    """Products by ggml with weights in panels: ``(columns, rows)``, or with the columns' shape."""

    def product(
        weights: Weights, columns: npt.NDArray[np.float32], threads: int = 1
    ) -> npt.NDArray[np.float32]:
        rows, length = weights.values.shape
        with Graph() as graph:
            matrix = placed(weights, length, rows)
            result = G.ggml_mul_mat(graph.context, matrix, graph.tensor(columns))
            return graph.compute(result, threads, (*columns.shape[:-1], rows))

    return product


def expected(weights: Weights, columns: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    return np.asarray(columns.astype(np.float64) @ weights.values.astype(np.float64).T)


def error(got: npt.NDArray[np.float32], weights: Weights, columns: npt.NDArray[np.float32]) -> Any:
    """The largest, by the sum of what each number was added up from."""
    added = np.abs(columns).astype(np.float64) @ np.abs(weights.values).astype(np.float64).T
    return np.max(np.abs(got - expected(weights, columns)) / added)


@pytest.mark.parametrize("columns", [1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 33, 100, 257])
@pytest.mark.parametrize("kind", TYPES)
def test_products_are_those_of_float64(multiply: Multiply, kind: str, columns: int) -> None:
    for length in LENGTHS:
        weights = quantized(kind, 48, length)
        given = exact_columns(kind, columns, length)
        for threads in (1, 2, 3):
            assert error(multiply(weights, given, threads), weights, given) < 3e-7


#: Where the bytes of a block are that hold halves: its scale, and in some types its minimum.
HALVES = {
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "Q4_1": (0, 2),
    "Q5_1": (0, 2),
}


@pytest.mark.parametrize("pattern", [0x00, 0x7F, 0x80, 0xFF])
@pytest.mark.parametrize("kind", TYPES)
def test_sums_have_room_for_the_largest_numbers(
    multiply: Multiply, kind: str, pattern: int
) -> None:
    """Weights and scales of the same bits everywhere, by columns as large as they get."""
    size = G.ggml_type_size(TYPES[kind])
    blocks = np.full((16, 768 // G.ggml_blck_size(TYPES[kind]), size), pattern, np.uint8)
    for at, half in zip(HALVES.get(kind, (0,)), (1.0, 0.125), strict=False):
        blocks[..., at : at + 2] = np.array([half], np.float16).view(np.uint8)
    data = blocks.reshape(16, -1)
    values = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind])
    weights = Weights(kind, data, np.asarray(values, np.float32))
    given = np.full((9, 768), 127, np.float32)
    given[1] = -127
    given[2, ::2] = -127
    largest = np.max(np.abs(values)) * 127 * 768
    np.testing.assert_allclose(
        multiply(weights, given), expected(weights, given), atol=3e-7 * largest
    )


@pytest.mark.parametrize("kind", TYPES)
def test_long_rows_and_many_of_them(multiply: Multiply, kind: str) -> None:
    """Columns that do not fit into the cache beside a panel, and weights arranged by threads."""
    weights = quantized(kind, 320, 8960)
    given = exact_columns(kind, 70, 8960)
    assert error(multiply(weights, given, 2), weights, given) < 3e-7


@pytest.mark.parametrize("kind", TYPES)
def test_a_product_does_not_depend_on_what_is_computed_beside_it(
    multiply: Multiply, kind: str
) -> None:
    """Replies are the same whether other conversations are decoded in the same step or not."""
    weights = quantized(kind, 64, 768)
    given = np.asarray(np.random.default_rng(5).normal(0, 1, (30, 768)), np.float32)
    whole = multiply(weights, given)
    for threads in (2, 3):
        np.testing.assert_array_equal(multiply(weights, given, threads), whole)
    for few in (1, 2, 3, 5, 8, 13):
        np.testing.assert_array_equal(multiply(weights, given[:few]), whole[:few])


@pytest.mark.parametrize("kind", TYPES)
def test_columns_are_quantized_as_well_as_bytes_allow(multiply: Multiply, kind: str) -> None:
    weights = quantized(kind, 32, 1536)
    given = np.asarray(np.random.default_rng(6).normal(0, 1, (9, 1536)), np.float32)
    step = np.abs(given).reshape(9, -1, SHARED.get(kind, 32)).max(axis=-1, keepdims=True) / 127
    # Rounding is at most half a step, independent from number to number: five times its deviation.
    spread = np.sqrt((np.broadcast_to(step, (9, step.shape[1], SHARED.get(kind, 32))) ** 2 / 12)
                     .reshape(9, 1536) @ (weights.values.astype(np.float64) ** 2).T)  # fmt: skip
    assert np.all(np.abs(multiply(weights, given) - expected(weights, given)) < 5 * spread)


def test_columns_of_several_matrices(multiply: Multiply) -> None:
    weights = quantized("Q4_K", 48, 256)
    given = exact_columns("Q4_K", 30, 256).reshape(2, 5, 3, 256)
    flat = multiply(weights, given.reshape(30, 256))
    np.testing.assert_array_equal(multiply(weights, given).reshape(30, 48), flat)


@pytest.mark.parametrize("shared", [True, False], ids=["one column", "a column each"])
@pytest.mark.parametrize("tokens", [1, 2, 9, 40])
@pytest.mark.parametrize("kind", TYPES)
def test_experts(placed: Callable[..., Any], kind: str, tokens: int, shared: bool) -> None:
    """A mixture of experts: each token's column by the experts that were chosen for it."""
    experts, chosen, rows, length = 8, 3, 48, 256
    weights = quantized(kind, experts * rows, length)
    random = np.random.default_rng(tokens)
    ids = np.stack([random.permutation(experts)[:chosen] for _ in range(tokens)]).astype(np.int32)
    slots = 1 if shared else chosen
    columns = exact_columns(kind, tokens * slots, length).reshape(tokens, slots, length)
    matrices = weights.values.astype(np.float64).reshape(experts, rows, length)
    right = np.einsum(
        "tsrl,tsl->tsr", matrices[ids], np.broadcast_to(columns, (tokens, chosen, length))
    )
    for threads in (1, 2, 3):
        with Graph() as graph:
            matrix = placed(weights, length, rows, experts)
            result = G.ggml_mul_mat_id(
                graph.context,
                matrix,
                graph.tensor(columns),
                graph.tensor(ids.view(np.float32), G.GGML_TYPE_I32),
            )
            got = graph.compute(result, threads, (tokens, chosen, rows))
        assert np.abs(got - right).max() / np.abs(right).max() < 2e-6


@pytest.mark.parametrize("kind", TYPES)
def test_zeros_and_numbers_that_are_hardly_any(multiply: Multiply, kind: str) -> None:
    weights = quantized(kind, 16, 256)
    given = np.zeros((3, 256), np.float32)
    given[1] = 1e-42
    assert not np.any(multiply(weights, given)[0])
    assert np.all(np.abs(multiply(weights, given)) < 1e-30)


@pytest.mark.parametrize(
    ("kind", "shape"),
    [("Q4_K", (256, 20)), ("Q8_0", (256, 32)), ("F16", (256, 32)), ("Q2_K", (256, 32))],
)
def test_other_weights_are_left_to_ggml(
    panels: G.ggml_backend_buffer_type_t, kind: str, shape: tuple[int, ...]
) -> None:
    """A model with such weights is loaded as before: the next type of buffers is asked."""
    assert not taken(panels, kind, shape)
    assert taken(panels, "Q4_K", (256, 32))


def taken(panels: G.ggml_backend_buffer_type_t, kind: str, shape: tuple[int, ...]) -> bool:
    """Whether a weight would be put there, by llama.cpp's way to ask."""
    device = G.ggml_backend_reg_dev_get(G.ggml_backend_cpu_reg(), 0)
    with Graph() as graph:
        number = getattr(G, f"GGML_TYPE_{kind}")
        sizes = (*shape, *(1,) * (4 - len(shape)))
        weights = G.ggml_new_tensor_4d(graph.context, number, *sizes)
        columns = G.ggml_new_tensor_2d(graph.context, G.GGML_TYPE_F32, shape[0], 512)
        result = G.ggml_mul_mat(graph.context, weights, columns)
        buffer = G.ggml_backend_buft_alloc_buffer(panels, 0)
        weights.contents.buffer = buffer
        answer = G.ggml_backend_dev_supports_op(device, result)
        G.ggml_backend_buffer_free(buffer)
        return answer


HUGE = """
import re, sys, time
sys.path.insert(0, {root!r})
import numpy as np
from llama_py._native import ggml_h as G
from llama_py.core.rules import extra_buffer_types

types = {{G.ggml_backend_buft_name(each): each for each in extra_buffer_types()}}
context = G.ggml_init(G.ggml_init_params(mem_size=1 << 20, mem_buffer=None, no_alloc=True))
tensors = [G.ggml_new_tensor_2d(context, G.GGML_TYPE_Q4_0, 4096, 8192) for _ in range(2)]
buffer = G.ggml_backend_alloc_ctx_tensors_from_buft(context, types[b"CPU_PANELS"])
size = G.ggml_nbytes(tensors[0])
zeros = np.zeros(size, np.uint8)
for tensor in tensors:
    G.ggml_backend_tensor_set(tensor, zeros.ctypes.data, 0, size)

def huge():
    text = open("/proc/self/smaps").read()
    begin = G.ggml_backend_buffer_get_base(buffer)
    end = begin + 2 * size
    area = r"^([0-9a-f]+)-([0-9a-f]+) .*?^AnonHugePages: +([0-9]+) kB"
    areas = [(int(a, 16), int(b, 16), int(kb)) for a, b, kb in re.findall(area, text, re.M | re.S)]
    return sum(kb << 10 for a, b, kb in areas if b > begin and a < end) / (end - begin)
"""
LATER = """
before = huge()
end = time.monotonic() + 60
while huge() < 0.8 and time.monotonic() < end:
    time.sleep(0.1)
print(before, huge())
G.ggml_backend_buffer_free(buffer)
"""
#: Freed while nothing, something or everything is huge, and in a child that has no such thread.
FREED = """
import os
time.sleep({seconds})
child = os.fork()
if child == 0:
    G.ggml_backend_buffer_free(buffer)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
start = time.monotonic()
G.ggml_backend_buffer_free(buffer)
print(time.monotonic() - start)
"""
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="huge pages are Linux's")


@linux_only
def test_panels_are_in_small_pages_first_and_then_in_huge_ones(
    panels: object, run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """Huge ones take seconds to load in a virtual machine; small ones make replies slower."""
    enabled = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    release = tuple(int(part) for part in re.findall(r"[0-9]+", os.uname().release)[:2])
    if not enabled.is_file() or "[never]" in enabled.read_text() or release < (6, 1):
        pytest.skip("this system makes no huge pages of small ones when it is asked")
    done = run_python(HUGE.format(root=str(ROOT)) + LATER)
    assert done.returncode == 0, done.stderr
    before, after = map(float, done.stdout.split())
    assert before < 0.2
    assert after >= 0.8


@linux_only
@pytest.mark.parametrize("seconds", [0, 3.01, 5])
def test_panels_are_freed_whatever_their_pages_are(
    panels: object, run_python: Callable[..., subprocess.CompletedProcess[str]], seconds: float
) -> None:
    done = run_python(HUGE.format(root=str(ROOT)) + FREED.format(seconds=seconds))
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 2


def test_the_list_of_types_is_still_made_where_the_rule_adds_to_it(llama_cpp: Path) -> None:
    """When this fails, weight_panels.h has no place in the list any more."""
    path = llama_cpp / "ggml" / "src" / "ggml-cpu" / "ggml-cpu.cpp"
    text = " ".join(path.read_text(encoding="utf-8").split())
    added = "bufts.push_back(ggml_backend_cpu_repack_buffer_type());"
    assert f"if (ggml_backend_cpu_repack_buffer_type()) {{ {added} }}" in text
    assert text.count("ggml_backend_cpu_repack_buffer_type") == 2


@pytest.mark.parametrize("cpu", [*CPUS, "sapphirerapids"])
def test_it_compiles_for_cpus_that_have_the_instructions(
    gcc: str, llama_cpp: Path, cpu: str
) -> None:
    """On whatever machine the tests run, with warnings as errors."""
    folder = Path(__file__).parent
    ggml = llama_cpp / "ggml"
    includes = [f"-I{ggml / part}" for part in ("include", "src", "src/ggml-cpu")]
    builds.run(
        *(gcc, f"-march={cpu}", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", *includes),
        *("-fsyntax-only", folder / "weight_panels.cpp"),
    )


def built_alone(gcc: str, llama_cpp: Path, cpu: str, folder: Path, *flags: str) -> Path:
    """The program that multiplies without ggml, for a kind of CPU."""
    linux = Path("/proc/cpuinfo")
    if not (linux.exists() and f" {CPUS[cpu]} " in f"{linux.read_text(encoding='utf-8')} "):
        pytest.skip(f"this CPU has no {CPUS[cpu]}")
    program = folder / cpu
    source = Path(__file__).with_name("panels_alone.cpp")
    builds.run(
        *(gcc, f"-march={cpu}", "-std=c++17", "-O1", *flags, f"-I{llama_cpp / 'ggml/src'}"),
        *(source, "-o", program),
    )
    return program


def multiplied_alone(
    program: Path, weights: Weights, columns: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    shape = (*weights.values.shape, len(columns))
    done = subprocess.run(
        [program, weights.kind, *map(str, shape), "1"],
        input=weights.data.tobytes() + columns.tobytes(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return np.frombuffer(done.stdout, np.float32).reshape(len(columns), -1)


def check_alone(program: Path) -> None:
    for kind in TYPES:
        weights = quantized(kind, 48, 768)
        for columns in (1, 3, 8, 17):
            given = exact_columns(kind, columns, 768)
            whole = multiplied_alone(program, weights, given)
            assert error(whole, weights, given) < 3e-7, kind
            np.testing.assert_array_equal(multiplied_alone(program, weights, given[:1]), whole[:1])


@pytest.mark.slow
@pytest.mark.parametrize("cpu", CPUS)
def test_products_on_other_cpus(gcc: str, llama_cpp: Path, tmp_path: Path, cpu: str) -> None:
    """Panels of eight rows, and each kind of instructions: as far as this machine has them."""
    check_alone(built_alone(gcc, llama_cpp, cpu, tmp_path))


@pytest.mark.long
@pytest.mark.parametrize("cpu", CPUS)
def test_no_address_is_wrong(gcc: str, llama_cpp: Path, tmp_path: Path, cpu: str) -> None:
    flags = "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"
    check_alone(built_alone(gcc, llama_cpp, cpu, tmp_path, *flags))
