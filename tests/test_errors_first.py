"""Deferred failures, first part: original type and message, the creation line, nothing lost.

Each failing program is first run eagerly for its type and message; lazily both have to be the same.
"""

import inspect

import pytest
import torch
import torch.nn.functional as F

import lazyeng
from lazyeng import LazyError, lazy, synchronize, wrap
from tests.support.failures import raised_by, text_of
from tests.support.processes import IMPORTS, alone

# Programs that fail at run time: their arguments are well-formed, the values are not.
RUNTIME = {
    "index": lambda side: side(torch.ones(3))[side(torch.tensor([7]))],
    "gather": lambda side: side(torch.ones(2, 2)).gather(0, side(torch.tensor([[5, 0]]))),
    "index_select": lambda side: side(torch.ones(3)).index_select(0, side(torch.tensor([-9]))),
    "embedding": lambda side: F.embedding(side(torch.tensor([11])), side(torch.ones(3, 2))),
    "cross_entropy": lambda side: F.cross_entropy(side(torch.ones(1, 3)), side(torch.tensor([8]))),
    "one_hot": lambda side: F.one_hot(side(torch.tensor([5])), 3),
    "cholesky": lambda side: torch.linalg.cholesky(side(-torch.eye(2))),
    "inverse": lambda side: torch.linalg.inv(side(torch.zeros(2, 2))),
    "multinomial": lambda side: torch.multinomial(side(torch.tensor([-1.0, 2.0])), 1),
    "bernoulli": lambda side: torch.bernoulli(side(torch.tensor([3.0]))),
    "scatter": lambda side: side(torch.ones(3)).scatter(0, side(torch.tensor([6])), 1.0),
    "take": lambda side: side(torch.ones(3)).take(side(torch.tensor([10]))),
    "integer division": lambda side: side(torch.tensor([1])) // side(torch.tensor([0])),
    "repeat_interleave": lambda side: side(torch.ones(2)).repeat_interleave(
        side(torch.tensor([-1, 1]))),
}  # fmt: skip


def sgd_without_momentum(side) -> None:
    """Given a buffer all the same, after a step of the same lists that has a momentum."""
    for momentum in (0.9, 0.0):
        parameters, gradients, buffers = ([side(torch.ones(300))] for _ in range(3))
        torch._fused_sgd_(parameters, gradients, buffers, weight_decay=0.0, momentum=momentum,
                          lr=0.1, dampening=0.0, nesterov=False, maximize=False,
                          is_first_step=False)  # fmt: skip


