"""The fused multi-adapter linear on a GPU: output and every gradient over shapes, ranks, dropouts and dtypes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before the first cuBLAS call: poisoned_buffers needs it

import pytest
import torch
import torch.nn.functional as F

from builders.fused_case import Linear, run_linear
from builders.lora_case import Adapter, LoraCase, assert_close, run_reference
from multigraft_kernels.counter_dropout.reference import build_multiplier
from multigraft_kernels.launch.table import choose_launch
from multigraft_kernels.multi_lora.dispatch import choose_path
from multigraft_kernels.multi_lora.fused_linear import fused_multi_lora_linear
from multigraft_kernels.multi_lora.segments import LoraGrads

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.timeout(120),  # a barrier that nobody answers would hold the device for ever
]

RELATIVE = {torch.float32: 2e-6, torch.bfloat16: 1.5e-2, torch.float16: 2e-3}

MIXED = (
    Adapter(rank=1, scaling=0.5),
    Adapter(rank=3, scaling=1.0, dropout=0.3),
    Adapter(rank=64, scaling=2.0, dropout=0.1),
    Adapter(rank=20, scaling=64 / 20**0.5, dropout=0.5),
)
MIXED_ORDER = [(0, 5), (1, 17), (-1, 3), (2, 301), (3, 40), (0, 129), (-1, 200), (1, 1)]


@pytest.fixture(params=["portable", "mixed", "hopper"])
def fused(request: pytest.FixtureRequest) -> Linear:
    """Each path, where the device and the layer allow it; else the nearest that they do allow, which runs anyway."""

    def linear(x, weight, bias, a, b, segments, **options) -> torch.Tensor:
        launch = choose_launch(x, weight, b, max((segment.rank for segment in segments), default=1))
        allowed = launch.path != "portable" and (request.param != "hopper" or b.shape[2] % 8 == 0)
        if allowed or request.param == "portable":
            launch = replace(launch, path=request.param)
        return fused_multi_lora_linear(x, weight, bias, a, b, segments, launch=launch, **options)

    return linear


@contextmanager
def _no_waiting() -> Iterator[None]:
    """Fail on what waits for the device; afterwards, whatever happens, others may wait again."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says that the mode is a prototype
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def check(case: LoraCase, fused: Linear) -> None:
    clean = LoraCase(**{**_fields(case), "padding": 0.0})
    assert_close(run_linear(case, fused), run_reference(clean), RELATIVE[case.dtype])


def _fields(case: LoraCase) -> dict[str, object]:
    names = "adapters order in_features out_features bias seed padding slots first_position dtype device"
    return {name: getattr(case, name) for name in names.split()}


def make(adapters, order, **options) -> LoraCase:
    return LoraCase(adapters, order, **{"device": "cuda", "dtype": torch.bfloat16, "padding": float("nan"), **options})


@pytest.mark.parametrize("dtype", list(RELATIVE), ids=str)
@pytest.mark.parametrize(
    "in_features, out_features",
    [(64, 64), (80, 2880), (2880, 80), (1000, 520), (72, 100), (75, 333)],
    ids=lambda value: str(value),
)
def test_shapes_that_are_no_multiples_of_a_tile(
    fused: Linear, dtype: torch.dtype, in_features: int, out_features: int
) -> None:
    check(make(MIXED, MIXED_ORDER, in_features=in_features, out_features=out_features, dtype=dtype, bias=True), fused)


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 8, 12, 16, 20, 24, 48, 64, 100, 128, 200, 256])
def test_F01_F03_any_rank(fused: Linear, rank: int) -> None:
    check(
        make([Adapter(rank, 0.7, 0.1), Adapter(rank, 1.5)], [(0, 70), (1, 200)], in_features=320, out_features=264),
        fused,
    )


@pytest.mark.parametrize("num_tokens", [1, 2, 15, 16, 17, 63, 64, 127, 128, 129, 1000])
def test_F02_any_number_of_tokens(fused: Linear, num_tokens: int) -> None:
    check(make([Adapter(8, 2.0, 0.1)], [(0, num_tokens)], in_features=136, out_features=272), fused)


