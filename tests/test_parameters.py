"""Subclasses of torch.nn.Parameter: programs with them, each against eager."""

import copy
import gc
import io
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import lazyeng
from tests.support.outcomes import same, values

Wrap = Callable[[Any], Any]


class Doubling(torch.nn.Parameter):
    def twice(self) -> torch.Tensor:
        return self * 2


class Tagged(torch.nn.Parameter):
    """As libraries of quantized weights have them."""

    def __new__(cls, data: torch.Tensor, tag: str, requires_grad: bool = True) -> Any:
        return super().__new__(cls, data, requires_grad)

    def __init__(self, data: torch.Tensor, tag: str, requires_grad: bool = True) -> None:
        self.tag = tag

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return type(self)(self.data.clone(), self.tag, self.requires_grad)


class MadeBelow(torch.nn.Parameter):
    """Its constructor goes around torch.nn.Parameter's."""

    def __new__(cls, data: torch.Tensor, requires_grad: bool = True, extra: Any = None) -> Any:
        self: Any = torch.Tensor._make_subclass(cls, data, requires_grad)
        self.extra = extra
        return self


class Listening(torch.nn.Parameter):
    """Hears of its operators, and of its subclasses."""

    calls = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Listening.calls += 1
        return super().__torch_function__(func, types, args, kwargs or {})

    def __init_subclass__(cls, *, name: str) -> None:
        raise AssertionError(name)


class Plain(torch.Tensor): ...


def methods_and_gradients(w: Wrap) -> Any:
    p = Doubling(w(torch.arange(3.0)))
    p.twice().sum().backward()
    return isinstance(p, Doubling), p.is_leaf, p.requires_grad, p.grad, p.twice(), -p, 2 * p, p[1:]


def arguments_of_constructors(w: Wrap) -> Any:
    tagged = Tagged(w(torch.arange(3.0)), "tag", requires_grad=False)
    below = MadeBelow(w(torch.arange(3.0)), requires_grad=False, extra=4)
    again = type(below)(w(torch.ones(2)))
    kinds = isinstance(tagged, Tagged), isinstance(below, MadeBelow), isinstance(again, MadeBelow)
    return kinds, tagged.tag, below.extra, tagged, below, again


def copies(w: Wrap) -> Any:
    found = []
    for p in Doubling(w(torch.ones(2))), Tagged(w(torch.ones(2)), "a"):
        copied = copy.deepcopy(p)
        found += [isinstance(copied, type(p)), vars(copied).get("tag"), copied]
        file = io.BytesIO()
        torch.save(p, file)
        file.seek(0)
        loaded = torch.load(file)
        found += [type(loaded) is type(p), isinstance(loaded, torch.nn.Parameter), loaded]
    return found


def training(w: Wrap) -> Any:
    torch.manual_seed(0)
    layer = torch.nn.Linear(3, 2)
    layer.weight = Doubling(w(torch.ones(2, 3)))
    layer.extra = Tagged(w(torch.ones(2)), "x")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    (layer(w(torch.ones(1, 3))) + layer.extra).sum().backward()
    optimizer.step()
    copied = copy.deepcopy(layer).double()
    assert isinstance(copied.weight, Doubling) and vars(copied.extra)["tag"] == "x"
    return list(layer.parameters()), copied.weight, layer.weight.twice(), copied.weight.twice()


def made_by_the_class_of_another(w: Wrap) -> Any:
    """As loaders and offloading do, which replace a parameter by one of its class."""
    found = []
    for p in torch.nn.Parameter(w(torch.ones(2))), Doubling(w(torch.ones(2))):
        cls = type(p)
        again = cls(w(torch.zeros(2)), requires_grad=p.requires_grad)
        frozen = cls(w(torch.zeros(2)), False)
        away = cls(p.detach().to("meta"), requires_grad=p.requires_grad)
        made = again, frozen, away
        found += [[isinstance(x, torch.nn.Parameter) for x in made], again, frozen]
        found += [away.device.type, away.requires_grad, isinstance(away, Doubling)]
    return found


def own_torch_function(w: Wrap) -> Any:
    p = Listening(w(torch.ones(2)))
    before = Listening.calls
    result = (p + 1) * p
    return isinstance(p, Listening), Listening.calls - before, result


def other_classes_below(w: Wrap) -> Any:
    x = torch.Tensor._make_subclass(Plain, w(torch.ones(3)))
    x.mul_(2)
    return isinstance(x, Plain), x.tolist()


