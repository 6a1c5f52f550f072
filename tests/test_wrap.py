"""wrap and unwrap: tensors, containers, modules; zero-copy both ways."""

import collections
import collections.abc
import contextlib
import dataclasses
import operator
import sys
import types
import weakref

import pytest
import torch
from torch.nn.utils import prune

import lazyeng
from lazyeng import LazyTensor, lazy, unwrap, wrap


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    labels: list
    name: str = "b"


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: torch.Tensor


Pair = collections.namedtuple("Pair", "a b")


def test_tensor_is_zero_copy():
    plain = torch.ones(3)
    x = wrap(plain)
    assert type(x) is LazyTensor and x.data_ptr() == plain.data_ptr()
    x.add_(1)
    x.wait()
    assert plain.tolist() == [2.0, 2.0, 2.0]


def test_unwrap_is_zero_copy():
    x = wrap(torch.ones(3)) + 1
    plain = unwrap(x)
    assert type(plain) is torch.Tensor and plain.data_ptr() == x.data_ptr()
    assert unwrap(wrap(plain)).data_ptr() == plain.data_ptr()


def test_lazy_tensor_is_returned_as_it_is():
    x = wrap(torch.ones(2))
    assert wrap(x) is x


@pytest.mark.parametrize(
    "obj", [None, 3, 2.5, "s", b"b", torch.float32, torch.device("cpu"), object()]
)
def test_identity_for_everything_else(obj):
    assert wrap(obj) is obj
    assert unwrap(obj) is obj


@pytest.mark.parametrize("plain", [
    torch.arange(6).view(2, 3).t(), torch.ones(()), torch.empty(0, 3),
    torch.ones(4, dtype=torch.bool), torch.ones(2, dtype=torch.bfloat16),
    torch.arange(8.0)[2:6:2], torch.ones(3).expand(2, 3),
    torch.tensor([1j]),
])  # fmt: skip
def test_metadata_is_kept(plain):
    x = wrap(plain)
    for y in (x, unwrap(x)):
        assert (y.shape, y.stride(), y.storage_offset(), y.dtype, y.device) == (
            plain.shape, plain.stride(), plain.storage_offset(), plain.dtype, plain.device,
        )  # fmt: skip
    assert torch.equal(unwrap(x), plain)


def parameter_with_grad():
    x = torch.nn.Parameter(torch.ones(3))
    x.sum().backward()
    return x


def plain_with_grad():
    x = parameter_with_grad().detach()
    x.grad = torch.full((3,), 2.0)
    return x


# What has no part in autograd is wrapped and unwrapped without Python; this has one.
@pytest.mark.parametrize("make", [
    lambda: torch.ones(3, requires_grad=True), parameter_with_grad, plain_with_grad,
    lambda: torch.ones(3, requires_grad=True) * 2, lambda: torch.ones(3, requires_grad=True)[1:],
    lambda: torch.ones(3)[1:].conj(),
])  # fmt: skip
def test_what_belongs_to_a_tensor_goes_both_ways(make):
    plain = make()
    x = wrap(plain)
    assert type(x) in (LazyTensor, torch.nn.Parameter)
    assert x.requires_grad == plain.requires_grad
    if plain.is_leaf and plain.grad is not None:
        assert type(x.grad) is LazyTensor and x.grad.tolist() == plain.grad.tolist()
    back = unwrap(x)
    assert not isinstance(back, LazyTensor) and back.tolist() == plain.tolist()
    assert back.requires_grad == (plain.requires_grad and plain.is_leaf)
    if plain.is_leaf and plain.grad is not None:
        assert back.grad.tolist() == plain.grad.tolist() and type(back.grad) is torch.Tensor


class Boxes(torch.Tensor):
    """As libraries make them: what is computed from one is one, and has its attributes."""

    @staticmethod
    def of(tensor, canvas):
        boxes = tensor.as_subclass(Boxes)
        boxes.canvas = canvas
        return boxes

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **kwargs or {})
        return Boxes.of(result, args[0].canvas) if type(result) is torch.Tensor else result


