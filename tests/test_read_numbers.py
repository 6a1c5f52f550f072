"""Numbers that a program reads: item(), bool(), float(), int(), index; errors too, as in eager."""

import contextlib
import math
import operator
import threading
import warnings

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import lazyeng
from tests.support.outcomes import outcome
from tests.support.processes import printed_by

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
    torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.uint16, torch.uint64,
    torch.float8_e4m3fn,
]  # fmt: skip
READS = [torch.Tensor.item, bool, float, int, complex, operator.index, range(9).__getitem__]
NUMBERS = [0, 1, 3, -2, 2.75, -0.0, math.inf, math.nan, 2**40, 200]


def read_by(read, tensor):
    return tensor.item() if read is torch.Tensor.item else read(tensor)


def seen(read, tensor):
    """The number's type and digits, or the error."""

    def look():
        value = read_by(read, tensor)
        return type(value), repr(value)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # (a complex number loses its imaginary part)
        return outcome(look, Exception)


@pytest.mark.parametrize("read", READS, ids=lambda read: getattr(read, "__name__", "range"))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numbers_are_those_of_eager(dtype, read):
    for number in NUMBERS:
        plain = torch.tensor(number, dtype=torch.float64).to(dtype)
        for plain_of_shape in (plain, plain.reshape(1, 1), torch.stack([plain, plain])[1]):
            want = seen(read, plain_of_shape)
            lazy = lazyeng.wrap(plain_of_shape)
            assert seen(read, lazy) == want
            computed = lazyeng.wrap(plain_of_shape).clone()  # (perhaps not there yet)
            assert seen(read, computed) == want


@pytest.mark.parametrize("read", READS, ids=lambda read: getattr(read, "__name__", "range"))
@pytest.mark.parametrize("shape", [(0,), (2,), (3, 1)], ids=str)
def test_what_is_no_number_is_refused_as_in_eager(shape, read):
    plain = torch.ones(shape)
    want = seen(read, plain)
    assert seen(read, lazyeng.wrap(plain)) == want


def test_conjugate_and_negative_numbers():
    z = torch.tensor([1 + 2j])
    lazy = lazyeng.wrap(z)
    assert lazy.conj().item() == z.conj().item()
    assert lazy.conj().imag.item() == z.conj().imag.item() == -2


def test_arguments_of_item_are_refused():
    x = lazyeng.wrap(torch.ones(()))
    with pytest.raises(TypeError):
        x.item(1)  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError):
        x.item(a=1)  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize("read", [torch.Tensor.item, bool, float], ids=["item", "bool", "float"])
def test_failures_are_raised_by_each_way_to_read(read):
    lines = lazyeng.wrap(torch.arange(3))
    bad = lines[torch.tensor([7])].sum()
    with pytest.raises(IndexError, match="out of bounds") as caught:
        read_by(read, bad)
    assert isinstance(caught.value, lazyeng.LazyError)
    frames = [frame.name for frame in caught.traceback]
    assert frames[-1] in ("read_by", "test_failures_are_raised_by_each_way_to_read")


def test_modes_see_plain_reads_inside_a_block():
    seen = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(getattr(function, "__name__", ""))
            return function(*args, **(kwargs or {}))

    x = lazyeng.wrap(torch.ones(()))
    with Mode():
        assert x.item() == 1
    assert "item" in seen


# ---- under a TorchDispatchMode, as tracers are


class Names(TorchDispatchMode):
    """What is called, and whether with the tensor that the program has."""

    def __init__(self, tensor):
        super().__init__()
        self.tensor, self.names = tensor, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append((str(func), args[0] is self.tensor))
        return func(*args, **kwargs or {})