# Programs whose arguments are wrong: raised at the call, also where torch's meta kernel is laxer.
ARGUMENTS = {
    "a buffer without momentum": sgd_without_momentum,
    "mm shapes": lambda s: s(torch.ones(2, 3)) @ s(torch.ones(2, 3)),
    "mm dtypes": lambda s: torch.mm(s(torch.ones(2, 2)), s(torch.ones(2, 2).double())),
    "matmul dtypes": lambda s: s(torch.ones(2, 2)) @ s(torch.ones(2, 2).double()),
    "bmm dims": lambda s: torch.bmm(s(torch.ones(2, 2)), s(torch.ones(2, 2))),
    "add shapes": lambda s: s(torch.ones(2)) + s(torch.ones(3)),
    "add_ grows": lambda s: s(torch.ones(1)).add_(s(torch.ones(3))),
    "bitwise_and of floats": lambda s: s(torch.ones(2)) & s(torch.ones(2)),
    "bitwise_not of floats": lambda s: ~s(torch.ones(2)),
    "dim out of range": lambda s: s(torch.ones(2)).sum(5),
    "softmax dim": lambda s: s(torch.ones(2)).softmax(3),
    "view": lambda s: s(torch.ones(6)).view(4),
    "select": lambda s: s(torch.ones(3))[7],
    "too many indices": lambda s: s(torch.ones(3))[0, 0],
    "in place int by float": lambda s: s(torch.ones(2, dtype=torch.int64)).add_(1.5),
    "mean of integers": lambda s: s(torch.tensor([1, 2])).mean(),
    "cat shapes": lambda s: torch.cat([s(torch.ones(2, 2)), s(torch.ones(3, 3))]),
    "conv channels": lambda s: F.conv2d(s(torch.ones(1, 2, 4, 4)), s(torch.ones(1, 3, 2, 2))),
    "linear shapes": lambda s: F.linear(s(torch.ones(1, 3)), s(torch.ones(2, 4))),
    "out dtype": lambda s: torch.add(s(torch.ones(2)), 1, out=s(torch.ones(2, dtype=torch.int64))),
    "expand": lambda s: s(torch.ones(2)).expand(3),
    "index dtype": lambda s: s(torch.ones(3))[s(torch.ones(1))],
    "gather dtype": lambda s: s(torch.ones(3)).gather(0, s(torch.ones(1))),
    "addmm of a summand that does not fit": lambda s: torch.addmm(
        s(torch.ones(3)), s(torch.ones(3, 5)), s(torch.ones(5, 4))),
    "linear with such a bias": lambda s: F.linear(
        s(torch.ones(3, 5)), s(torch.ones(4, 5)), s(torch.ones(2, 4))),
    "hardswish_ of integers": lambda s: F.hardswish(
        s(torch.ones(160, 160, dtype=torch.int64)), inplace=True),
    "mask of bytes": lambda s: s(torch.ones(160, 160)).masked_fill_(
        s(torch.ones(160, 160, dtype=torch.uint8)), 0.0),
    "classes of int32": lambda s: F.multi_margin_loss(
        s(torch.ones(160, 160)), s(torch.ones(160, dtype=torch.int32))),
    "sort of complex numbers": lambda s: s(torch.ones(160, 160, dtype=torch.complex64)).sort(),
    "values of another dtype put": lambda s: s(torch.ones(160, 160)).index_put(
        (s(torch.zeros(160, dtype=torch.int64)),), s(torch.ones(160, 160).double())),
    "where dtype": lambda s: torch.where(s(torch.ones(2)), 1.0, 2.0),
    "neg of bool": lambda s: -s(torch.tensor([True])),
    "sub of bools": lambda s: s(torch.tensor([True])) - s(torch.tensor([True])),
    "clamp without bounds": lambda s: s(torch.ones(2)).clamp(),
    "dropout probability": lambda s: F.dropout(s(torch.ones(2)), 2.0),
    "reshape": lambda s: s(torch.ones(5)).reshape(2, -1),
    "split sizes": lambda s: s(torch.ones(5)).split([1, 2]),
    "backward of a vector": lambda s: (s(torch.ones(2)).requires_grad_() * 2).backward(),
    "leaf in place": lambda s: s(torch.ones(2)).requires_grad_().add_(1),
    "not a tensor": lambda s: s(torch.ones(2)) + "text",
    "unknown attribute": lambda s: s(torch.ones(2)).no_such_method(),
}  # fmt: skip


def eager_error(program):
    return raised_by(lambda: program(lambda x: x))


def same(got, expected):
    assert isinstance(got, type(expected))
    assert type(got).__name__ == type(expected).__name__
    # A message that names the class of its operand names the class that it has.
    assert str(got).replace("LazyTensor", "Tensor") == str(expected)


def failed(mode="deferred"):
    """A failing tensor whose creation line says MARKER."""
    with lazy(mode):
        return wrap(torch.ones(3))[wrap(torch.tensor([7]))]  # MARKER


# --- type, message, place


@pytest.mark.parametrize("name", RUNTIME)
def test_run_time_failure(name, mode):
    program, expected = RUNTIME[name], eager_error(RUNTIME[name])
    with lazy(mode), pytest.raises(type(expected)) as caught:
        program(wrap).tolist()
    same(caught.value, expected)
    # What data-dependent ops return has a shape that depends on values: they raise at the call.
    if mode != "sync" and name not in ("one_hot", "repeat_interleave"):
        assert isinstance(caught.value, LazyError)