def test_tensors_of_a_class_of_their_own_are_not_wrapped():
    boxes = Boxes.of(torch.ones(3), canvas=(4, 5))
    sample = wrap({"boxes": boxes, "image": torch.ones(3)})
    assert sample["boxes"] is boxes and type(sample["image"]) is LazyTensor
    assert (sample["boxes"] * 2).canvas == (4, 5)
    module = torch.nn.Module()
    module.register_buffer("boxes", boxes)
    assert wrap(module).boxes is boxes and type(boxes) is Boxes


def test_modes_hear_of_a_wrap():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Heard(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            names.append(str(func))
            return func(*args, **(kwargs or {}))

    names: list[str] = []
    with Heard():
        wrap(torch.ones(2))
    assert any("detach" in name for name in names)


def test_two_wraps_of_one_storage_are_one_variable():
    base = torch.zeros(4)
    with lazy("deferred"):
        a, b = wrap(base), wrap(base[1:3])
        a.add_(1)
        b.mul_(5)
        c = a * 1
    assert c.tolist() == [1.0, 5.0, 5.0, 1.0]


def test_nested_containers():
    one, two = torch.ones(1), torch.zeros(2)
    tree = {"a": [one, (two, 3)], "b": Pair(one, "text"), "c": None}
    wrapped = wrap(tree)
    assert type(wrapped) is dict and type(wrapped["a"]) is list and type(wrapped["a"][1]) is tuple
    assert type(wrapped["b"]) is Pair and wrapped["b"].b == "text" and wrapped["c"] is None
    assert type(wrapped["a"][0]) is LazyTensor and type(wrapped["a"][1][0]) is LazyTensor
    back = unwrap(wrapped)
    assert type(back["b"].a) is torch.Tensor and back["a"][1][1] == 3
    assert tree["a"][0] is one and type(one) is torch.Tensor  # the original stays


def test_dict_subclasses_keep_their_type_and_order():
    ordered = collections.OrderedDict(b=torch.ones(1), a=torch.ones(2))
    wrapped = wrap(ordered)
    assert type(wrapped) is collections.OrderedDict and list(wrapped) == ["b", "a"]


@pytest.mark.parametrize("cls", [Batch, Frozen])
def test_dataclasses(cls):
    extra = {"labels": [torch.zeros(2)]} if cls is Batch else {}
    wrapped = wrap(cls(x=torch.ones(1), **extra))
    assert type(wrapped) is cls and type(wrapped.x) is LazyTensor
    if cls is Batch:
        assert type(wrapped.labels[0]) is LazyTensor and wrapped.name == "b"
    assert type(unwrap(wrapped).x) is torch.Tensor


class NeedsTwo(list):
    def __init__(self, items, name):
        super().__init__(items)
        self.name = name

    def append(self, item):
        raise TypeError("not changed from outside")


class NeedsName(tuple):
    def __new__(cls, items, *, name):
        made = super().__new__(cls, items)
        made.name = name
        return made


class Sub(collections.namedtuple("Base", "x y")):
    __slots__ = ()

    def __new__(cls, x):
        return super().__new__(cls, x, 2)


class ReadOnly(dict):
    def __setitem__(self, key, value):
        raise TypeError("read-only")


class Slotted(list):
    __slots__ = ("name",)


class OwnMapping(collections.abc.MutableMapping):
    """A copy of it shares the items."""

    def __init__(self, items):
        self.inside = dict(items)

    def __getitem__(self, key):
        return self.inside[key]

    def __setitem__(self, key, value):
        self.inside[key] = value

    def __delitem__(self, key):
        del self.inside[key]

    def __iter__(self):
        return iter(self.inside)

    def __len__(self):
        return len(self.inside)


class IndependentMapping(OwnMapping):
    def __copy__(self):
        return type(self)(self.inside)


def slotted():
    made = Slotted([torch.ones(2)])
    made.name = "n"
    return made


CONTAINERS = {
    "list, own constructor": lambda x: NeedsTwo([x], "n"),
    "tuple, own constructor": lambda x: NeedsName([x], name="n"),
    "named tuple, own constructor": Sub,
    "dict, read-only": lambda x: ReadOnly({0: x, "name": "n"}),
    "list, slots": lambda x: slotted(),
    "struct sequence": lambda x: torch.return_types.max([x, torch.zeros(2)]),
    "UserDict": lambda x: collections.UserDict({0: x}),
    "UserList": lambda x: collections.UserList([x]),
    "deque": lambda x: collections.deque([x], maxlen=3),
    "ChainMap": lambda x: collections.ChainMap({0: 1}, {1: x}),
    "proxy": lambda x: types.MappingProxyType({0: x}),
    "mapping": lambda x: IndependentMapping({0: x}),
    "defaultdict": lambda x: collections.defaultdict(list, {0: x}),
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_containers_of_all_kinds(kind):
    def contents(container):
        is_mapping = isinstance(container, collections.abc.Mapping)
        return list(container.values()) if is_mapping else list(container)

    container = CONTAINERS[kind](torch.ones(2))
    before = contents(container)
    wrapped = wrap(container)
    assert type(wrapped) is type(container) and wrapped is not container
    for old, new, kept in zip(before, contents(wrapped), contents(container), strict=True):
        assert kept is old  # the original is as it was
        if isinstance(old, torch.Tensor):
            assert type(new) is LazyTensor and new.data_ptr() == old.data_ptr()
        else:
            assert new is old
    for name in ("name", "maxlen", "default_factory"):
        assert getattr(wrapped, name, None) == getattr(container, name, None)


def test_what_has_no_tensors_stays_itself():
    for obj in ([1, "a"], (1, [2]), {"a": (1,)}, Batch(1, []), ReadOnly(a=1), torch.Size([2])):
        assert wrap(obj) is obj
    shared = OwnMapping({0: torch.ones(1)})  # to change a copy would change it
    assert wrap(shared) is shared and type(shared[0]) is torch.Tensor


def test_containers_inside_of_themselves():
    tree = {"x": torch.ones(2)}
    tree["me"], tree["pair"] = tree, (tree, [tree])
    wrapped = wrap(tree)
    assert type(wrapped["x"]) is LazyTensor and wrapped["me"] is wrapped
    assert wrapped["pair"][0] is wrapped and wrapped["pair"][1][0] is wrapped
    assert tree["me"] is tree and type(tree["x"]) is torch.Tensor


def test_what_is_shared_stays_shared():
    x, part = torch.ones(2), [torch.ones(1)]
    wrapped = wrap([x, x, part, (part,)])
    assert wrapped[0] is wrapped[1] and wrapped[2] is wrapped[3][0]


def test_history_of_autograd_goes_with_it(mode):
    weight = torch.ones(2, requires_grad=True)
    with torch.no_grad():
        x, y = wrap([weight.detach() * 2, weight])
    assert not x.requires_grad and y.is_leaf
    product = weight * 3
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            lazily = wrap(product)
        assert type(lazily) is LazyTensor and lazily.data_ptr() == product.data_ptr()
        assert lazily.requires_grad and not lazily.is_leaf
        weight.grad = None
        with lazy(mode):
            (lazily * lazily).sum().backward(retain_graph=True)
        assert weight.grad.tolist() == [18, 18]
    with torch.inference_mode():
        assert wrap(product).tolist() == [3, 3]


def test_history_of_a_buffer_goes_with_it():
    weight, module = torch.ones(2, requires_grad=True), torch.nn.Module()
    module.register_buffer("scaled", weight * 3)
    wrap(module)
    (module.scaled * 2).sum().backward()
    assert type(module.scaled) is LazyTensor and weight.grad.tolist() == [6, 6]


def test_requires_grad_is_kept():
    leaf = torch.ones(2, requires_grad=True)
    assert wrap(leaf).requires_grad and wrap(leaf).is_leaf
    assert unwrap(wrap(leaf)).requires_grad


def model_and_loss(model, x):
    return model(x).square().mean()


def test_module_becomes_lazy_in_place():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    names, ids = list(model.state_dict()), [id(p) for p in model.parameters()]
    assert wrap(model) is model
    assert [id(p) for p in model.parameters()] == ids and list(model.state_dict()) == names
    assert all(
        isinstance(p, torch.nn.Parameter) and isinstance(p, LazyTensor) for p in model.parameters()
    )
    assert all(isinstance(b, LazyTensor) for b in model.buffers())
    assert type(model(wrap(torch.randn(5, 3)))) is LazyTensor


def test_wrap_module_twice_and_back():
    model = torch.nn.Linear(2, 2)
    weights = model.weight.detach().clone()
    assert wrap(wrap(model)) is model
    assert unwrap(model) is model
    assert type(model.weight) is torch.nn.Parameter and torch.equal(model.weight, weights)
    assert type(model(torch.ones(1, 2))) is torch.Tensor


def test_module_results_equal_eager():
    def train(lazily):
        torch.manual_seed(0)
        # (A bias in front of BatchNorm has no gradient but rounding errors, which Adam blows up.)
        model = torch.nn.Sequential(
            torch.nn.Linear(3, 4, bias=False), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1)
        )
        x = torch.randn(8, 3)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)  # built before wrap
        if lazily:
            model, x = wrap(model), wrap(x)
        for _ in range(5):
            optimizer.zero_grad()
            model_and_loss(model, x).backward()
            optimizer.step()
        return [unwrap(v.detach()) for v in model.state_dict().values()]

    for eager, lazily in zip(train(False), train(True), strict=True):
        torch.testing.assert_close(lazily, eager)


