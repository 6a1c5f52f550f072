"""Plain tensors and random numbers in a lazy() block, and after it."""

import contextlib
import threading

import numpy as np
import pytest
import torch

from lazyeng import LazyTensor, lazy, unwrap, wrap

# --- writes to plain tensors


def test_in_place_writes_are_complete_at_exit(mode):
    x = torch.zeros(1000)
    with lazy(mode):
        for _ in range(50):
            x.add_(1)
        x[3:5] = 7
    assert type(x) is torch.Tensor
    array = x.numpy()
    assert array[0] == 50 and array[3] == 7 and array[5] == 50


def test_in_place_returns_the_plain_tensor(mode):
    x = torch.zeros(2)
    with lazy(mode):
        assert x.add_(1) is x
        view = x[0]
        view.add_(1)
    assert x.tolist() == [2.0, 1.0]


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_plain_tensor_grows_again_and_again(mode):
    """Its storage moves while ops on it are pending, or have just ended."""
    for _ in range(20):
        x = torch.zeros(1)
        with lazy(mode):
            for n in range(2, 40):
                torch.add(torch.full((n * 100,), float(n)), 1, out=x)
                x.add_(1)
                x.mul_(2)
        assert torch.equal(x, torch.full((3900,), 82.0))


def test_out_argument_of_a_plain_tensor(mode):
    out = torch.empty(0)
    with lazy(mode):
        assert torch.add(torch.ones(3), 1, out=out) is out
        assert out.shape == (3,)
    assert out.numpy().tolist() == [2.0, 2.0, 2.0]


def test_plain_write_from_a_lazy_operand(mode):
    x = torch.zeros(3)
    with lazy(mode):
        x.copy_(wrap(torch.ones(3)) * 5)
    assert x.tolist() == [5.0, 5.0, 5.0]


def test_optimizer_step_on_plain_parameters(mode):
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    with lazy(mode):
        (weight * 2).sum().backward()
        optimizer.step()
    assert type(weight) is torch.nn.Parameter
    assert weight.detach().numpy().tolist() == [0.0, 0.0]


def test_version_counter_counts_recorded_writes(mode):
    x = torch.zeros(2)
    before = x._version
    with lazy(mode):
        x.add_(1)
        assert x._version == before + 1


def test_inner_block_exit_completes_its_writes():
    x = torch.zeros(2)
    with lazy("deferred"):
        with lazy("deferred"):
            x.add_(1)
        y = x + 1
    assert x.tolist() == [1.0, 1.0] and y.tolist() == [2.0, 2.0]


# --- plain memory that is not there yet, or changed behind a read


READERS = {
    "item": lambda x: x[0].item(),
    "tolist": lambda x: x.tolist()[0],
    "numpy": lambda x: x.numpy()[0],
    "asarray": lambda x: np.asarray(x)[0],
    "float": lambda x: float(x[0]),
    "bool": lambda x: 1.0 if bool((x == 1).all()) else "stale",
    "dlpack": lambda x: np.from_dlpack(x)[0],
    "storage": lambda x: np.frombuffer(bytes(x.untyped_storage()), np.float32)[0],
    "clone": lambda x: x.clone().tolist()[0],
    "repr": lambda x: 1.0 if "1." in repr(x) else "stale",
    "unwrap": lambda x: unwrap(x)[0].item(),
    "deepcopy": lambda x: __import__("copy").deepcopy(x).tolist()[0],
}


@pytest.mark.parametrize("name", READERS)
def test_pending_write_to_a_plain_tensor_is_never_stale(name, lazy_mode):
    """Inside the block the reader waits, or says clearly that it cannot; zero would be stale."""
    x = torch.zeros(1000)
    with lazy(lazy_mode):
        x.add_(1)
        try:
            value = READERS[name](x)
        except (RuntimeError, BufferError, ValueError) as error:
            assert len(str(error)) > 20  # a sentence, not a code
            value = 1.0
    assert value == 1.0
    assert x.tolist()[0] == 1.0


