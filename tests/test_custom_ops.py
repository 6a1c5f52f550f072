"""Operators that lazyeng has never seen: torch.library ops, mutating ones, Python kernels."""

import contextlib
import gc
import os
import signal
import textwrap
import threading
import time
import uuid
import warnings

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lazyeng import LazyError, LazyTensor, engine_stats, lazy, synchronize, unwrap, wrap
from tests.support import fresh as processes
from tests.support.processes import printed_by
from tests.support.threads import threads_of_torch

from .support.fresh import run


def fresh(name):
    """Op names live as long as the process: each test registers its own."""
    return f"lazyeng_test::{name}_{uuid.uuid4().hex[:8]}"


def make_scale(device_types=None, fake=True):
    """A custom op registered now, that is, after lazyeng was imported."""

    @torch.library.custom_op(fresh("scale"), mutates_args=(), device_types=device_types)
    def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
        assert type(x) is torch.Tensor  # kernels see real tensors
        return x * factor

    if fake:
        scale.register_fake(lambda x, factor: torch.empty_like(x))
    return scale


@pytest.mark.parametrize("device_types", [None, "cpu", ["cpu", "cuda"]])
@pytest.mark.parametrize("fake", [True, False])
def test_custom_op(device_types, fake, mode):
    scale = make_scale(device_types, fake)
    with lazy(mode):
        y = scale(wrap(torch.ones(3)), 2.5)
        z = scale(torch.ones(3), 2.0)
    assert type(y) is LazyTensor and y.tolist() == [2.5] * 3
    assert type(z) is LazyTensor and z.tolist() == [2.0] * 3


def test_custom_op_with_fake_kernel_is_recorded():
    """One op, not one for each torch call in its kernel; and not run before it is read."""
    runs = []

    @torch.library.custom_op(fresh("counted"), mutates_args=())
    def counted(x: torch.Tensor) -> torch.Tensor:
        runs.append(threading.get_ident())
        return x + 1 + 1

    counted.register_fake(lambda x: torch.empty_like(x))
    with lazy("deferred"):
        y = counted(wrap(torch.ones(2)))
        assert "counted" in repr(y)
        assert y.shape == (2,) and not y.is_ready()
    assert y.tolist() == [3.0, 3.0]
    assert len(runs) == 1


def test_mutating_custom_op(mode):
    @torch.library.custom_op(fresh("bump"), mutates_args=("x",))
    def bump(x: torch.Tensor, by: float) -> None:
        x.add_(by)

    with lazy(mode):
        x = wrap(torch.zeros(3))
        view = x[1:]
        before = x + 0
        bump(x, 2.0)
        bump(view, 1.0)
        after = x + 0
    assert before.tolist() == [0.0] * 3
    assert after.tolist() == x.tolist() == [2.0, 3.0, 3.0]


def test_mutating_custom_op_on_a_plain_tensor(mode):
    @torch.library.custom_op(fresh("bump"), mutates_args=("x",))
    def bump(x: torch.Tensor) -> None:
        x.add_(1)

    x = torch.zeros(2)
    with lazy(mode):
        bump(x)
    assert x.numpy().tolist() == [1.0, 1.0]


def test_list_and_optional_arguments(mode):
    @torch.library.custom_op(fresh("total"), mutates_args=())
    def total(xs: list[torch.Tensor], bias: torch.Tensor | None = None) -> list[torch.Tensor]:
        return [x + (0 if bias is None else bias) for x in xs]

    total.register_fake(lambda xs, bias=None: [torch.empty_like(x) for x in xs])
    with lazy(mode):
        xs = [wrap(torch.ones(2)), torch.zeros(3)]
        a, b = total(xs), total(xs, wrap(torch.tensor(5.0)))
    assert [x.tolist() for x in a] == [[1.0] * 2, [0.0] * 3]
    assert [x.tolist() for x in b] == [[6.0] * 2, [5.0] * 3]
    assert all(type(x) is LazyTensor for x in [*a, *b])


def test_custom_autograd(mode):
    scale = make_scale()
    scale.register_autograd(
        lambda ctx, grad: (grad * ctx.factor, None),
        setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]),
    )
    with lazy(mode):
        x = wrap(torch.ones(3)).requires_grad_()
        scale(x, 4.0).sum().backward()
    assert x.grad.tolist() == [4.0] * 3