@pytest.mark.parametrize("order", [[], [(0, 0)], [(-1, 3)], [(0, 0), (-1, 3), (1, 0)]], ids=str)
def test_F06_nothing_to_do(fused: Linear, order: list[tuple[int, int]]) -> None:
    case = make(MIXED, order)
    got = run_linear(case, fused)
    assert torch.equal(got.y, F.linear(case.x, case.weight))
    assert not any(grad.any() for grad in [*got.da, *got.db])


def test_F08_many_segments_in_few_rows_and_one_segment_in_many(fused: Linear) -> None:
    adapters = [Adapter(1 + index % 5, 1.0, 0.1 * (index % 3)) for index in range(9)]
    check(make(adapters, [(index, 1) for index in range(9)], in_features=64, out_features=128), fused)
    check(make(adapters[:1], [(0, 2500)], in_features=64, out_features=128), fused)


@pytest.mark.parametrize("count", [1, 2, 4, 16, 64])
def test_E06_any_number_of_adapters(fused: Linear, count: int) -> None:
    adapters = [Adapter(1 + 5 * index % 23, 0.5 + index % 7, 0.1 * (index % 3)) for index in range(count)]
    check(
        make(adapters, [(index, 1 + index * 37 % 90) for index in range(count)], in_features=128, out_features=256),
        fused,
    )