def test_data_ptr_of_a_pending_write(lazy_mode):
    """The address may be had; what is behind it must then be complete."""
    import ctypes

    x = torch.zeros(4)
    with lazy(lazy_mode):
        x.add_(1)
        try:
            value = ctypes.c_float.from_address(x.data_ptr()).value
        except RuntimeError:
            value = 1.0
    assert value == 1.0


@pytest.mark.parametrize(
    "size, compute, change, expected",
    [
        (3, lambda x: x + 1, lambda x: x.fill_(100), 2.0),
        (3, lambda x: wrap(x) + 1, lambda x: x.mul_(50), 2.0),
        (4, lambda x: x[1:] * 3, lambda x: x[1:2].fill_(9), 3.0),
        (4, lambda x: x + 1, lambda x: x.resize_(100_000), 2.0),
    ],
    ids=["written", "wrapped", "a view", "resized"],
)
def test_a_source_that_changes_behind_a_pending_read(size, compute, change, expected):
    """Outside of the block the change is made at once, eagerly: the read must not see it."""
    x = torch.ones(size)
    with lazy("deferred"):
        y = compute(x)
    change(x)
    try:
        value = y.tolist()
    except RuntimeError as error:
        assert "was changed in place" in str(error)
    else:
        assert value == [expected] * y.numel()


def test_source_freed_behind_a_pending_read():
    x = torch.ones(100_000)
    with lazy("deferred"):
        y = x + 1
    del x
    other = torch.full((100_000,), -7.0)  # would take the memory
    assert y.sum().item() == 200_000.0
    del other


@pytest.mark.parametrize("lazily", [True, False])
def test_threads_that_record_to_one_tensor_do_not_interfere(lazily, mode):
    """Which write a read follows is a matter of luck; not that none is lost, and none refused."""
    plain = torch.zeros(64)
    x = wrap(plain) if lazily else plain
    begin, failed = threading.Barrier(4), []

    def work():
        try:
            begin.wait()
            with lazy(mode):
                for _ in range(300):
                    x.add_(1)
                    y = x[:1] * 2
                y.tolist()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed[0]
    assert x.tolist() == [1200] * 64


def test_recorded_change_after_a_recorded_read_is_in_order(mode):
    x = torch.ones(3)
    with lazy(mode):
        y = x + 1
        x.fill_(100)
        z = x + 1
    assert (y.tolist(), z.tolist(), x.tolist()) == ([2.0] * 3, [101.0] * 3, [100.0] * 3)


# --- what torch does to plain tensors without an op


def test_data_of_a_plain_tensor_is_set_to_a_recorded_result(mode):
    p = torch.nn.Parameter(torch.ones(2))
    with lazy(mode):
        p.data = p.data * 0.5
        p.data.add_(1)
        assert type(p) is torch.nn.Parameter and type(p.data) is torch.Tensor
        assert (p * 2).tolist() == [3.0, 3.0]
    assert p.tolist() == [1.5, 1.5]


def test_data_set_to_a_failed_result_raises_its_failure(lazy_mode):
    p = torch.ones(1)
    with lazy(lazy_mode):
        bad = torch.ones(2).take(torch.tensor([5]))
        with pytest.raises(IndexError):
            p.data = bad
    assert p.tolist() == [1.0]


@pytest.mark.parametrize("convert", [
    lambda m: m.double(), lambda m: m.to(torch.bfloat16), lambda m: m.cpu(),
    lambda m: m.share_memory(), lambda m: m._apply(lambda t: t * 2),
])  # fmt: skip
def test_module_conversions_keep_plain_parameters(mode, convert):
    """Also those that have gradients: an optimizer holds the parameters."""

    def program():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
        before = list(model.parameters())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        model(torch.ones(4, 2)).square().sum().backward()
        optimizer.step()
        convert(model)
        assert all(a is b for a, b in zip(before, model.parameters(), strict=True))
        dtype = before[0].dtype
        assert all(p.grad.dtype == dtype for p in before)
        model(torch.ones(4, 2, dtype=dtype)).sum().backward()
        optimizer.step()
        return before

    expected = program()
    with lazy(mode):
        found = program()
    for a, b in zip(expected, found, strict=True):
        assert type(b) is torch.nn.Parameter
        torch.testing.assert_close(b, a)