def test_optimizer_built_before_wrap_still_updates_the_module():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    wrap(model)
    before = unwrap(model.weight.detach()).clone()
    model(wrap(torch.ones(1, 2))).sum().backward()
    optimizer.step()
    assert optimizer.param_groups[0]["params"][0] is model.weight
    assert not torch.equal(unwrap(model.weight.detach()), before)


@pytest.mark.parametrize("around", [lambda module: module, lambda module: [module]])
def test_module_that_is_a_dataclass_or_a_sequence_too(around):
    @dataclasses.dataclass(eq=False)
    class Layer(torch.nn.Module):
        width: int

        def __post_init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(self.width))

    class Layers(torch.nn.Module, collections.abc.MutableSequence):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList([Layer(2)])
            self.scale = torch.nn.Parameter(torch.ones(2))

        def __getitem__(self, index):
            return self.layers[index]

        def __setitem__(self, index, layer):
            self.layers[index] = layer

        def __delitem__(self, index):
            del self.layers[index]

        def __len__(self):
            return len(self.layers)

        def insert(self, index, layer):
            self.layers.insert(index, layer)

    for module in (Layer(3), Layers()):
        parameters = list(module.parameters())
        wrap(around(module))
        assert all(map(operator.is_, module.parameters(), parameters))
        assert {type(p) for p in parameters} == {LazyTensor}
        unwrap(around(module))
        assert {type(p) for p in parameters} == {torch.nn.Parameter}