@pytest.mark.parametrize("name", RUNTIME)
def test_run_time_failure_of_plain_tensors_in_a_block(name, mode):
    program, expected = RUNTIME[name], eager_error(RUNTIME[name])
    with lazy(mode), pytest.raises(type(expected)) as caught:
        program(lambda x: x).tolist()
    same(caught.value, expected)


@pytest.mark.parametrize("name", ["index", "gather", "embedding", "cholesky", "take"])
def test_recording_a_failure_does_not_raise(name, lazy_mode):
    with lazy(lazy_mode):
        bad = RUNTIME[name](wrap)
    with pytest.raises(Exception):  # the type is tested above
        bad.wait()


@pytest.mark.parametrize("name", ["index", "gather", "embedding", "take"])
def test_sync_mode_raises_at_the_call(name):
    expected = eager_error(RUNTIME[name])
    with lazy("sync"), pytest.raises(type(expected)) as caught:
        RUNTIME[name](wrap)
    same(caught.value, expected)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_wrong_argument_is_raised_at_the_call(name, mode):
    program, expected = ARGUMENTS[name], eager_error(ARGUMENTS[name])
    with lazy(mode), pytest.raises(type(expected)) as caught:
        program(wrap)
    same(caught.value, expected)
    synchronize()  # nothing was recorded that fails later


@pytest.mark.parametrize("name", ARGUMENTS)
def test_wrong_argument_of_plain_tensors_in_a_block(name):
    program, expected = ARGUMENTS[name], eager_error(ARGUMENTS[name])
    with lazy("deferred"), pytest.raises(type(expected)) as caught:
        program(lambda x: x)
    same(caught.value, expected)


READS = {
    "item": lambda x: x[0].item(),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "unbound tolist": lambda x: torch.Tensor.tolist(x),
    "unbound numpy": lambda x: torch.Tensor.numpy(x),
    "unbound apply_": lambda x: torch.Tensor.apply_(x, float),
    "bool": lambda x: bool((x > 0).all()),
    "format": lambda x: f"{x[0]:.2f}",
    "wait": lambda x: x.wait(),
    "unwrap": lambda x: lazyeng.unwrap(x),
    "data_ptr": lambda x: x.data_ptr(),
    "synchronize": lambda x: synchronize(),
    "deepcopy": lambda x: __import__("copy").deepcopy(x),
    "pickle": lambda x: __import__("pickle").dumps(x),
    "dlpack": lambda x: torch.from_dlpack(x),
    "equal": lambda x: torch.equal(x, x + 1),
    "nonzero": lambda x: x.nonzero(),
}


@pytest.mark.parametrize("name", READS)
def test_each_reading_point_raises(name, lazy_mode):
    expected = eager_error(RUNTIME["index"])
    bad = failed(lazy_mode)
    with pytest.raises(IndexError) as caught:
        READS[name](bad)
    same(caught.value, expected)


def test_creation_line_is_in_the_traceback():
    bad = failed()
    with pytest.raises(IndexError) as caught:
        bad.tolist()
    text = text_of(caught.value)
    assert "# MARKER" in text and "in failed" in text and "test_errors_first.py" in text


def test_notes_name_op_and_line():
    bad = failed()
    with pytest.raises(IndexError) as caught:
        bad.tolist()
    notes = " ".join(caught.value.__notes__)
    assert "aten.index" in notes and "test_errors_first.py" in notes


def test_creation_line_of_each_of_many():
    with lazy("deferred"):
        x, i = wrap(torch.ones(3)), wrap(torch.tensor([7]))
        first = x[i]  # FIRST
        second = x.take(i)  # SECOND
    for bad, mark, other in ((second, "# SECOND", "# FIRST"), (first, "# FIRST", "# SECOND")):
        with pytest.raises(IndexError) as caught:
            bad.wait()
        text = text_of(caught.value.__cause__)
        assert mark in text and other not in text


def test_pytest_match_sees_the_message():
    with pytest.raises(IndexError, match="index 7 is out of bounds"):
        failed().tolist()


# --- dependents, siblings, independents


