"""What libraries on top of torch do with tensors, in a few lines each."""

import collections
import copy
import pickle

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp

import lazyeng
from lazyeng import LazyTensor, lazy, unwrap, wrap


def test_a_mapped_file_has_what_a_block_has_written(mode, tmp_path):
    """As TensorDict.memmap and others, which open the file once more."""
    path = tmp_path / "numbers"
    path.write_bytes(bytes(4000))
    with lazy(mode):
        mapped = torch.from_file(str(path), shared=True, size=1000)
        mapped.copy_(torch.ones(1000) * 3)
        mapped[5:10].add_(1)
        again = torch.from_file(str(path), shared=True, size=1000)
        assert np.fromfile(path, np.float32).sum() == again.sum().item() == 3005


def read_shared(shared, ready, answers):
    ready.wait(60)
    answers.put(shared.sum().item())


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_another_process_sees_what_a_block_has_written(mode, start):
    context = mp.get_context(start)
    shared, ready, answers = torch.zeros(1000), context.Event(), context.SimpleQueue()
    shared.share_memory_()
    process = context.Process(target=read_shared, args=(shared, ready, answers))
    process.start()
    with lazy(mode):
        a = torch.rand(500, 500)
        shared += (a @ a @ a).sum().clamp(3, 3)
        ready.set()
        assert answers.get() == 3000
    process.join(60)
    assert process.exitcode == 0


def test_a_parameter_is_close_to_a_lazy_tensor(lazy_mode):
    parameter = torch.nn.Parameter(torch.ones(2))
    with lazy(lazy_mode):
        result = torch.ones(2) * 1
        for ours in (result, wrap(torch.ones(2))):
            for pair in ((parameter, ours), (ours, parameter), (torch.ones(2), ours)):
                torch.testing.assert_close(*pair)
                torch.testing.assert_close([pair[0]], [pair[1]])
            torch.testing.assert_close(torch.ones(2), ours, allow_subclasses=False)
            with pytest.raises(AssertionError, match="Tensor-likes are not close"):
                torch.testing.assert_close(parameter, ours + 1)
            with pytest.raises(AssertionError, match="dtype"):
                torch.testing.assert_close(parameter, ours.double())


FUNCTION_MODES = {
    "device": lambda: torch.device("cpu"),
    "function mode": torch.overrides.BaseTorchFunctionMode,
}


@pytest.mark.parametrize("name", FUNCTION_MODES)
@pytest.mark.parametrize("wrapped", [False, True])
def test_data_is_assigned_while_a_function_mode_is_on(name, wrapped, mode):
    def program(made):
        with FUNCTION_MODES[name]():
            x, y = made(torch.ones(3)) * 1, made(torch.ones(4)) * 2
            x.data = y
            x.data += 1
            model = torch.nn.Linear(2, 2)
            model = model if made is not wrap else wrap(model)
            model.weight.data = model.weight.data * 2
            model.to(torch.float64)
            return unwrap(x).tolist(), unwrap(y).tolist(), model.weight.dtype

    expected = program(lambda t: t)
    if wrapped:
        assert program(wrap) == expected
    with lazy(mode):
        assert program(wrap if wrapped else lambda t: t) == expected


def test_a_parameter_made_anew_with_its_attributes():
    """As accelerate's init_empty_weights does, and peft's."""
    with lazy():
        parameter = torch.nn.Parameter(torch.ones(3) * 2)
        attributes = parameter.__dict__ | {"requires_grad": parameter.requires_grad}
        empty = type(parameter)(parameter.to("meta"), **attributes)
    assert isinstance(empty, torch.nn.Parameter) and empty.device.type == "meta"


def test_the_class_is_found_by_the_name_of_its_module():
    """Libraries that do not import torch look whether the module's name begins with it."""
    x = wrap(torch.ones(2))
    assert type(x).__module__.split(".")[0] == "torch"
    assert f"{type(x).__module__}.{type(x).__qualname__}".startswith("torch.")
    assert pickle.loads(pickle.dumps(LazyTensor)) is copy.copy(LazyTensor) is lazyeng.LazyTensor
    assert pickle.loads(pickle.dumps(collections.OrderedDict(x=x)))["x"].tolist() == [1, 1]
