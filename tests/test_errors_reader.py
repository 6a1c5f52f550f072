"""What the reader of a failed tensor sees: own frames only, the forward line, blocks, warnings."""

import copy
import io
import linecache
import os
import pickle
import time
import traceback
import warnings

import pytest
import torch
import torch.utils.checkpoint

import lazyeng
from lazyeng import LazyError, lazy, synchronize, wrap
from tests.programs import failing_kernels, failing_programs
from tests.support.processes import alone

HERE = os.path.basename(__file__)


def failed():
    with lazy("deferred"):
        return wrap(torch.ones(1)).take(wrap(torch.tensor([7])))  # CREATED


READS = {
    "item": lambda x: x.item(),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "asarray": lambda x: __import__("numpy").asarray(x),
    "bool": lambda x: bool(x),
    "float": lambda x: float(x),
    "int": lambda x: int(x),
    "complex": lambda x: complex(x),
    "index": lambda x: [1][x],
    "format": lambda x: f"{x[0]:.1f}",
    "contains": lambda x: 1 in x,
    "data_ptr": lambda x: x.data_ptr(),
    "storage": lambda x: x.untyped_storage(),
    "wait": lambda x: x.wait(),
    "unwrap": lambda x: lazyeng.unwrap({"a": [x]}),
    "unwrap of a module": lambda x: lazyeng.unwrap(module_of(x)),
    "synchronize": lambda x: synchronize(),
    "nonzero": lambda x: x.nonzero(),
}
BY_OTHERS = {  # the standard library reads: its frames are shown, as eager shows them
    "deepcopy": lambda x: copy.deepcopy(x),
    "pickle": lambda x: pickle.dumps(x),
}


def module_of(x):
    module = torch.nn.Module()
    module.register_buffer("x", x)
    return module


def caught_from(function, *args):
    try:
        function(*args)
    except Exception as error:
        return error
    pytest.fail("nothing was raised")


def names(tb):
    return [frame.name for frame in traceback.extract_tb(tb)]


def internal_frames(tb):
    inside = tuple(os.path.dirname(m.__file__) + os.sep for m in (lazyeng, torch))
    return [f for f in traceback.extract_tb(tb) if f.filename.startswith(inside)]


@pytest.mark.parametrize("name", READS)
def test_reader_sees_own_frames_only(name):
    error = caught_from(READS[name], failed())
    assert isinstance(error, LazyError) and isinstance(error, IndexError)
    assert names(error.__traceback__) == ["caught_from", "<lambda>"]
    assert names(error.__cause__.__traceback__)[-1] == "failed"
    assert not internal_frames(error.__cause__.__traceback__)


@pytest.mark.parametrize("name", BY_OTHERS)
def test_reader_in_the_standard_library(name):
    assert not internal_frames(caught_from(BY_OTHERS[name], failed()).__traceback__)


class Reading(torch.nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def hooked(module):
    module.register_forward_hook(lambda *_: None)
    return module


@torch.no_grad()
def reading_without_grad(x):
    return x.tolist()


class Synchronizing(torch.nn.Module):
    def forward(self, x):
        synchronize()


class ReadingFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.new_tensor(x.tolist())

    @staticmethod
    def backward(ctx, grad):
        return grad


def in_backward(x):
    def reading(grad):
        return grad * x.item()

    weight = torch.ones(1, requires_grad=True)
    loss = weight * 2
    loss.register_hook(reading)
    return weight, loss


def by_backward(x):
    in_backward(x)[1].backward()


def by_grad(x):
    weight, loss = in_backward(x)
    torch.autograd.grad(loss, weight)


def by_optimizer(x):
    def closure():
        return x.item()

    torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1).step(closure)


def by_checkpoint(x):
    def reading(y):
        return y * x.item()

    torch.utils.checkpoint.checkpoint(reading, torch.ones(1), use_reentrant=False)