def test_dependents_carry_the_same_failure(lazy_mode):
    with lazy(lazy_mode):
        bad = failed(lazy_mode)
        end = (bad * 2).relu().sum()
    with pytest.raises(IndexError) as caught:
        end.item()
    same(caught.value, eager_error(RUNTIME["index"]))
    assert "# MARKER" in text_of(caught.value)


def test_independent_tensors_stay_readable(lazy_mode):
    with lazy(lazy_mode):
        x = wrap(torch.ones(3))
        bad, good = x[wrap(torch.tensor([7]))], x + 1
    assert good.tolist() == [2.0] * 3
    with pytest.raises(IndexError):
        bad.wait()
    assert x.tolist() == [1.0] * 3


def test_all_outputs_of_a_failed_op_fail():
    with lazy("deferred"):
        q, r = torch.linalg.cholesky_ex(wrap(-torch.eye(2)), check_errors=True)
    with pytest.raises(torch.linalg.LinAlgError):
        q.tolist()
    del r


def test_long_chain_keeps_a_short_traceback():
    def depth(n):
        with lazy("deferred"):
            x = failed()
            for _ in range(n):
                x = x + 1
        with pytest.raises(IndexError) as caught:
            x.wait()
        chain, error = 0, caught.value
        while error.__cause__ is not None:
            chain, error = chain + 1, error.__cause__
        return chain, len(text_of(caught.value).splitlines())

    assert depth(1)[0] == depth(300)[0]
    assert abs(depth(3)[1] - depth(300)[1]) <= 2


def test_write_to_a_failed_tensor_keeps_it_failed():
    with lazy("deferred"):
        bad = failed()
        bad.add_(1)
    with pytest.raises(IndexError):
        bad.wait()


def test_failed_in_place_operand_fails_the_target():
    with lazy("deferred"):
        x = wrap(torch.ones(1))
        x.add_(failed())
    with pytest.raises(IndexError):
        x.wait()


def test_failure_in_backward(lazy_mode):
    def program(side):
        x = side(torch.ones(2, 2)).requires_grad_()
        x.gather(0, side(torch.tensor([[0, 9]]))).sum().backward()
        return x.grad

    expected = eager_error(program)
    with lazy(lazy_mode), pytest.raises(type(expected)) as caught:
        program(wrap).tolist()
    same(caught.value, expected)


def test_random_generator_is_not_poisoned(lazy_mode):
    """MXNet let one failed draw fail all later ones."""
    with lazy(lazy_mode):
        bad = torch.multinomial(wrap(torch.tensor([-1.0, 1.0])), 1)
        good = F.dropout(wrap(torch.ones(4)), 0.5)
    assert good.shape == (4,) and len(good.tolist()) == 4
    with pytest.raises(RuntimeError):
        bad.wait()


# --- sticky, cleared, reported once


def test_failure_is_sticky(lazy_mode):
    bad = failed(lazy_mode)
    texts = []
    for _ in range(3):
        with pytest.raises(IndexError) as caught:
            bad.tolist()
        texts.append((caught.value, len(text_of(caught.value).splitlines())))
    assert len({id(e) for e, _ in texts}) == 3  # a fresh exception each time
    assert len({n for _, n in texts}) == 1  # that does not grow
    assert len({e.root_id for e, _ in texts}) == 1


@pytest.mark.parametrize("overwrite", [
    lambda x: x.fill_(5), lambda x: x.copy_(torch.full((1,), 5.0)), lambda x: x.zero_().add_(5),
    lambda x: torch.add(wrap(torch.ones(1)), 4, out=x),
    lambda x: (torch._foreach_zero_([x]), x.add_(5)),
])  # fmt: skip
def test_full_overwrite_clears(overwrite, lazy_mode):
    with lazy(lazy_mode):
        bad = failed(lazy_mode)
        overwrite(bad)
        assert bad.tolist() == [5.0]
    with pytest.raises(IndexError):
        synchronize()  # the failure itself is not forgotten