@pytest.mark.parametrize("fake", [True, False])
@pytest.mark.parametrize("set_mode", [
    contextlib.nullcontext, torch.no_grad, lambda: torch.autocast("cpu", torch.bfloat16),
    lambda: torch.autocast("cpu", torch.float16),
])  # fmt: skip
def test_kernel_sees_autocast_and_grad_mode_of_its_caller(set_mode, fake, mode):
    seen = []

    @torch.library.custom_op(fresh("square"), mutates_args=())
    def square(x: torch.Tensor) -> torch.Tensor:
        seen.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
        return (x @ x).float()

    if fake:
        square.register_fake(lambda x: torch.empty_like(x))
    x = torch.rand(5, 5)
    with set_mode():
        expected = square(x)
        found = square(wrap(x))
        with lazy(mode):
            in_block = square(x)
    assert torch.equal(unwrap(found), expected) and torch.equal(unwrap(in_block), expected)
    assert len(set(seen)) == 1 and (wrap(x) @ x).dtype == torch.float32


@pytest.mark.parametrize("fake", [True, False])
def test_python_kernel_that_raises(fake, lazy_mode):
    class MyError(Exception):
        def __init__(self, code, text):  # type(e)(message) would not rebuild it
            super().__init__(f"{text} ({code})")
            self.code = code

    @torch.library.custom_op(fresh("broken"), mutates_args=())
    def broken(x: torch.Tensor) -> torch.Tensor:
        raise MyError(7, "no luck")

    if fake:
        broken.register_fake(lambda x: torch.empty_like(x))
    with lazy(lazy_mode), pytest.raises(MyError) as caught:
        (broken(wrap(torch.ones(2))) + 1).tolist()
    assert str(caught.value) == "no luck (7)" and caught.value.code == 7
    assert type(caught.value).__name__ == "MyError"
    if fake:  # recorded: the failure came later; without it the shape is learnt by running
        assert isinstance(caught.value, LazyError)