def by_loader(x):
    class Reading:
        def __len__(self):
            return 1

        def __getitem__(self, i):
            return x.item()

    list(torch.utils.data.DataLoader(Reading()))


def by_plateau(x):
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
    torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer).step(x)


CALLED_BY_TORCH = {  # names of the functions of ours
    "autograd.Function": (ReadingFunction.apply, ["forward"]),
    "backward": (by_backward, ["by_backward", "reading"]),
    "grad": (by_grad, ["by_grad", "reading"]),
    "optimizer": (by_optimizer, ["by_optimizer", "closure"]),
    "checkpoint": (by_checkpoint, ["by_checkpoint", "reading"]),
    "DataLoader": (by_loader, ["by_loader", "__getitem__"]),
    "unique": (torch.unique, []),
    "pack_padded_sequence": (
        lambda x: torch.nn.utils.rnn.pack_padded_sequence(torch.ones(2, 1, 1), x),
        ["<lambda>"],
    ),
    "ReduceLROnPlateau": (by_plateau, ["by_plateau"]),
    "save": (lambda x: torch.save(x, io.BytesIO()), ["<lambda>"]),
}


@pytest.mark.parametrize("name", CALLED_BY_TORCH)
def test_functions_of_torch_hide_their_frames(name):
    function, ours = CALLED_BY_TORCH[name]
    assert names(caught_from(function, failed()).__traceback__) == ["caught_from", *ours]


BY_TORCH = {  # user code reads, which torch has called: name of the innermost function
    "module": (Reading(), "forward"),
    "modules": (torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Sequential(Reading())), "forward"),
    "hooks": (hooked(torch.nn.Sequential(hooked(Reading()))), "forward"),
    "synchronize in a module": (Synchronizing(), "forward"),
    "no_grad": (reading_without_grad, "reading_without_grad"),
}


@pytest.mark.parametrize("name", BY_TORCH)
def test_reader_that_torch_has_called(name, monkeypatch):
    function, innermost = BY_TORCH[name]
    assert names(caught_from(function, failed()).__traceback__) == ["caught_from", innermost]
    monkeypatch.setenv("LAZYENG_TRACEBACK", "full")
    assert internal_frames(caught_from(function, failed()).__traceback__)


def test_group_that_leaves_a_module():
    several = [failed(), failed()]
    error = caught_from(Synchronizing(), several)
    assert isinstance(error, ExceptionGroup)
    assert names(error.__traceback__) == ["caught_from", "forward"]


def test_other_exceptions_keep_torchs_frames_and_lines():
    def fails(x):
        raise ValueError("the user's own")

    module = torch.nn.Module()
    module.forward = fails
    for function in (module, torch.no_grad()(fails)):
        inside = internal_frames(caught_from(function, torch.ones(1)).__traceback__)
        assert inside
        for frame in inside:
            line = linecache.getline(frame.filename, frame.lineno)
            assert line[frame.colno : frame.end_colno].endswith("(*args, **kwargs)")


def test_compile_inlines_modules_with_hooks():
    """It goes through the call of a module only if there are hooks."""
    model = hooked(torch.nn.Sequential(hooked(torch.nn.Linear(2, 2))))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    x = torch.ones(1, 2)
    assert torch.equal(compiled(x), model(x))


@pytest.mark.parametrize("name", ["item", "unwrap", "synchronize"])
def test_reader_sees_all_frames_if_asked(name, monkeypatch):
    monkeypatch.setenv("LAZYENG_TRACEBACK", "full")
    assert internal_frames(caught_from(READS[name], failed()).__traceback__)


def test_block_hides_its_frames():
    def block():
        p = torch.zeros(2)
        with lazy("deferred"):
            p.copy_(p[torch.tensor([7, 7])])

    @lazy("deferred")
    def decorated():
        p = torch.zeros(2)
        p.copy_(p[torch.tensor([7, 7])])

    assert names(caught_from(block).__traceback__) == ["caught_from", "block"]
    assert names(caught_from(decorated).__traceback__) == ["caught_from"]