@pytest.mark.parametrize("requires_grad", [True, False])
def test_parameters_stay_parameters(requires_grad):
    parameter = torch.nn.Parameter(torch.ones(2), requires_grad)
    for back in (unwrap(wrap(parameter)), *unwrap([wrap(parameter)])):
        assert type(back) is torch.nn.Parameter and back.requires_grad is requires_grad


def test_tied_parameters_stay_tied():
    model = torch.nn.Sequential(torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5, bias=False))
    model[1].weight = model[0].weight
    wrap(model)
    assert model[0].weight is model[1].weight
    assert len(list(model.parameters())) == 1


def test_tied_storages_stay_tied():
    """Two parameters over one storage: recurrent layers flatten their weights like this."""
    storage = torch.zeros(6)
    model = torch.nn.Module()
    model.a = torch.nn.Parameter(storage[:3])
    model.b = torch.nn.Parameter(storage)
    wrap(model)
    with torch.no_grad():
        model.a.fill_(1)
    assert model.b.tolist() == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]


def test_module_with_gradients_hooks_and_buffers():
    model = torch.nn.Linear(2, 2)
    model.register_buffer("scale", torch.tensor(2.0))
    model(torch.ones(1, 2)).sum().backward()
    seen = []
    model.register_forward_hook(lambda module, args, out: seen.append(type(out)))
    wrap(model)
    assert isinstance(model.weight.grad, LazyTensor)
    assert isinstance(model.scale, LazyTensor)
    model(wrap(torch.ones(1, 2)))
    assert seen == [LazyTensor]