WAYS = {
    **{read.__name__: read for read in (bool, float, int, complex, operator.index)},
    "item": lambda x: x.item(), "format": lambda x: f"{x}", "spec": lambda x: format(x, ".1f"),
    "iter": lambda x: [float(each) for each in x.reshape(1)], "in": lambda x: 2 in x.reshape(1),
    "max": lambda x: max(x, x + 1).shape, "sorted": lambda x: len(sorted([x + 1, x])),
    "tolist": lambda x: x.tolist(), "list of conjugates": lambda x: (x * 1j).conj().tolist(),
    "two": lambda x: x.expand(2).item(), "none": lambda x: bool(x.expand(0)),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("number", [2, 2.0, True])
def test_dispatch_modes_see_what_is_read(number, way):
    def seen(x):
        with Names(x) as names:
            return outcome(lambda: way(x)), names.names

    assert seen(lazyeng.wrap(torch.tensor(number))) == seen(torch.tensor(number))


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_tracers_trace_or_refuse_what_is_read(mode, way):
    def trace(x):
        return outcome(lambda: make_fx(lambda q: (way(q + 1), q * 2)[1], tracing_mode=mode)(x).code)

    assert trace(lazyeng.wrap(torch.tensor(1))) == trace(torch.tensor(1))


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_linear_parts_are_those_of_eager(way):
    def linear(x):
        value, at = torch.func.linearize(lambda q: (way(q.detach()), q * q)[1], x)
        return value.tolist(), at(torch.ones(())).tolist()

    want = outcome(lambda: linear(torch.tensor(2.0)))
    assert outcome(lambda: linear(lazyeng.wrap(torch.tensor(2.0)))) == want


@pytest.mark.parametrize("read", [lambda x: x.item(), float], ids=["item", "float"])
def test_failures_and_waits_under_a_mode_are_those_of_the_read(read):
    bad = lazyeng.wrap(torch.arange(3))[torch.tensor([7])].sum()
    with pytest.raises(IndexError, match="out of bounds") as caught, Names(bad):
        read(bad)
    assert isinstance(caught.value, lazyeng.LazyError)
    assert "__torch_dispatch__" not in [frame.name for frame in caught.traceback]


# ---- in transforms of torch.func

LISTS = {
    "all": lambda q: q.tolist(), "detached": lambda q: q.detach().tolist(),
    "data": lambda q: q.data.tolist(), "some": lambda q: q[q > 1].tolist(),
    "where": lambda q: q.nonzero().tolist(), "none": lambda q: q[:0].tolist(),
    "conjugates": lambda q: (q * 1j).conj().tolist(), "one": lambda q: q.sum().tolist(),
    "of torch": torch.Tensor.tolist, "refused": lambda q: q.tolist(1),
}  # fmt: skip
TRANSFORMS = {
    "grad": torch.func.grad, "jacrev": torch.func.jacrev, "jacfwd": torch.func.jacfwd,
    "hessian": torch.func.hessian, "jvp": lambda f: lambda x: torch.func.jvp(f, (x,), (x,))[1],
    "vjp": lambda f: lambda x: torch.func.vjp(f, x)[1](torch.ones(()))[0],
    "vmap": lambda f: lambda x: torch.func.vmap(f)(x.expand(3, 2)),
    "grad of each": lambda f: lambda x: torch.func.vmap(torch.func.grad(f))(x.expand(3, 2)),
}  # fmt: skip


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
@pytest.mark.parametrize("read", LISTS.values(), ids=LISTS)
def test_lists_in_transforms_are_those_of_eager(read, transform):
    lists = []

    def program(q):
        lists.append(read(q))
        return (q * q).sum()

    def run(wrap, block):
        lists.clear()
        with block:
            x = wrap(torch.tensor([1.0, 2.0]))
            found = outcome(lambda: transform(program)(x).tolist())
        return found, list(lists)

    want = run(lambda x: x, contextlib.nullcontext())
    assert run(lazyeng.wrap, contextlib.nullcontext()) == want
    assert run(lambda x: x, lazyeng.lazy("deferred")) == want


# ---- ops that run at the call, in a program that reads all the time (record/at_once.h)


def reads_often(x):
    for _ in range(6):
        x.cumsum(0).sum().item()


def test_plain_tensors_are_read_as_they_are():
    x = torch.arange(4.0)
    with lazyeng.lazy():
        reads_often(x)
        for i in range(5):
            x += 1  # recorded
            assert x.sum().item() == 6 + 4 * (i + 1)
            assert x[1].item() == 2 + i
            assert bool((x > 0).any())
            assert torch.equal(x, torch.arange(4.0) + i + 1)


@pytest.mark.parametrize("read", [*READS[:4], "%d".__mod__, "%f".__mod__])
@pytest.mark.parametrize("grad", [True, False])
def test_numbers_that_autograd_knows_of_warn_as_in_eager(read, grad):
    def warned_by(x):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            read(x)
        return [(str(w.message), w.category, w.filename) for w in caught]

    torch.set_warn_always(True)
    try:
        x = torch.tensor(2.0, requires_grad=True)
        with torch.set_grad_enabled(grad):
            for tensor in (x, x * 1):
                assert warned_by(lazyeng.wrap(tensor)) == warned_by(tensor)
    finally:
        torch.set_warn_always(False)


@pytest.mark.parametrize("first", ["eager", "lazy"])
def test_such_numbers_warn_once_in_a_process(first):
    code = f"""if True:
        import warnings, torch
        from lazyeng import lazy
        x = torch.ones((), requires_grad=True)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for now in ("eager", "lazy") if {first == "eager"} else ("lazy", "eager"):
                if now == "eager":
                    float(x)
                else:
                    with lazy():
                        float(x * 1)
            print(len(caught))
    """
    assert printed_by(code).strip() == "1"


def test_warnings_come_from_the_line_that_called():
    x = torch.ones(3, dtype=torch.complex64)

    def casts():
        return x.to(torch.float32)  # "Casting complex values to real discards the imaginary part"

    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with lazyeng.lazy(), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            reads_often(torch.ones(3))
            for _ in range(3):
                casts().sum().item()
    finally:
        torch.set_warn_always(always)
    ours = [warning for warning in caught if "imaginary" in str(warning.message)]
    assert len(ours) >= 3
    for warning in ours:
        assert (warning.filename, warning.lineno) == (
            __file__, casts.__code__.co_firstlineno + 1)  # fmt: skip


def test_gradients_of_a_program_that_reads():
    def program(w):
        total = 0.0
        for i in range(12):
            y = ((w * i).tanh().cumsum(0) * 2).sum()
            total += y.item()
            y.backward()
        return total

    plain = torch.linspace(-1, 1, 7, requires_grad=True)
    want = program(plain)
    for wrap in (False, True):
        w = plain.detach().clone().requires_grad_()
        if wrap:
            w = lazyeng.wrap(w.detach()).requires_grad_()
        with lazyeng.lazy():
            assert program(w) == want
        assert plain.grad is not None and w.grad is not None
        assert torch.equal(torch.as_tensor(w.grad), plain.grad)


def test_failures_in_a_backward_written_in_python():
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient.cumsum(0)[torch.tensor([9, 1, 2])]

    w = torch.ones(3, requires_grad=True)
    with lazyeng.lazy():
        reads_often(torch.ones(3))
        y = Fails.apply(w)
        assert y.sum().item() == 3
        y.sum().backward()
        assert w.grad is not None
        with pytest.raises(IndexError, match="out of bounds") as caught:
            w.grad.sum().item()
        assert isinstance(caught.value, lazyeng.LazyError)
        assert caught.value.op == "aten.index.Tensor"


def test_results_are_of_the_class_and_have_no_shared_memory():
    x = torch.ones(3)
    with lazyeng.lazy():
        reads_often(x)
        y = x.clone()
        assert type(y) is lazyeng.LazyTensor and y.is_ready()
        z = y.cumsum(0)
        y.zero_()
        assert z.tolist() == [1, 2, 3] and x.tolist() == [1, 1, 1] and y.tolist() == [0, 0, 0]
        m = torch.rand(4, 4).max(0)
        assert type(m.values) is lazyeng.LazyTensor


def test_a_profile_shows_ops_that_run_at_the_call(tmp_path):
    import json

    x = torch.ones(3)
    with lazyeng.lazy():
        reads_often(x)
        with lazyeng.profile(str(tmp_path / "trace.json")):
            for _ in range(3):
                x.cumsum(0).sum().item()
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    for kind in ("record", "run"):
        assert sum(e.get("cat") == kind and "cumsum" in e["name"] for e in events) == 3


@pytest.mark.limit(60)
def test_threads_that_read_share_tensors():
    shared = lazyeng.wrap(torch.ones(16))
    wrong = []

    def reads():
        for i in range(300):
            if shared.cumsum(0).sum().item() != 136 or (shared * i).sum().item() != 16 * i:
                wrong.append(i)

    threads = [threading.Thread(target=reads) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    assert not wrong and not any(thread.is_alive() for thread in threads)