@pytest.mark.parametrize("move", [
    lambda x: x.set_(wrap(torch.full((2,), 5.0))), lambda x: x.set_(torch.full((2,), 5.0)),
    lambda x: x.set_(torch.full((4,), 5.0).untyped_storage(), 1, (2,)),
    lambda x: (x.set_(), x.resize_(2).fill_(5)),
])  # fmt: skip
def test_other_memory_is_no_failure(move, lazy_mode):
    """set_ lets go of the memory that failed; views of it stay failed."""
    with lazy(lazy_mode):
        bad = failed(lazy_mode)
        view = bad[:1]
        move(bad)
        bad.add_(1)
        assert bad.tolist() == [6.0, 6.0] and (bad * 2).tolist() == [12.0, 12.0]
        with pytest.raises(IndexError):
            view.tolist()


def test_what_cannot_take_other_memory_stays_failed(lazy_mode):
    with lazy(lazy_mode):
        bad, good = failed(lazy_mode), wrap(torch.ones(2))
        with pytest.raises(RuntimeError, match="Could not set tensor"):
            bad.set_(wrap(torch.ones(2, dtype=torch.int64)))
        with pytest.raises(RuntimeError, match="overflowed"):
            bad.set_(torch.ones(2).untyped_storage(), 0, (2,), (-1,))
        for call in (bad.tolist, lambda: bad.set_(bad), lambda: good.set_(bad)):
            with pytest.raises(IndexError):
                call()
        assert bad.shape == (1,)


def test_partial_overwrite_does_not_clear():
    with lazy("deferred"):
        bad = wrap(torch.ones(3))[wrap(torch.tensor([7, 0, 0]))]
        bad[0] = 5
    with pytest.raises(IndexError):
        bad.tolist()


def test_synchronize_raises_one_as_itself():
    kept = failed()
    with pytest.raises(IndexError) as caught:
        synchronize()
    assert not isinstance(caught.value, BaseExceptionGroup)
    synchronize()  # reported: not again
    with pytest.raises(IndexError):  # but reads of it do
        kept.wait()


def test_synchronize_raises_several_as_a_group():
    with lazy("deferred"):
        x = wrap(torch.ones(3))
        first = x[wrap(torch.tensor([7]))]
        second = torch.linalg.cholesky(wrap(-torch.eye(2)))
        third = first + 1  # no root of its own
    with pytest.raises(ExceptionGroup) as caught:
        synchronize()
    assert isinstance(caught.value, LazyError)
    assert [type(e).__name__ for e in caught.value.exceptions] == ["IndexError", "_LinAlgError"]
    synchronize()
    del second, third


def test_read_failures_are_not_raised_again_by_synchronize():
    bad = failed()
    with pytest.raises(IndexError):
        bad.wait()
    synchronize()


def test_caught_sync_failure_is_not_raised_again():
    with lazy("sync"), pytest.raises(IndexError):
        failed("sync")
    synchronize()


def test_other_reads_do_not_raise_it():
    """Nothing is raised in the wrong place."""
    bad = failed("async")
    x = wrap(torch.ones(3)) + 1
    assert x.tolist() == [2.0] * 3
    assert x.wait() is x and bool((x == 2).all())
    assert lazyeng.engine_stats()["pending_ops"] >= 0
    repr(bad)
    with pytest.raises(IndexError):
        bad.wait()


# --- unseen failures


def run(body):
    return alone(body, head=IMPORTS, timeout=120)