def test_decorated_generators_hide_their_frames():
    def generator():
        yield
        torch.zeros(2).copy_(torch.zeros(2)[torch.tensor([7, 7])]).tolist()

    async def asynchronous():
        for _ in generator():
            yield

    async def coroutine():
        async for _ in lazy("deferred")(asynchronous)():
            pass

    def run():
        lazy("deferred")(coroutine)().send(None)

    generated = caught_from(lambda: list(lazy("deferred")(generator)()))
    assert names(generated.__traceback__) == ["caught_from", "<lambda>", "generator"]
    assert names(caught_from(run).__traceback__) == [
        "caught_from", "run", "coroutine", "asynchronous", "generator",
    ]  # fmt: skip


def test_next_of_prefetch_hides_its_frames():
    def source():
        yield 1
        raise KeyError("source")

    def read(items):
        next(items)
        next(items)

    assert names(caught_from(read, lazyeng.prefetch(source())).__traceback__) == [
        "caught_from", "read",
    ]  # fmt: skip


def test_decorator_leaves_the_users_own_exception_alone():
    @lazy("deferred")
    def decorated():
        torch.nn.Linear(2, 2)(torch.ones(3))

    assert internal_frames(caught_from(decorated).__traceback__)


@pytest.mark.parametrize(("variable", "shown"), [("user", False), ("full", True)])
def test_stacks_full_shows_internal_frames_of_the_creation(variable, shown, monkeypatch):
    monkeypatch.setenv("LAZYENG_STACKS", variable)
    with lazy("deferred"):
        x = torch.nn.Embedding(2, 2)(wrap(torch.tensor([9])))
    error = caught_from(x.tolist)
    assert bool(internal_frames(error.__cause__.__traceback__)) == shown
    assert any(f.name == "forward" for f in error.creation_stack) == shown
    assert f"{HERE}:" in error.__notes__[0]  # the user's line in both


# ---- backward


def test_backward_failure_names_both_lines(lazy_mode):
    program = failing_programs.in_backward
    with lazy(lazy_mode):
        grad = program(wrap)
    error = caught_from(grad.tolist)
    forward, backward = "loss = (copied(x) * 2).sum()", "loss.backward()"
    lines = [frame.line for frame in error.creation_stack if frame.name == program.__name__]
    assert lines == [forward, backward]
    first = program.__code__.co_firstlineno
    place = os.path.basename(failing_programs.__file__)
    assert f"created at {place}:{first + 2}" in error.__notes__[0]
    assert error.__notes__[-1].startswith(f"in the backward pass started at {place}:{first + 3}, ")
    for part in (forward, backward):
        assert part in "".join(traceback.format_exception(error))


def test_double_backward_failure_names_the_forward_line():
    with lazy("deferred"):
        grad = failing_programs.in_double_backward(wrap)
    error = caught_from(grad.tolist)
    lines = [f.line for f in error.creation_stack if f.name == "in_double_backward"]
    assert "twice(x)" in lines[0] and lines[-1] == "(grad * 2).sum().backward()"


def test_backward_in_another_thread_and_after_many_ops():
    import threading

    with lazy("deferred"):
        x = wrap(torch.ones(2)).requires_grad_()
        loss = (failing_kernels.copied(x) * 2).sum()  # FORWARD
        y = x
        for _ in range(1000):
            y = y * 1

    def run():
        with lazy("deferred"):
            loss.backward()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    error = caught_from(x.grad.tolist)
    assert any("# FORWARD" in str(frame.line) for frame in error.creation_stack)


# ---- blocks


def test_inner_block_does_not_raise_what_the_outer_one_wrote():
    p, q = torch.zeros(2), torch.zeros(2)
    with pytest.raises(IndexError), lazy("deferred"):
        p.copy_(p[torch.tensor([7, 7])])
        with lazy("deferred"):
            q.add_(1)
        reached = True
    assert reached and q.tolist() == [1.0, 1.0]