@pytest.mark.parametrize(
    "call",
    [lambda g: g.get_offset(), lambda g: g.set_offset(0), lambda g: g.graphsafe_set_state(g)],
    ids=["get_offset", "set_offset", "graphsafe_set_state"],
)
def test_states_of_generators_wait_for_draws(call):
    generator = torch.Generator().manual_seed(0)
    with lazy("deferred"):
        x = wrap(torch.zeros(3)).uniform_(generator=generator)
        assert not x.is_ready()
        with contextlib.suppress(RuntimeError):  # (one of a CPU has no offset, as in eager)
            call(generator)
        assert x.is_ready()


# --- random numbers


def draws(record):
    """Draws in every way there is, in one order; `record` turns results into lists at the end."""
    torch.manual_seed(3)
    kept = [torch.rand(3), torch.randn(2, 2), torch.nn.functional.dropout(torch.ones(8), 0.5)]
    state = torch.get_rng_state()
    kept.append(torch.randn(3))
    torch.set_rng_state(state)
    kept.append(torch.randn(3))
    kept += [torch.rand_like(kept[0]), torch.empty(3).uniform_(), torch.empty(3).normal_()]
    kept += [torch.bernoulli(torch.full((4,), 0.5)), torch.randperm(5), torch.randint(9, (4,))]
    torch.manual_seed(4)
    kept += [torch.multinomial(torch.ones(5), 3), torch.normal(torch.zeros(3), torch.ones(3))]
    with torch.random.fork_rng():
        kept.append(torch.rand(2))
    kept.append(torch.nn.functional.dropout(torch.ones(8), 0.5))
    kept.append(torch.rand(2))
    return [record(x) for x in kept], torch.get_rng_state().tolist()


def test_random_numbers_in_program_order(mode):
    expected = draws(lambda x: x.tolist())
    with lazy(mode):
        got = draws(lambda x: x)
    assert [x.tolist() for x in got[0]] == expected[0]
    assert got[1] == expected[1]


def test_saved_random_state_repeats_recorded_draws(mode):
    with lazy(mode):
        torch.nn.functional.dropout(torch.ones(50), 0.5)
        state = torch.get_rng_state()
        a = torch.nn.functional.dropout(torch.ones(50), 0.5)
        torch.set_rng_state(state)
        b = torch.nn.functional.dropout(torch.ones(50), 0.5)
    assert a.tolist() == b.tolist()


STATES = {
    "literal": lambda state: torch.tensor(state.tolist(), dtype=torch.uint8),
    "clone": lambda state: state.clone(),
    "parts": lambda state: torch.cat([state[:9], state[9:]]),
    "wrapped": wrap,
    "filled": lambda state: torch.zeros_like(state).copy_(state),
}


@pytest.mark.parametrize("set_state", [torch.set_rng_state, torch.default_generator.set_state])
@pytest.mark.parametrize("copy_of", STATES.values(), ids=STATES)
def test_a_state_may_be_a_lazy_tensor(set_state, copy_of, mode):
    with lazy(mode):
        state = torch.get_rng_state()
        a = torch.rand(3) * 1
        set_state(copy_of(state))
        b = torch.rand(3) * 1
    assert a.tolist() == b.tolist()


def test_own_generator(mode):
    def run():
        generator = torch.Generator().manual_seed(5)
        x = torch.zeros(4).uniform_(generator=generator)
        y = torch.rand(4, generator=generator)
        generator.manual_seed(6)
        z = torch.zeros(4).normal_(generator=generator)
        return [x, y, z, generator.get_state()]

    expected = [x.tolist() for x in run()]
    with lazy(mode):
        got = run()
    assert [x.tolist() for x in got] == expected


def test_random_initialisation_of_a_module(mode):
    torch.manual_seed(1)
    expected = torch.nn.Linear(4, 4).weight.tolist()
    torch.manual_seed(1)
    with lazy(mode):
        module = torch.nn.Linear(4, 4)
    assert type(module.weight) is torch.nn.Parameter or isinstance(module.weight, LazyTensor)
    assert module.weight.tolist() == expected