def test_kernel_failure_leaves_the_engine_usable(lazy_mode):
    @torch.library.custom_op(fresh("broken"), mutates_args=())
    def broken(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("once")

    broken.register_fake(lambda x: torch.empty_like(x))
    with lazy(lazy_mode):
        bad = [broken(wrap(torch.ones(2))) for _ in range(10)]
        good = wrap(torch.ones(2)) + 1
        assert good.tolist() == [2.0, 2.0]
        for x in bad:
            with pytest.raises(ValueError, match="once"):
                x.wait()
    synchronize()


def test_python_kernel_may_use_torch_and_wait_on_the_gil(mode):
    """Python kernels run while the caller waits: a wait that held the GIL would never end."""

    @torch.library.custom_op(fresh("solve"), mutates_args=())
    def solve(x: torch.Tensor) -> torch.Tensor:
        total = 0.0
        for _ in range(3):
            total += float((x @ x.t()).sum())
        return torch.full((1,), total)

    solve.register_fake(lambda x: torch.empty(1))
    with lazy(mode):
        results = [solve(wrap(torch.ones(4, 4))) for _ in range(20)]
    assert [r.item() for r in results] == [192.0] * 20


def test_low_level_library(mode):
    """torch.library.Library with a CPU kernel only, as compiled extensions register theirs."""
    namespace = f"lazyeng_low_{uuid.uuid4().hex[:8]}"
    library = torch.library.Library(namespace, "DEF")
    library.define("double(Tensor x) -> Tensor")
    library.impl("double", lambda x: x * 2, "CPU")
    with lazy(mode):
        y = getattr(torch.ops, namespace).double(wrap(torch.ones(2)))
    assert type(y) is LazyTensor and y.tolist() == [2.0, 2.0]
    library._destroy()


# Of a library, with a kernel and none for autograd: what the kernel calls is differentiated.
DIFFERENTIATED = {
    "scale(Tensor x, Tensor w) -> Tensor": lambda x, w: x * w.sin(),
    "two(Tensor x, Tensor w) -> (Tensor, Tensor)": lambda x, w: (x * w, (w**2).sum()),
    "change_(Tensor(a!) x, Tensor w) -> Tensor(a!)": lambda x, w: x.mul_(w),
    "part(Tensor(a) x, Tensor w) -> Tensor(a)": lambda x, w: x[1:],
    "list(Tensor[] x, Tensor w) -> Tensor": lambda x, w: torch.stack(x).sum(0) * w,
    "optional(Tensor?[] x, Tensor w) -> Tensor": lambda x, w: x[0] * w,
    "asks(Tensor x, Tensor w) -> Tensor": lambda x, w: w * float(w.requires_grad),
}


@pytest.mark.parametrize("key", ["CPU", "CompositeExplicitAutograd"])
@pytest.mark.parametrize("signature", DIFFERENTIATED)
@pytest.mark.parametrize("way", ["block", "wrapped"])
@pytest.mark.parametrize("both", [True, False], ids=["both", "one"])
@pytest.mark.filterwarnings("ignore:.*an autograd kernel was not registered.*:UserWarning")
def test_gradients_of_a_library_op_without_a_derivative(both, way, signature, key, mode):
    name, kernel = signature.partition("(")[0], DIFFERENTIATED[signature]
    namespace = f"lazyeng_low_{uuid.uuid4().hex[:8]}"
    library = torch.library.Library(namespace, "DEF")
    library.define(signature)
    library.impl(name, kernel, key)
    call = getattr(getattr(torch.ops, namespace), name)

    def gradients(make):
        x = make(torch.tensor([1.0, 2.0, 3.0], requires_grad=True))
        w = make(torch.tensor([0.5, 1.5, 2.5], requires_grad=both))
        y = x * 2
        result = call([y, x] if "[] x" in signature else y, w)
        parts = result if isinstance(result, tuple) else (result, y if "!" in signature else result)
        sum((part.sum() for part in parts), start=x.sum()).backward()
        return [None if t.grad is None else t.grad.tolist() for t in (x, w)]

    expected = gradients(lambda t: t)
    with lazy(mode) if way == "block" else contextlib.nullcontext():
        assert gradients(wrap if way == "wrapped" else lambda t: t) == expected
    library._destroy()


@pytest.mark.parametrize("wants_grad", [True, False])
@pytest.mark.filterwarnings("ignore:.*an autograd kernel was not registered.*:UserWarning")
def test_a_library_op_that_changes_the_shape_of_its_argument(wants_grad, mode):
    library = torch.library.Library(f"lazyeng_low_{uuid.uuid4().hex[:8]}", "DEF")
    library.define("grow(Tensor(a!) x, Tensor w) -> ()")
    library.impl("grow", lambda x, w: (x.unsqueeze_(0).t_(), None)[1], "CPU")
    call = getattr(torch.ops, library.ns).grow
    with lazy(mode):
        x = torch.ones(3) * 2
        call(x, torch.ones(3, requires_grad=wants_grad) * 2)
        assert (x.shape, x.stride()) == ((3, 1), (1, 3))
        assert (x + 1).tolist() == [[3.0], [3.0], [3.0]]
    library._destroy()


def test_gradient_of_a_bias_beside_packed_weights(mode):
    """torch's own kernel, which adds the bias where autograd sees it."""
    weight, x = torch.randn(8, 16), torch.randn(3, 16)

    def gradient():
        bias = torch.zeros(8, requires_grad=True)
        packed = torch.fbgemm_pack_gemm_matrix_fp16(weight)
        torch.fbgemm_linear_fp16_weight(x, packed, bias).sum().backward()
        return bias.grad.tolist()

    expected = gradient()
    with lazy(mode):
        assert gradient() == expected


def test_composite_library_op(mode):
    namespace = f"lazyeng_low_{uuid.uuid4().hex[:8]}"
    library = torch.library.Library(namespace, "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x + x, "CompositeImplicitAutograd")
    with lazy(mode):
        x = wrap(torch.ones(2)).requires_grad_()
        y = getattr(torch.ops, namespace).twice(x)
        y.sum().backward()
    assert y.tolist() == [2.0, 2.0] and x.grad.tolist() == [2.0, 2.0]
    library._destroy()


def test_op_with_wrong_fake_shape_is_reported(lazy_mode):
    """Metadata is verified when the op runs: never a tensor whose shape lies about its values."""

    @torch.library.custom_op(fresh("liar"), mutates_args=())
    def liar(x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(5)

    liar.register_fake(lambda x: torch.empty(2))
    with lazy(lazy_mode):
        y = liar(wrap(torch.ones(2)))
        assert y.shape == (2,)
        with pytest.raises(RuntimeError, match="5"):
            y.tolist()


@pytest.mark.parametrize("returned, told", [(2, 3), (3, 2), (0, 1)])
def test_op_with_a_list_of_another_length_is_reported(returned, told, lazy_mode):
    @torch.library.custom_op(fresh("list"), mutates_args=())
    def several(x: torch.Tensor) -> list[torch.Tensor]:
        return [x + n for n in range(returned)]

    several.register_fake(lambda x: [torch.empty_like(x) for _ in range(told)])
    with lazy(lazy_mode):
        made = several(torch.ones(4))
        assert len(made) == told
        for one in (made[-1] + 1, *made):
            with pytest.raises(RuntimeError, match=f"{returned} tensors, recorded as {told}"):
                one.tolist()
        assert [one.tolist() for one in several(torch.ones(4))] == [
            [1.0 + n] * 4 for n in range(returned)
        ]


def test_op_that_returns_what_its_fake_kernel_does_not_is_reported(lazy_mode):
    library = torch.library.Library("lazyeng_test_optional", "FRAGMENT")
    name = f"perhaps_{uuid.uuid4().hex[:8]}"
    library.define(f"{name}(Tensor x) -> (Tensor, Tensor?)")
    library.impl(name, lambda x: (x + 1, x * 2), "CPU")
    torch.library.register_fake(
        f"lazyeng_test_optional::{name}", lambda x: (torch.empty_like(x), None), lib=library
    )
    perhaps = getattr(torch.ops.lazyeng_test_optional, name)
    with lazy(lazy_mode):
        first, second = perhaps(torch.ones(2))
        assert second is None
        with pytest.raises(RuntimeError, match="recorded as nothing"):
            first.tolist()
        assert [x.tolist() for x in perhaps(torch.ones(2))] == [[2.0, 2.0], [2.0, 2.0]]
    library._destroy()


def test_op_that_may_return_a_tensor_and_returns_none_is_run(mode):
    library = torch.library.Library("lazyeng_test_optional", "FRAGMENT")
    name, seen = f"tells_{uuid.uuid4().hex[:8]}", []
    library.define(f"{name}(Tensor x) -> Tensor?")
    library.impl(name, lambda x: seen.append(x.tolist()), "CPU")
    torch.library.register_fake(f"lazyeng_test_optional::{name}", lambda x: None, lib=library)
    tells = getattr(torch.ops.lazyeng_test_optional, name)
    with lazy(mode):
        for n in range(3):
            assert tells(torch.ones(1) + n) is None
        synchronize()
        assert sorted(seen) == [[1.0], [2.0], [3.0]]  # (none needs another)
    library._destroy()


def no_fake(kernel):
    return None


def fake_of_dynamic_size(kernel):
    """As torch's documentation has it; asked of tensors on the meta device it raises."""
    kernel.register_fake(lambda x: x.new_empty(torch.library.get_ctx().new_dynamic_size()))


@pytest.mark.parametrize("give_fake", [no_fake, fake_of_dynamic_size])
def test_op_whose_results_are_as_large_as_values_say(give_fake, mode):
    """Boxes that a vision library keeps: of arguments that look the same, now more, now fewer."""

    @torch.library.custom_op(fresh("positive"), mutates_args=())
    def positive(x: torch.Tensor) -> torch.Tensor:
        return x[x > 0]

    give_fake(positive)
    with lazy(mode):
        kept = [positive(torch.arange(6.0) - n) for n in (0, 1, 3, 5, 6)]
        assert [x.shape[0] for x in kept] == [5, 4, 2, 0, 0]
    assert [x.tolist() for x in kept[:3]] == [[1, 2, 3, 4, 5], [1, 2, 3, 4], [1, 2]]


def test_numpy_inside_a_kernel(mode):
    @torch.library.custom_op(fresh("by_numpy"), mutates_args=())
    def by_numpy(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(x.numpy() * 3)

    by_numpy.register_fake(lambda x: torch.empty_like(x))
    with lazy(mode):
        assert by_numpy(wrap(torch.ones(2)) + 1).tolist() == [6.0, 6.0]


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_kernel_looks_at_the_memory_it_writes(mode, wrapped):
    """Its own write is pending meanwhile: waiting for that would never end."""

    @torch.library.custom_op(fresh("increase"), mutates_args=("xs",))
    def increase(xs: list[torch.Tensor]) -> None:
        for x in xs:
            assert x.data_ptr() and x.untyped_storage().nbytes() == 8
            x.numpy()[...] += 1

    x = wrap(torch.zeros(2)) if wrapped else torch.zeros(2)
    with lazy(mode):
        increase([x])
        y = x + 1
    assert x.tolist() == [1.0, 1.0] and y.tolist() == [2.0, 2.0]


class Wrapped(torch.Tensor):
    """A tensor without memory of its own, as torch.distributed returns for pending collectives."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(cls, inner.size(), dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args = torch.utils._pytree.tree_map_only(cls, lambda x: x.inner, args)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("fake", [True, False])
def test_op_that_returns_a_subclass(fake, mode):
    """Nobody can foresee it: an error once, if the op was recorded; then it is as in eager."""

    @torch.library.custom_op(fresh("wrapped"), mutates_args=())
    def wrapped(x: torch.Tensor) -> torch.Tensor:
        return Wrapped(x * 2)

    if fake:
        wrapped.register_fake(lambda x: torch.empty_like(x))
    with lazy(mode):
        first = wrapped(torch.ones(3))
        if fake and mode != "sync":
            with pytest.raises(TypeError, match="returned a tensor subclass"):
                first.tolist()
        for _ in range(2):
            y = wrapped(torch.ones(3))
            assert type(y) is Wrapped and (y + 1).tolist() == [3.0] * 3


def test_wrong_meta_function_of_torchs_own():
    """prims are torch's ops in Python: that of this one says float. (torch 2.13; one that says bool
    passes too.)"""
    x = torch.tensor([1.0, -2.0])
    expected = torch.ops.prims.signbit(x)
    for _ in range(3):
        with lazy("deferred"):
            found = torch.ops.prims.signbit(wrap(x))
        assert found.dtype == expected.dtype and found.tolist() == expected.tolist()


def test_wrong_meta_function_of_quantized_weights():
    """It says float32, of bytes. In a new process, where nothing was learned yet."""
    code = """
    import torch, lazyeng
    with lazyeng.lazy("deferred"):
        packed = torch.ops.quantized.embedding_bag_byte_prepack(torch.randn(10, 16))
    print(packed.dtype, lazyeng.unwrap(packed).dtype)
    """
    assert printed_by(code) == "torch.uint8 torch.uint8\n"


def test_kernel_that_waits_does_not_wait_for_itself(mode):
    """A block in it is no block; nothing recorded is waited for but what it reads."""
    seen = []
    ready = (wrap(torch.ones(2)) * 2).wait()

    @torch.library.custom_op(fresh("waits"), mutates_args=())
    def waits(x: torch.Tensor) -> torch.Tensor:
        with lazy():
            y = x + unwrap(ready)
        default = torch.get_default_dtype()
        torch.set_default_dtype(default)  # waits for all that is recorded
        with pytest.raises(RuntimeError, match="would wait for itself"):
            synchronize()
        seen.append(type(y))
        return unwrap(y)

    @torch.library.custom_op(fresh("adds"), mutates_args=("x",))
    def adds(x: torch.Tensor) -> None:
        with lazy():
            x.add_(1)

    waits.register_fake(torch.empty_like)
    p = torch.zeros(2)
    with lazy(mode):
        p.add_(waits(torch.ones(2)))
        adds(p)
    assert p.tolist() == [4.0] * 2 and seen == [torch.Tensor]


def test_kernel_that_reads_what_was_recorded_before_it(lazy_mode):
    """It is no argument, and may not join a group that waits for the kernel."""
    pending = []

    @torch.library.custom_op(fresh("reads"), mutates_args=())
    def reads(x: torch.Tensor) -> torch.Tensor:
        return x + unwrap(pending.pop())

    reads.register_fake(torch.empty_like)
    p = torch.zeros(2)
    with lazy(lazy_mode):
        for _ in range(20):
            pending.append(torch.ones(2) * 2)
            p.add_(reads(torch.ones(2)))
            p.tolist()
    assert p.tolist() == [60.0] * 2


def test_kernel_that_reads_what_another_python_kernel_makes():
    """Which waits for an operator meanwhile, so that it comes second."""
    results = fresh_process("""
        state = {}

        @torch.library.custom_op("lazyeng_test::first", mutates_args=())
        def first(x: torch.Tensor) -> torch.Tensor:
            return x + 1

        @torch.library.custom_op("lazyeng_test::second", mutates_args=())
        def second(x: torch.Tensor) -> torch.Tensor:
            return x + state["mean"].item()

        for op in first, second:
            op.register_fake(torch.empty_like)
        m = torch.eye(512)
        with lazy("MODE"):
            y = m
            for _ in range(40):
                y = y @ m
            state["mean"] = first(y).mean()
            print(second(torch.ones(3)).tolist())
        """)
    assert results == [str([2.001953125] * 3)] * 2


def test_collected_objects_may_read_in_a_kernel():
    """Their destructors run wherever Python allocates, and read what other kernels make."""
    results = fresh_process("""
        import gc

        @torch.library.custom_op("lazyeng_test::collects", mutates_args=())
        def collects(x: torch.Tensor) -> torch.Tensor:
            gc.collect()
            return x + 1

        collects.register_fake(torch.empty_like)

        class Meter:
            def __del__(self):
                seen.append(self.loss.item())

        seen = []
        collects(torch.ones(3))
        gc.collect()
        gc.disable()
        m = torch.eye(512)
        with lazy("MODE"):
            y = m
            for _ in range(40):
                y = y @ m
            collects(y[:2])
            meter = Meter()
            meter.me, meter.loss = meter, collects(y.sum())
            del meter
            print(collects(torch.ones(3)).sum().item(), seen)
        """)
    assert results == ["6.0 [513.0]"] * 2


def test_kernel_that_waits_for_its_own_result():
    results = fresh_process("""
        state = {}

        @torch.library.custom_op("lazyeng_test::circle", mutates_args=())
        def circle(x: torch.Tensor) -> torch.Tensor:
            while "y" not in state:
                time.sleep(0.001)
            return x + state["y"].sum()

        circle.register_fake(torch.empty_like)
        with lazy("MODE"):
            state["y"] = circle(torch.ones(3)) * 2
            try:
                state["y"].tolist()
            except RuntimeError as error:
                print("needs the result of this very call" in str(error), "circle" in str(error))
        """)
    assert results == ["True True"] * 2


def fresh_process(body):
    """The last line that the program writes, in modes async and deferred: what hangs ends."""
    prelude = "import time, torch, lazyeng\nfrom lazyeng import lazy\n"
    lines = []
    for mode in "async", "deferred":
        script = prelude + textwrap.dedent(body).replace("MODE", mode)
        done = processes.run(script, timeout=60)
        assert done.returncode == 0, done.stderr[-3000:]
        lines.append(done.stdout.splitlines()[-1])
    return lines


@pytest.mark.parametrize("how", ["tensor", "list"])
def test_a_kernel_may_return_lazy_tensors(how, mode):
    table = wrap(torch.arange(3.0))

    @torch.library.custom_op(fresh("look"), mutates_args=())
    def look(x: torch.Tensor) -> torch.Tensor:
        return x + table.sum()

    @torch.library.custom_op(fresh("looks"), mutates_args=())
    def looks(x: torch.Tensor) -> list[torch.Tensor]:
        return [x + table.sum(), x * 2]

    look.register_fake(lambda x: torch.empty_like(x))
    looks.register_fake(lambda x: [torch.empty_like(x), torch.empty_like(x)])
    with lazy(mode):
        results = [look(torch.ones(2))] if how == "tensor" else looks(torch.ones(2))
    assert [y.tolist() for y in results] == [[4.0, 4.0], [2.0, 2.0]][: len(results)]


def test_a_kernel_that_returns_a_failed_tensor(lazy_mode):
    bad = wrap(torch.arange(3.0))[torch.tensor([7])]

    @torch.library.custom_op(fresh("look"), mutates_args=())
    def look(x: torch.Tensor) -> torch.Tensor:
        return x + bad

    look.register_fake(lambda x: torch.empty_like(x))
    with lazy(lazy_mode):
        y = look(torch.ones(1))
    with pytest.raises(IndexError, match="out of bounds"):
        y.tolist()


# --- kernels that the program puts in place of torch's own


@contextlib.contextmanager
def in_place_of_torchs(name, kernel, key="CPU"):
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that there is a kernel
        library.impl(name, kernel, key)
    try:
        yield
    finally:
        library._destroy()


def product_and_more(a, b):
    """In a group, by a C slot, in place and over a list."""
    c = a * b + b
    c.mul_(b)
    c = torch._foreach_mul([c, a], [b, b])[0]
    return c[0].item()


def test_a_kernel_in_place_of_torchs_runs_instead_of_it(mode):
    a, b = torch.full((4096,), 3.0), torch.full((4096,), 5.0)

    def results():
        with lazy(mode):
            return [product_and_more(a, b), product_and_more(wrap(a), wrap(b))]

    torchs = product_and_more(a, b)
    assert results() == [torchs] * 2
    with in_place_of_torchs("mul.Tensor", torch.add):
        replaced = product_and_more(a, b)
        assert replaced != torchs
        for _ in range(3):
            assert results() == [replaced] * 2
    for _ in range(3):
        assert results() == [torchs] * 2


def test_a_kernel_in_place_of_torchs_is_called_as_often_as_in_eager(mode):
    """With the program's numbers alone: no trial, no stand-in, no part."""
    calls = []

    def mm(a, b):
        calls.append((tuple(a.shape), a.unique().tolist(), threading.get_ident()))
        return torch.from_numpy(a.numpy() @ b.numpy())

    with threads_of_torch(2):
        with in_place_of_torchs("mm", mm), lazy(mode):
            x = torch.full((64, 64), 5.0)
            results = [x @ x for _ in range(8)]
            assert [y.sum().item() for y in results] == [64.0**3 * 25] * 8
    assert [call[:2] for call in calls] == [((64, 64), [5.0])] * 8
    # (A first call may run at once, to tell what it returns.)
    assert len({call[2] for call in calls} - {threading.get_ident()}) <= 1


def test_what_is_recorded_runs_before_a_kernel_is_put_in_place_of_torchs():
    x = wrap(torch.full((4096,), 3.0))
    with lazy("deferred"):
        before = x * x + 1
        with in_place_of_torchs("mul.Tensor", torch.add):
            replaced = x * x + 1
        after = x * x + 1
    assert [y[0].item() for y in (before, replaced, after)] == [10.0, 7.0, 10.0]


def test_a_kernel_in_place_of_torchs_ends_with_its_library():
    x = wrap(torch.full((64,), 3.0))
    library = torch.library.Library("aten", "IMPL", "CPU")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl("mul.Tensor", torch.add)
    with lazy("deferred"):
        replaced = x * x + 1
        del library
        after = x * x + 1
    assert [y[0].item() for y in (replaced, after)] == [7.0, 10.0]


def test_a_kernel_for_an_op_that_torch_decomposes(mode):
    x = torch.ones(3, 3)

    def results():
        with lazy(mode):
            return [unwrap(torch.matmul(y, y))[0, 0].item() for y in (x, wrap(x))]

    assert results() == [3.0] * 2
    with in_place_of_torchs("matmul", lambda a, b: a + b + 10):
        assert torch.matmul(x, x)[0, 0].item() == 12.0
        assert results() == [12.0] * 2
    assert results() == [3.0] * 2


def test_a_kernel_in_place_of_torchs_may_return_another_dtype(mode):
    """torch's meta function is not about it."""
    x = wrap(torch.full((64,), 3.0))
    with in_place_of_torchs("mul.Tensor", lambda a, b: torch.add(a, b).double()):
        for length in (64, 32, 16, 8):
            with lazy(mode):
                y = x[:length] * x[:length]
                assert y.dtype == torch.float64
            assert y.tolist() == [6.0] * length


def test_a_kernel_over_lists_in_place_of_torchs(mode):
    x = torch.ones(3)

    def result():
        with lazy(mode):
            return [y.tolist() for y in torch._foreach_add([wrap(x), wrap(x)], 1.0)]

    assert result() == [[2.0] * 3] * 2
    with in_place_of_torchs("_foreach_add.Scalar", lambda xs, n: [x - n for x in xs]):
        assert result() == [[0.0] * 3] * 2
    assert result() == [[2.0] * 3] * 2


def test_a_kernel_that_is_there_before_lazyeng():
    script = """
    import torch
    library = torch.library.Library("aten", "IMPL")
    library.impl("mul.Tensor", torch.add, "CPU")
    import lazyeng
    x = torch.full((64,), 3.0)
    for _ in range(3):
        with lazyeng.lazy():
            y = x * x + 1
        assert y[0].item() == 7
    """
    done = run(textwrap.dedent(script), timeout=120)
    assert done.returncode == 0, done.stderr


# --- defined anew, under the same name, as notebooks do


def definitions():
    """One op three times: other arguments, other memory that it writes, another shape."""
    name = fresh("again")

    @torch.library.custom_op(name, mutates_args=())
    def first(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    first.register_fake(lambda x: torch.empty_like(x))
    yield lambda x: (first(x), x)

    @torch.library.custom_op(name, mutates_args=())
    def second(x: torch.Tensor, n: int) -> torch.Tensor:
        return x + n

    second.register_fake(lambda x, n: torch.empty_like(x))
    yield lambda x: (second(x, 5), x)

    @torch.library.custom_op(name, mutates_args={"x"})
    def third(x: torch.Tensor) -> torch.Tensor:
        x.zero_()
        return x + 2

    third.register_fake(lambda x: torch.empty_like(x))
    yield lambda x: (third(x), x.sum())

    @torch.library.custom_op(name, mutates_args=())
    def fourth(x: torch.Tensor) -> torch.Tensor:
        return x.repeat(2)

    fourth.register_fake(lambda x: x.new_empty(2 * x.shape[0]))
    yield lambda x: (fourth(x), x)


class Watching(TorchDispatchMode):
    """Which ops it sees."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def define_by_decorator(name, k):
    torch.library.custom_op(name, lambda x: x + k, mutates_args=(), schema="(Tensor x) -> Tensor")
    return lambda: None


def define_in_a_library(name, k):
    library = torch.library.Library(name.partition("::")[0], "FRAGMENT")
    library.define("foo(Tensor x) -> Tensor")
    library.define("foo.twice(Tensor x, int k) -> Tensor")
    library.impl("foo", lambda x: x + k, "CPU")
    library.impl("foo.twice", lambda x, k: x + k, "CPU")
    return library._destroy


@pytest.mark.parametrize("define", [define_by_decorator, define_in_a_library])
def test_python_objects_of_an_op_that_is_defined_anew(define, mode):
    """The dispatcher's entry of the old one, and with it what that refers to, is gone: also where
    nothing is lazy."""
    space = f"lazyeng_anew_{uuid.uuid4().hex[:8]}"
    for k in range(5):
        end = define(f"{space}::foo", k)
        op = getattr(torch.ops, space).foo
        x = torch.zeros(2)
        with Watching() as watching:
            y = op(x)
        assert y.tolist() == [k, k] and watching.seen[0] is op.default
        with lazy(mode):
            assert op(wrap(torch.zeros(2))).tolist() == [k, k]
        del op, watching, y
        end()
        gc.collect()


def test_calls_of_an_op_whose_library_is_collected(mode):
    library = torch.library.Library(f"lazyeng_gone_{uuid.uuid4().hex[:8]}", "DEF")
    library.define("double(Tensor x) -> Tensor")
    library.impl("double", lambda x: x * 2, "CPU")
    library.impl("double", lambda x: torch.empty_like(x), "Meta")
    with lazy(mode):
        y = wrap(torch.ones(2))
        for _ in range(3):
            y = getattr(torch.ops, library.ns).double(y * 1)
        del library
        gc.collect()
        assert y.tolist() == [8.0, 8.0]


def test_an_op_that_is_defined_anew(mode):
    results = []
    with lazy(mode):
        for call in definitions():
            for _ in range(2):  # (the second one by its plan)
                results.append(call(wrap(torch.ones(3)) * 1))
    assert [[t.tolist() for t in pair] for pair in results[::2]] == [
        [[2.0] * 3, [1.0] * 3],
        [[6.0] * 3, [1.0] * 3],
        [[2.0] * 3, 0.0],
        [[1.0] * 6, [1.0] * 3],
    ]
    for pair, again in zip(results[::2], results[1::2], strict=True):
        assert [t.tolist() for t in pair] == [t.tolist() for t in again]


def test_ctrl_c_in_a_fake_kernel_is_the_programs():
    @torch.library.custom_op(fresh("slow"), mutates_args=())
    def slow(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    begun = threading.Event()

    @slow.register_fake
    def _(x):
        begun.set()
        until = time.monotonic() + 20
        while time.monotonic() < until:
            pass
        return torch.empty_like(x)

    def press():
        begun.wait()
        os.kill(os.getpid(), signal.SIGINT)

    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    presser = threading.Thread(target=press)
    presser.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            slow(wrap(torch.ones(3)))
    finally:
        begun.set()
        presser.join()
        signal.signal(signal.SIGINT, old)
    assert wrap(torch.ones(3)).sum().item() == 3.0


DESTRUCTOR = """
import torch, lazyeng

class Timer:  # reads its clock when it is done with, after what was launched
    def __del__(self):
        lazyeng.synchronize()
        print("synchronized")

@torch.library.custom_op("cleanup::fails", mutates_args=())
def fails(x: torch.Tensor) -> torch.Tensor:
    timer = Timer()
    raise ValueError("no")

fails.register_fake(torch.empty_like)
result = fails(lazyeng.wrap(torch.ones(3)))
try:
    result.wait()
except ValueError as error:
    print("raised", error)
"""


def test_a_destructor_of_a_failed_kernel_may_synchronize():
    done = run(DESTRUCTOR, timeout=60)
    assert "raised no" in done.stdout, done.stderr


WAITS_FOR_ANOTHER = """
import sys, threading, torch, lazyeng
from tests.support.gate import Gate

gate, recorded = Gate(limit=100), threading.Event()
values = []

def first():
    with lazyeng.lazy(sys.argv[1]):
        later = gate(torch.full((4,), 2.0)) * 2 + 1
        recorded.set()
        gate.wait()
        values.append(later.sum().item())

def second():
    recorded.wait()
    with lazyeng.lazy(sys.argv[1]):
        values.append((torch.ones(4) * 2 + 1).sum().item())
    gate.open()

threads = [threading.Thread(target=f) for f in (first, second)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(sorted(values))
"""


def test_what_needs_nothing_of_a_kernel_does_not_wait_for_it(lazy_mode):
    """Ops that could be fused with what does: the kernel waits for who reads them."""
    done = run(f"import sys; sys.argv = ['', '{lazy_mode}']\n{WAITS_FOR_ANOTHER}", timeout=60)
    assert done.stdout == "[12.0, 20.0]\n", done.stderr


def test_loops_around_a_custom_op_are_replayed():
    """What is behind its kernel, and what is not, is the same in each step."""

    @torch.library.custom_op(fresh("half"), mutates_args=())
    def half(x: torch.Tensor) -> torch.Tensor:
        return x * 0.5

    half.register_fake(torch.empty_like)
    start = torch.rand(32), torch.rand(32)

    def loop():
        x, y = start
        for _ in range(8):
            x = (half(x) * 2 - 1).abs()
            y = (y * 3 + 1).fmod(0.7)
            y.sum().item()
        return x, y

    before = engine_stats()["replayed"]
    with lazy("deferred"):
        results = [value.tolist() for value in loop()]
    assert engine_stats()["replayed"] > before
    assert results == [value.tolist() for value in loop()]