def made_in_a_transform(w: Wrap) -> Any:
    """As those who swap a module's parameters do, in a function that vmap maps."""
    weight = w(torch.ones(2))
    found = []
    for requires_grad in (False, True):

        def scaled(x: torch.Tensor, requires_grad: bool = requires_grad) -> torch.Tensor:
            return torch.nn.Parameter(weight, requires_grad) * x

        found.append(torch.vmap(scaled)(torch.ones(3, 2)))
    return found


PROGRAMS = (
    methods_and_gradients, arguments_of_constructors, copies, training, own_torch_function,
    other_classes_below, made_by_the_class_of_another, made_in_a_transform,
)  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
class TestPrograms:
    def test_wrapped(self, program):
        assert values(program(lazyeng.wrap)) == values(program(same))

    @pytest.mark.parametrize("wrap", [same, lazyeng.wrap])
    def test_in_a_block(self, program, wrap, mode):
        expected = values(program(same))
        with lazyeng.lazy(mode):
            assert values(program(wrap)) == expected


def test_wrap_and_unwrap_keep_the_class():
    module = torch.nn.Module()
    module.one = one = Doubling(torch.ones(2))
    module.two = Tagged(torch.ones(2), "a")
    lazyeng.wrap(module)
    assert module.one is one and isinstance(one, Doubling) and isinstance(one, lazyeng.LazyTensor)
    assert isinstance(module.two, Tagged) and module.two.tag == "a"
    assert type(one.twice()) is lazyeng.LazyTensor
    lazyeng.unwrap(module)
    assert module.one is one and type(one) is Doubling and type(module.two) is Tagged
    assert module.two.tag == "a" and one.requires_grad


def test_one_parameter_takes_its_attributes_along():
    lazy = lazyeng.wrap(Tagged(torch.ones(2), "a", requires_grad=False))
    assert isinstance(lazy, Tagged) and lazy.tag == "a" and not lazy.requires_grad
    plain = lazyeng.unwrap(lazy)
    assert type(plain) is Tagged and plain.tag == "a"
    assert plain.data_ptr() == lazy.data_ptr()


def test_the_class_of_a_lazy_parameter_makes_lazy_ones():
    lazy = Doubling(lazyeng.wrap(torch.ones(2)))
    again = type(lazy)(torch.zeros(2))
    assert type(again) is type(lazy) and isinstance(again, lazyeng.LazyTensor)


class Holding(torch.Tensor):
    """Has no memory, but a tensor that has, as DTensor does."""

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype)
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        held = [getattr(arg, "held", arg) for arg in args]
        made = func(*held, **kwargs or {})
        return cls(made) if isinstance(made, torch.Tensor) else made


@pytest.mark.parametrize("make", [lambda: torch.ones(2).as_subclass(Plain),
                                  lambda: Holding(torch.ones(2))])  # fmt: skip
@pytest.mark.parametrize("constructor", [torch.nn.Parameter, Doubling])
def test_tensors_of_other_classes_stay_what_they_are(make, constructor):
    """torch's constructor only marks them: they are instances of Parameter, but not by class."""
    module = torch.nn.Linear(2, 1)
    module.p = p = constructor(make())
    seen = type(p), vars(p).copy()
    assert lazyeng.wrap(p) is p and lazyeng.wrap([p])[0] is p
    lazyeng.wrap(module)
    assert module.p is p and (type(p), vars(p)) == seen and isinstance(p, torch.nn.Parameter)
    assert type(module.weight) is lazyeng.LazyTensor
    lazyeng.unwrap(module)
    assert module.p is p and (type(p), vars(p)) == seen


def test_parameters_of_integers_are_refused_in_torchs_words():
    with pytest.raises(RuntimeError) as expected:
        torch.nn.Parameter(torch.arange(3))
    with pytest.raises(RuntimeError) as found:
        torch.nn.Parameter(lazyeng.wrap(torch.arange(3)))
    assert str(found.value) == str(expected.value)


def test_classes_with_slots_become_lazy_tensors():
    """Python cannot give an object a class of another layout."""

    class Slotted(torch.nn.Parameter):
        __slots__ = ("note",)

    lazy = Slotted(lazyeng.wrap(torch.ones(2)))
    assert type(lazy) is lazyeng.LazyTensor and isinstance(lazy, torch.nn.Parameter)


def test_classes_die():
    class Local(torch.nn.Parameter): ...

    lazy = Local(lazyeng.wrap(torch.ones(2)))
    assert isinstance(lazy, Local)
    seen = weakref.ref(Local)
    del lazy, Local
    gc.collect()  # the class that was made of it, whose death lets go of
    gc.collect()  # the user's
    assert seen() is None