def test_E05_segments_of_one_adapter_share_a_sink_and_keep_their_weights(fused: Linear) -> None:
    case = make([Adapter(4, dropout=0.2), Adapter(6)], [(0, 100), (1, 70), (0, 64), (1, 1)], out_features=256)
    plain = run_linear(case, fused, grad_weights=[1.0, 1.0, 0.0, 0.0])
    rest = run_linear(case, fused, grad_weights=[0.0, 0.0, 0.5, 0.25])
    both = run_linear(case, fused, grad_weights=[1.0, 1.0, 0.5, 0.25])
    for one, other, together in zip([*plain.da, *plain.db], [*rest.da, *rest.db], [*both.da, *both.db], strict=True):
        torch.testing.assert_close(one + other, together, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("num_features", [64, 256])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("dropout", [0.1, 0.5, 0.9])
def test_the_mask_is_that_of_the_cpu_path(fused: Linear, num_features: int, dtype: torch.dtype, dropout: float) -> None:
    eye = torch.eye(num_features, device="cuda", dtype=dtype)
    case = make(
        [Adapter(num_features, 1.0, dropout)], [(0, 200)], in_features=num_features, out_features=num_features,
        dtype=dtype, first_position=5,
    )  # fmt: skip
    case.weight.zero_()
    case.x.fill_(1.0)
    case.dy.fill_(1.0)
    case.a[0], case.b[0] = eye, eye
    got = run_linear(case, fused)
    want = build_multiplier(*(part.to(torch.device("cpu")) for part in case.dropout), num_features)
    assert torch.equal(got.y.cpu() != 0, want != 0)
    assert torch.equal(got.dx.cpu() != 0, want != 0)
    torch.testing.assert_close(got.y.cpu().float(), want, rtol=1e-2, atol=0)
    torch.testing.assert_close(got.da[0].cpu(), want.sum(0).expand(num_features, -1), rtol=1e-2, atol=0)


def test_zero_b_gives_the_frozen_layer(fused: Linear) -> None:
    case = make([Adapter(16, 2.0, 0.1)], [(0, 300)], in_features=512, out_features=512)
    case.b.zero_()
    got = run_linear(case, fused)
    torch.testing.assert_close(got.y, F.linear(case.x, case.weight), rtol=8e-3, atol=1e-3)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("shape", [(256, 264), (75, 100)])
def test_a_neighbour_of_nan_and_inf_changes_no_bit(fused: Linear, dropout: float, shape: tuple[int, int]) -> None:
    adapters = [Adapter(rank=4, dropout=dropout), Adapter(rank=6, dropout=dropout)]
    order = [(0, 90), (1, 130), (0, 40), (-1, 5)]
    clean = make(adapters, order, in_features=shape[0], out_features=shape[1])
    broken = make(adapters, order, in_features=shape[0], out_features=shape[1])
    broken.x[90:220] = float("nan")
    broken.dy[90:220] = float("inf")
    broken.a[1], broken.b[1] = float("inf"), float("nan")
    got, want = run_linear(broken, fused), run_linear(clean, fused)
    rows = [*range(90), *range(220, 265)]
    assert torch.equal(got.y[rows], want.y[rows])
    assert torch.equal(got.dx[rows], want.dx[rows])
    assert torch.equal(got.da[0], want.da[0])
    assert torch.equal(got.db[0], want.db[0])
    assert got.y[90:220].isnan().all()


def test_a_factor_that_is_not_finite_spoils_its_own_rows_only(fused: Linear) -> None:
    case = make([Adapter(4), Adapter(4)], [(0, 70), (1, 70)], in_features=128, out_features=512)
    want = run_linear(case, fused)
    case.b[1, 300, 2] = float("inf")
    case.a[1, 2, 7] = float("nan")
    got = run_linear(case, fused)
    assert torch.equal(got.y[:70], want.y[:70])
    assert torch.equal(got.dx[:70], want.dx[:70])
    assert not got.y[70:, 300].isfinite().any()
    assert not got.dx[70:, 7].isfinite().any()


def test_same_input_same_bits(fused: Linear) -> None:
    case = make(MIXED, MIXED_ORDER, in_features=1024, out_features=1536)
    first, second = (run_linear(case, fused) for _ in range(2))
    assert_close(first, second, 0.0)


def test_alone_and_among_neighbours_the_gradients_of_a_and_b_have_the_same_bits(fused: Linear) -> None:
    together = make(MIXED, MIXED_ORDER, in_features=1024, out_features=768)
    alone = make(MIXED, [(2, 301)], first_position=25, in_features=1024, out_features=768)
    rows = slice(25, 326)
    alone.x, alone.dy = together.x[rows].clone(), together.dy[rows].clone()
    got, want = run_linear(together, fused), run_linear(alone, fused)
    assert torch.equal(got.da[2], want.da[2])
    assert torch.equal(got.db[2], want.db[2])
    torch.testing.assert_close(got.y[rows], want.y, rtol=8e-3, atol=1e-3)
    torch.testing.assert_close(got.dx[rows], want.dx, rtol=8e-3, atol=1e-3)


def test_rows_without_adapter_have_the_bits_of_the_layer_without_any(fused: Linear) -> None:
    case = make(MIXED, MIXED_ORDER, in_features=1024, out_features=768)
    got = run_linear(case, fused)
    other = make(MIXED, MIXED_ORDER, in_features=1024, out_features=768)
    other.b.mul_(3.0)
    again = run_linear(other, fused)
    rows = [*range(22, 25), *range(495, 695)]
    assert torch.equal(got.y[rows], again.y[rows])
    assert torch.equal(got.dx[rows], again.dx[rows])
    torch.testing.assert_close(got.y[rows], F.linear(case.x, case.weight)[rows], rtol=8e-3, atol=1e-3)


def test_gradients_of_any_stride(fused: Linear) -> None:
    case = make([Adapter(8, dropout=0.1)], [(0, 200)], in_features=256, out_features=264)
    want = None
    for dy in (case.dy[:1].expand(200, 264), case.dy[:1].repeat(200, 1), case.dy[:1].repeat(200, 1).T.contiguous().T):
        case.dy = dy
        got = run_linear(case, fused)
        if want is not None:
            assert_close(got, want, 0.0)
        want = got


def test_input_that_is_a_slice_of_wider_rows(fused: Linear) -> None:
    case = make([Adapter(8, dropout=0.1)], [(0, 200)], in_features=256, out_features=264)
    want = run_linear(case, fused)
    for offset in (8, 3):  # reachable by TMA, and not
        wide = torch.full((200, 300), float("nan"), device="cuda", dtype=torch.bfloat16)
        wide[:, offset : offset + 256] = case.x
        sink = LoraGrads(torch.zeros(8, 256, device="cuda"), torch.zeros(264, 8, device="cuda"))
        x = wide[:, offset : offset + 256].detach().requires_grad_(True)
        y = fused(x, case.weight, None, case.a, case.b, case.segments, dropout=case.dropout, grads=[sink])
        y.backward(case.dy)
        assert torch.equal(y, want.y)
        assert torch.equal(x.grad, want.dx)
        assert torch.equal(sink.a, want.da[0])


def test_no_input_gradient_and_frozen_adapters(fused: Linear) -> None:
    case = make(MIXED, MIXED_ORDER, in_features=128, out_features=256)
    want = run_linear(case, fused)
    got = run_linear(case, fused, dx=False)
    assert all(torch.equal(one, other) for one, other in zip(got.da, want.da, strict=True))
    x = case.x.clone().requires_grad_(True)
    y = fused(x, case.weight, None, case.a, case.b, case.segments, dropout=case.dropout)
    y.backward(case.dy)
    assert torch.equal(x.grad, want.dx)


def test_nothing_waits_for_the_device_and_a_graph_replays(fused: Linear) -> None:
    case = make(MIXED, MIXED_ORDER, in_features=256, out_features=512)
    sinks = [LoraGrads(torch.zeros(a.rank, 256, device="cuda"), torch.zeros(512, a.rank, device="cuda")) for a in MIXED]
    owners = [index for index, _ in case.order if index >= 0]
    x = case.x.clone().requires_grad_(True)
    dropout, segments = case.dropout, case.segments

    def step() -> torch.Tensor:
        y = fused(
            x, case.weight, None, case.a, case.b, segments, dropout=dropout, grads=[sinks[owner] for owner in owners]
        )
        (grad,) = torch.autograd.grad(y, x, case.dy)
        return grad

    want = step()
    before = sinks[2].a.clone()
    torch.cuda.synchronize()
    with _no_waiting():
        step()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = step()
    graph.replay()
    assert torch.equal(got, want)
    torch.testing.assert_close(sinks[2].a, 4 * before, rtol=1e-5, atol=1e-5)


def test_offsets_past_two_to_the_31(fused: Linear) -> None:
    num_tokens, in_features = 70_000, 32_768  # 2.3e9 elements, 4.6 GB
    case = make([Adapter(4, dropout=0.1)], [(-1, 69_000), (0, 1000)], in_features=64, out_features=64)
    x = torch.randn(num_tokens, in_features, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(64, in_features, device="cuda", dtype=torch.bfloat16) / in_features**0.5
    a = torch.randn(1, 4, in_features, device="cuda", dtype=torch.bfloat16) / in_features**0.5
    tail = make([Adapter(4, dropout=0.1)], [(0, 1000)], first_position=69_000, in_features=64, out_features=64)
    grads = []
    for rows, part in ((slice(0, num_tokens), case), (slice(69_000, num_tokens), tail)):
        sink = LoraGrads(torch.zeros(4, in_features, device="cuda"), torch.zeros(64, 4, device="cuda"))
        inputs = x[rows].detach().requires_grad_(True)
        y = fused(inputs, weight, None, a, case.b, part.segments, dropout=part.dropout, grads=[sink])
        y[-1000:].backward(case.dy[-1000:])
        grads.append((y[-1000:].detach(), inputs.grad[-1000:], sink.a, sink.b))
    for whole, alone in zip(*grads, strict=True):
        # One step of bf16 at 2, as the base GEMM may round otherwise for another T; a wrong offset is off by about 1.
        torch.testing.assert_close(whole, alone, rtol=8e-3, atol=1.6e-2)


def test_a_hopper_gets_the_hopper_gemm() -> None:
    case = make(MIXED, MIXED_ORDER, in_features=256, out_features=512)
    hopper = torch.cuda.get_device_capability() == (9, 0)
    assert choose_path(case.x, case.weight, case.a, case.b).fused == hopper
    assert (choose_launch(case.x, case.weight, case.b, 64).path == "portable") != hopper