def test_parameters_keep_attributes_and_hooks():
    model = torch.nn.LSTM(2, 2)  # whose parameters have weak references
    model.register_buffer("scale", torch.tensor(2.0))
    weight, calls = model.weight_ih_l0, []
    weight.tag, model.scale.tag = "w", "b"
    weight.register_post_accumulate_grad_hook(lambda p: calls.append(p is weight))
    handle = weight.register_hook(lambda grad: calls.append("hook"))

    def called():
        calls.clear()
        model(torch.ones(1, 2))[0].sum().backward()
        return list(calls)

    for convert, kind in ((wrap, LazyTensor), (unwrap, torch.nn.Parameter), (wrap, LazyTensor)):
        convert(model)
        assert type(weight) is kind and (weight.tag, model.scale.tag) == ("w", "b")
        assert called() == ["hook", True]
    assert "_is_param" not in vars(unwrap(model).weight_ih_l0)
    handle.remove()
    wrap(model)
    assert called() == [True]
    weight.register_hook(lambda grad: calls.append("later"))
    assert called() == ["later", True]


def _with_weak_references(module):
    module.references = [weakref.ref(parameter) for parameter in module.parameters()]
    return module


def _refuses_to_backward(*modules):
    """Whether each call raises torch's error instead of losing gradients."""
    model = torch.nn.Sequential(*modules)
    loss = model(torch.ones(2, 2)).sum()
    with pytest.raises(RuntimeError, match=r"use_count|poisoned by swap_tensors"):
        wrap(model)
        loss.backward()
    return all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("prepare", [lambda module: module, _with_weak_references])
def test_graphs_of_before_raise(prepare):
    """They would add gradients to the tensors that the parameters were before."""
    assert _refuses_to_backward(prepare(torch.nn.Linear(2, 2)))
    linears = [prepare(torch.nn.Linear(2, 2)) for _ in range(2)]
    assert _refuses_to_backward(*linears)
    assert not any(isinstance(linear.weight, LazyTensor) for linear in linears)


def _kept_by_c(model):
    return torch._C._WeakTensorRef(list(model.parameters())[-1])  # as the cache of autocast does


@pytest.mark.parametrize("make", [torch.nn.Linear, torch.nn.LSTM])
@pytest.mark.parametrize("convert, back", [(wrap, unwrap), (unwrap, wrap)])
def test_refused_modules_are_as_before(make, convert, back):
    model = make(2, 2) if convert is wrap else wrap(make(2, 2))
    x = torch.ones(1, 2)
    parameters = list(model.parameters())
    parameters[0].tag = "first"
    before = [(type(p), repr(p), vars(p).copy()) for p in parameters]
    loss = sum(p.sum() for p in parameters)
    kept = _kept_by_c(model)
    with pytest.raises(RuntimeError, match="Expected no weakrefs"):
        convert(model)
    assert [(type(p), repr(p), vars(p)) for p in parameters] == before
    loss.backward()  # nothing is poisoned
    assert all(p.grad.tolist() == torch.ones_like(p).tolist() for p in parameters)
    del kept, loss
    for turn in (convert, back):
        turn(model)
        model(x)
        assert len({type(p) for p in parameters}) == 1
    assert [type(p) for p in parameters] == [kind for kind, _, _ in before]


@pytest.mark.parametrize("make", [torch.nn.Linear, torch.nn.LSTM])
@pytest.mark.parametrize("convert", [wrap, unwrap])
def test_interrupted_modules_are_as_before_or_done(make, convert):
    """Interrupted before each line of lazyeng once, as Ctrl-C may do."""

    def state():
        return [(type(p), lazyeng._C.is_lazy(p), p.tag) for p in parameters]

    def made():
        model = torch.nn.Sequential(make(2, 2), make(2, 2))
        for parameter in model.parameters():
            parameter.tag = "kept"
        return model if convert is wrap else wrap(model)

    model = convert(made())
    parameters = list(model.parameters())
    done = state()
    model = made()
    parameters = list(model.parameters())
    before = state()
    seen = []
    for lines in range(1, 10_000):
        try:
            with _interrupted_after(lines):
                convert(model)
        except KeyboardInterrupt:
            seen.append(state())
        else:
            break
    assert len(seen) > 100 and seen[0] == before and state() == done
    assert all(parts in (before, done) for parts in seen)