def test_unseen_failure_warns_at_exit(lazy_mode):
    done = run(f"""
        with lazy("{lazy_mode}"):
            bad = wrap(torch.ones(3))[wrap(torch.tensor([7]))]
        print("end of program")
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "end of program\n"
    assert done.stderr.count("index 7 is out of bounds") == 1
    assert (
        "aten.index" in done.stderr and "IndexError" in done.stderr and "<string>:5" in done.stderr
    )


def test_dropped_failure_warns_once():
    done = run("""
        with lazy("deferred"):
            wrap(torch.ones(3))[wrap(torch.tensor([7]))]
        (wrap(torch.ones(3)) + 1).wait()
    """)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("index 7 is out of bounds") == 1


def test_seen_failure_does_not_warn():
    done = run("""
        bad = wrap(torch.ones(3))[wrap(torch.tensor([7]))]
        try: bad.wait()
        except IndexError: pass
    """)
    assert (done.returncode, done.stderr) == (0, "")


def test_uncaught_failure_ends_the_program_with_its_traceback():
    done = run("""
        def make():
            return wrap(torch.ones(3))[wrap(torch.tensor([7]))]
        make().tolist()
    """)
    assert done.returncode == 1
    assert "IndexError: index 7 is out of bounds" in done.stderr
    assert "in make" in done.stderr


# ---- paths, checks, lines of the forward pass


def test_path_names_every_op():
    y = failed("deferred")
    for _ in range(12):
        y = y + 1
    with pytest.raises(IndexError) as caught:
        y.tolist()
    names = [name.partition("#")[0] for name in caught.value.path]
    assert names == ["index", *["add"] * 12]
    (path,) = [note for note in caught.value.__notes__ if note.startswith("path: ")]
    assert path.count("->") == 8
    assert path.endswith("… (+5)")


def test_a_very_long_path_has_its_ends():
    y = failed("deferred")
    for _ in range(5000):
        y = y + 1
    with pytest.raises(IndexError) as caught:
        y.tolist()
    numbers = [int(name.partition("#")[2]) for name in caught.value.path]
    assert len(numbers) == 1001
    assert numbers[-1] - numbers[0] == 5000
    assert caught.value.__notes__[1].endswith("… (+4993)")


def test_synchronize_tells_the_op_as_path():
    bad = failed("deferred")
    with pytest.raises(IndexError) as caught:
        synchronize()
    assert caught.value.path == [f"index#{caught.value.root_id}"]
    del bad


@pytest.mark.parametrize("op", [lambda x: torch.max(x, 0), torch.sort, torch.aminmax])
def test_a_failed_check_fails_what_was_made_together(op, lazy_mode):
    with lazy(lazy_mode):
        checked = op(wrap(torch.zeros(1)))
        torch._assert_async(checked[0])
        other = op(wrap(torch.zeros(1)))
    for result in checked:
        with pytest.raises(RuntimeError, match="nonzero"):
            result.tolist()
    for result in other:
        result.tolist()
    synchronize()  # the one failure has been told


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return torch.ops.lazyeng_test_first.boom(grad)


@pytest.fixture(scope="module")
def boom():
    @torch.library.custom_op("lazyeng_test_first::boom", mutates_args=())
    def boom(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("boom")

    boom.register_fake(torch.empty_like)

    @torch.library.custom_op("lazyeng_test_first::square", mutates_args=())
    def square(x: torch.Tensor) -> torch.Tensor:
        return x * x

    square.register_fake(torch.empty_like)
    square.register_autograd(lambda ctx, grad: boom(grad))
    return square


def notes_of(x):
    with pytest.raises(ValueError, match="boom") as caught:
        x.grad.tolist()
    return caught.value.__notes__


def line_of(function, text):
    lines, first = inspect.getsourcelines(function)
    return first + next(n for n, line in enumerate(lines) if text in line)


def test_forward_line_of_an_autograd_function(boom):
    """Also when its forward is recorded without the dispatcher, from the second pass on."""
    for _ in range(3):
        with lazy():
            x = wrap(torch.ones(3)).requires_grad_()
            y = Doubled.apply(x)
            y.sum().backward()
        created, backward = notes_of(x)
        assert created.endswith(f":{line_of(Doubled.forward, 'return x * 2')}")
        assert backward.startswith("in the backward pass started at test_errors_first.py:")
        assert backward.endswith(
            f", called at test_errors_first.py:{line_of(Doubled.backward, 'boom(')}"
        )


def test_forward_line_before_many_others(boom):
    """More ops than the table of lines has places at first."""
    with lazy():
        x = wrap(torch.ones(1)).requires_grad_()
        y = boom(x)
        for _ in range(70_000):
            y = y + 1
        y.sum().backward()
    created, _ = notes_of(x)
    assert created.endswith(f":{line_of(test_forward_line_before_many_others, 'y = boom(x)')}")