def test_inner_block_raises_its_own():
    p = torch.zeros(2)
    with lazy("deferred"):
        with pytest.raises(IndexError), lazy("async"):
            p.copy_(p[torch.tensor([7, 7])])
    synchronize()


def test_sibling_blocks_raise_each_its_own():
    p, q = torch.zeros(2), torch.zeros(2)
    for tensor, index in ((p, 7), (q, 9)):
        with pytest.raises(IndexError, match=f"index {index}"), lazy("deferred"):
            tensor.copy_(tensor[torch.tensor([index, index])])


# ---- warnings of kernels


def std_of_one():
    with lazy("deferred"):
        return wrap(torch.ones(1)).std()  # WARNS


def warned_by(function):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function()
    return caught


@pytest.mark.parametrize("read", [lambda x: x.item(), lambda x: synchronize()])
def test_warning_of_a_kernel_comes_through_warnings(read):
    (expected,) = warned_by(lambda: torch.ones(1).std())
    x = std_of_one()
    (got,) = warned_by(lambda: read(x))
    assert str(got.message) == str(expected.message) and got.category is expected.category
    assert got.filename == __file__
    with open(__file__) as file:
        assert "# WARNS" in file.read().splitlines()[got.lineno - 1]


@pytest.mark.parametrize("file", ["/nowhere/generated.py", "<string>"])
def test_warning_of_generated_code_is_shown_once(file):
    """By default. Its file is that of no module."""
    source = "def f(x): return torch.var(x, dim=1)"
    scope = {"torch": torch}
    exec(compile(source, f"{file}{time.time_ns()}", "exec"), scope)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(5):
            scope["f"](wrap(torch.ones(3, 1))).tolist()
    assert len(caught) == 1


def test_warning_is_not_on_stderr(capfd):
    assert len(warned_by(lambda: std_of_one().item())) == 1
    assert "degrees of freedom" not in capfd.readouterr().err


def test_warning_made_an_error_is_raised_at_the_read():
    x = std_of_one()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="degrees of freedom"):
            x.item()
    assert torch.tensor(x.item()).isnan()  # the tensor is not to blame


def test_warning_made_an_error_names_the_op_and_its_line():
    x = std_of_one()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning) as caught:
            x.item()
    error = caught.value
    assert isinstance(error, LazyError) and error.op == "aten.std.correction"
    assert (
        "aten.std.correction(float32[1]@cpu), created at test_errors_reader.py:"
        in error.__notes__[0]
    )
    created = traceback.extract_tb(error.__cause__.__traceback__)[-1]
    assert "# WARNS" in created.line and error.creation_stack[-1].lineno == created.lineno


def test_warning_made_an_error_leaves_the_writes_of_a_block_complete():
    p, q = torch.zeros(1), torch.zeros(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="degrees of freedom"), lazy("deferred"):
            p.copy_(std_of_one())
            q.add_(1)
    assert q.tolist() == [1.0] and p.isnan().all()
    q.data_ptr()  # nothing guards its memory any more


def test_warning_that_torch_says_once_is_not_said_to_a_stand_in():
    """The kernel that tells the metadata on memory of ours warns of nothing, and must not be the
    one time. In a process of its own: once is once in a process."""
    script = """
        import torch, lazyeng
        x = lazyeng.wrap(torch.arange(9.0).view(3, 3)).t()
        for _ in range(3):
            torch.searchsorted(x, x)
    """
    done = alone(script)
    assert done.returncode == 0 and done.stderr.count("input value tensor is non-contiguous") == 1


def test_warning_nobody_reads_comes_at_exit():
    script = """
        import torch, lazyeng
        x = lazyeng.wrap(torch.ones(1)).std()
    """
    done = alone(script)
    assert done.returncode == 0 and done.stderr.count("degrees of freedom") == 1
    assert "<string>:3: UserWarning" in done.stderr