@contextlib.contextmanager
def _interrupted_after(lines):
    """Raises once in the code of lazyeng.wrapping, before one of its lines runs."""
    left = lines

    def trace(frame, event, arg):
        nonlocal left
        if frame.f_globals.get("__name__") != "lazyeng.wrapping":
            return None
        if event == "line":
            left -= 1
            if left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    old = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(old)


def test_views_that_autograd_refuses_are_shown_and_unwrapped():
    """They were made without grad, and their base was written with it."""
    texts = []
    for base in (torch.arange(4.0), wrap(torch.arange(4.0))):
        with torch.no_grad():
            view = base[:2]
        base.mul_(torch.ones(4, requires_grad=True))
        with pytest.raises(RuntimeError, match="view was created in no_grad mode"):
            view.grad_fn
        view.tolist()
        texts.append(repr(view).removeprefix("Lazy").lower().removeprefix("tensor"))
        plain = unwrap(view)
        assert type(plain) is torch.Tensor and plain.tolist() == [0.0, 1.0]
    assert texts[0] == texts[1]


def test_module_inside_a_container():
    model = torch.nn.Linear(2, 2)
    assert wrap([model, torch.ones(1)])[0] is model
    assert isinstance(model.weight, LazyTensor)


def test_unwrap_waits_and_raises():
    with lazy("deferred"):
        bad = wrap(torch.ones(3))[torch.tensor([5])]
    with pytest.raises(IndexError):
        unwrap([bad])


def test_results_can_be_swapped_at_once():
    """Nothing of ours refers to the newest result weakly, which torch would refuse."""
    x = wrap(torch.ones(2)).requires_grad_()
    y = x * 2
    z = wrap(torch.zeros(3))
    torch.utils.swap_tensors(y, z)
    assert (y.tolist(), z.tolist()) == ([0, 0, 0], [2, 2])


def pruned(module):
    prune.l1_unstructured(module, "weight", 0.3)
    prune.random_unstructured(module, "weight", 0.2)
    return prune.l1_unstructured(module, "bias", 1)


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("hook", [torch.nn.utils.weight_norm, torch.nn.utils.spectral_norm, pruned])
def test_modules_with_a_hook_that_computes_a_weight(hook):
    """Its graph holds the parameters; it is computed anew before each call."""

    def trained(there, back=lambda model: model):
        torch.manual_seed(0)
        model = torch.nn.Sequential(hook(torch.nn.Conv1d(3, 4, 3)), hook(torch.nn.Linear(6, 2)))
        optimizer, x = torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(2, 3, 8)
        model(x)
        for change in (there, back, there):
            assert change(model) is model
            assert type(model[0].weight) is type(next(model.parameters()).detach())
            assert model[0].weight.grad_fn is not None
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.item(), [p.tolist() for p in model.parameters()]

    assert trained(wrap, unwrap) == trained(lambda model: model)


def test_a_module_that_cannot_be_wrapped_stays_as_it_is():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    weight = model[1].weight
    graph = weight * weight  # which refers to it
    weight.noted = 1
    with pytest.raises(RuntimeError, match="use_count") as caught:
        wrap(model)
    assert "1.weight of Sequential" in caught.value.__notes__[0]
    assert all(type(p) is torch.nn.Parameter for p in model.parameters())
    assert model[1].weight is weight and weight.noted == 1
    del graph
    wrap(model)
    assert all(isinstance(p, LazyTensor) for p in model.parameters())


def test_a_model_that_is_wrapped_in_inference_mode_can_be_trained():
    model, x = torch.nn.Linear(2, 2), torch.ones(1, 2)
    with torch.inference_mode():
        wrap(model)(x)
    assert not model.weight.is_inference()
    model(x).sum().backward()
    assert unwrap(model.weight.grad).tolist() == [[1, 1], [1, 1]]
