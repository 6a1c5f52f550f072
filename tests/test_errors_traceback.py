"""Synthetic tracebacks: they look like the real one, to the column, and run and hold nothing."""

import importlib.util
import inspect
import linecache
import sys
import traceback

import pytest

from lazyeng import _traceback, errors
from tests.programs.error_corpus import build, stack_here
from tests.support.failures import raised_by


class Probe:
    """Its operators either raise or say where they were called."""

    def __init__(self, raises):
        self.raises = raises

    def call(self, *_):
        if self.raises:
            raise ValueError("here")
        return stack_here(skip=1)

    __matmul__ = __getitem__ = __neg__ = __call__ = call

    def __add__(self, other):
        return self

    attribute = property(call)


def two_on_a_line(a, b):
    a + b; return a @ b  # noqa: E702  # fmt: skip


def comprehension(a, b):
    return [a @ b for _ in range(2)][0]  # noqa: RUF015


def in_lambda(a, b):
    return (lambda x: x[b])(a)  # noqa: PLC3002


def several_lines(a, b):
    return (a[0] if False else b
            @ a
            )  # fmt: skip


def not_ascii(a, b):
    "äöü", "日本"; return ("é" and a @ b)  # noqa: E702  # fmt: skip


def wide(a, b):
    return "a string that moves what follows to the right, beyond column 64" and a @ b


def generator(a, b):
    return next(-x for x in [a])


def nested_calls(a, b):
    return (lambda: two_on_a_line(a, b))()  # noqa: PLC3002


class Body:
    def method(self, a, b):
        return a(b, *[b])


def far_down(a, b):
    # The position is many lines below the function's first: a delta of more than 64 lines.
    exec_scope = {}
    source = "def far(a, b):\n" + "    x = 1\n" * 200 + "    return a @ b\n"
    linecache.cache["<far>"] = (len(source), None, source.splitlines(True), "<far>")
    exec(compile(source, "<far>", "exec"), exec_scope)
    return exec_scope["far"](a, b)


PROGRAMS = [
    two_on_a_line, comprehension, in_lambda, several_lines, not_ascii, wide, generator,
    nested_calls, Body().method, far_down, lambda a, b: a.attribute,
]  # fmt: skip


def real_lines(program):
    """The traceback of the program when it fails at once, without this frame and the operator."""
    try:
        program(Probe(raises=True), Probe(raises=True))
    except ValueError as error:
        return traceback.format_tb(error.__traceback__)[1:-1]


def synthetic(program):
    stack = program(Probe(raises=False), Probe(raises=False))
    names = [code.co_name for code, _ in stack]
    own = stack[len(names) - names[::-1].index("synthetic") :]
    return build(ValueError("here"), own).__cause__.__traceback__


@pytest.mark.parametrize("program", PROGRAMS)
def test_looks_like_the_real_one(program):
    expected = real_lines(program)
    assert expected and traceback.format_tb(synthetic(program)) == expected


def test_carets_mark_the_expression():
    text = "".join(traceback.format_tb(synthetic(two_on_a_line)))
    source, carets = text.splitlines()[1:3]
    start, end = carets.index("~"), carets.rindex("~") + 1
    assert source[start:end] == "a @ b"


def test_code_without_columns():
    code = compile("\n\ndef f(a, b):\n    return a @ b\n", "<no columns>", "exec")
    scope = {}
    exec(without_columns(code), scope)
    assert [(f.name, f.lineno) for f in traceback.extract_tb(synthetic(scope["f"]))] == [("f", 4)]
    assert "^" not in "".join(traceback.format_tb(synthetic(scope["f"])))


def without_columns(code):
    inner = next(c for c in code.co_consts if inspect.iscode(c))
    units = len(inner.co_code) // 2
    table, line = bytearray(), inner.co_firstlineno
    while units:  # entries of kind 13: one line down at first, then none
        n = min(8, units)
        table += bytes([0x80 | 13 << 3 | n - 1, 0b10 if line == inner.co_firstlineno else 0])
        line, units = line + 1, units - n
    consts = tuple(
        inner.replace(co_linetable=bytes(table)) if c is inner else c for c in code.co_consts
    )
    return code.replace(co_consts=consts)


@pytest.mark.parametrize("new_frame", [_traceback._new_frame, _traceback._ctypes_new_frame()])
def test_frames_are_stubs(new_frame, monkeypatch):
    monkeypatch.setattr(_traceback, "_new_frame", new_frame)

    def creator(secret):
        return stack_here()

    stack = creator("secret")
    tb = build(ValueError(), stack[-2:]).__cause__.__traceback__
    outer, inner = tb.tb_frame, tb.tb_next.tb_frame
    assert inner.f_code is not creator.__code__
    for name in ("co_filename", "co_name", "co_qualname", "co_firstlineno"):
        assert getattr(inner.f_code, name) == getattr(creator.__code__, name)
    assert inner.f_locals == {} and inner.f_back is None and outer.f_back is None
    assert inner.f_globals is globals()
    assert inner.f_lineno == tb.tb_next.tb_lineno == creator.__code__.co_firstlineno + 1
    assert "secret" in inspect.getsource(inner.f_code)  # as pytest and IPython show it


def test_frames_of_the_kernel_come_last():
    def kernel():
        raise ValueError("in the kernel")

    error = build(errors.detach(raised_by(kernel)), stack_here())
    names = [frame.name for frame in traceback.extract_tb(error.__cause__.__traceback__)]
    assert names[-3:] == ["test_frames_of_the_kernel_come_last", "raised_by", "kernel"]
    assert error.creation_stack[-1].name == names[-3]


def test_namespace_of_a_module_that_is_gone(monkeypatch):
    # (As in a program; without a file it would be a prompt, whose namespace any code may be of.)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "/program.py", raising=False)
    scope = {"stack_here": stack_here}
    exec(compile("def f():\n    return stack_here()\n", "/gone/module.py", "exec"), scope)
    tb = build(ValueError(), scope["f"]()[-1:]).__cause__.__traceback__
    assert tb.tb_frame.f_globals == {"__name__": "<unknown>"}
    assert traceback.format_tb(tb) == ['  File "/gone/module.py", line 2, in f\n']


def test_a_module_that_is_imported_when_it_is_used_is_left_alone(monkeypatch, tmp_path):
    (tmp_path / "used_later.py").write_text("raise RuntimeError('imported')")
    spec = importlib.util.spec_from_file_location("used_later", tmp_path / "used_later.py")
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "used_later", module)
    spec.loader.exec_module(module)
    build(ValueError(), function_in("/gone/other.py")(stack_here))
    with pytest.raises(RuntimeError, match="imported"):
        module.anything


def test_code_without_lines():
    """As it is where Ctrl-C arrives in a jump back, or where code is generated."""

    def generated():
        raise ValueError("v")

    n = len(generated.__code__.co_code) // 2
    sizes = [8] * (n // 8) + [n % 8] * (n % 8 > 0)
    table = bytes(0x80 | 15 << 3 | size - 1 for size in sizes)
    generated.__code__ = generated.__code__.replace(co_linetable=table)
    with pytest.raises(ValueError, match="v") as raised:
        errors.boundary(generated)()
    assert [entry.lineno for entry in traceback.extract_tb(raised.value.__traceback__)][1:] == [
        None
    ]


def test_no_stack():
    error = build(ValueError("v"), [])
    assert error.__cause__.__traceback__ is None and error.creation_stack == []


# --- internal frames

DIRECTORY = errors.__file__.rpartition("/")[0]


def function_in(filename, source="def {name}(f):\n    return f()\n", name="call"):
    scope = {}
    exec(compile(source.format(name=name), filename, "exec"), scope)
    return scope[name]


def names_shown(stack):
    error = build(ValueError("v"), stack)
    shown = [frame.name for frame in traceback.extract_tb(error.__cause__.__traceback__)]
    assert shown == [frame.name for frame in error.creation_stack]
    return shown


def stack_of_layers():
    inner = function_in(f"{DIRECTORY}/tensor.py", name="of_lazyeng")
    user = function_in("/home/user/model.py", name="of_user")
    beside = function_in(f"{DIRECTORY}_extra/module.py", name="beside")
    outer = function_in(f"{DIRECTORY}/deep/module.py", name="also_of_lazyeng")
    return outer(lambda: beside(lambda: user(lambda: inner(stack_here))))


def test_internal_frames_are_hidden(monkeypatch):
    stack = stack_of_layers()
    hidden = names_shown(stack)
    # From the outside in, each but the innermost calls the next through a lambda of this file.
    assert hidden[-5:] == ["<lambda>", "beside", "<lambda>", "of_user", "<lambda>"]
    assert not {"of_lazyeng", "also_of_lazyeng"} & set(hidden)
    monkeypatch.setenv("LAZYENG_TRACEBACK", "full")
    assert {"of_lazyeng", "also_of_lazyeng", "of_user"} <= set(names_shown(stack))
    assert len(names_shown(stack)) == len(stack)


def test_frames_of_torch_are_hidden():
    torch = pytest.importorskip("torch")
    directory = torch.__file__.rpartition("/")[0]
    call = function_in(f"{directory}/nn/modules/module.py", name="_call_impl")
    assert "_call_impl" not in names_shown(call(stack_here))
    beside = function_in(f"{directory}vision/models.py", name="of_torchvision")
    assert "of_torchvision" in names_shown(beside(stack_here))


def test_registered_functions_are_hidden():
    call = errors.internal(function_in("/elsewhere/generated.py", name="generated"))
    assert "generated" not in names_shown(call(stack_here))


def test_all_internal_is_shown():
    call = function_in(f"{DIRECTORY}/tensor.py", name="only")
    assert names_shown(call(stack_here)[-1:]) == ["only"]


def test_boundary_hides_frames_of_the_reader(monkeypatch):
    fail = function_in(f"{DIRECTORY}/x.py", "def {name}(f):\n    raise ValueError(f)\n", "inner")
    middle = function_in(f"{DIRECTORY}/y.py", name="middle")
    read = errors.boundary(lambda: middle(lambda: fail("v")))

    def names():
        with pytest.raises(ValueError, match="v") as caught:
            read()
        return [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]

    assert names() == ["names", "<lambda>", "<lambda>"]
    monkeypatch.setenv("LAZYENG_TRACEBACK", "full")
    assert names() == ["names", "at_boundary", "<lambda>", "middle", "<lambda>", "inner"]


def test_boundary_keeps_a_traceback_of_the_same_length():
    record = errors.detach(ValueError("v"))

    @errors.boundary
    def read():
        raise build(record, [])

    def length():
        try:
            read()
        except ValueError as error:
            return len(traceback.extract_tb(error.__traceback__))

    assert {length() for _ in range(4)} == {2}


def test_debugger_sees_the_frames():
    import pdb

    tb = build(ValueError("v"), stack_here()).__cause__.__traceback__
    debugger = pdb.Pdb(stdout=sys.stdout)
    debugger.reset()
    debugger.setup(None, tb)
    names = [frame.f_code.co_name for frame, _ in debugger.stack]
    assert names[-1] == "test_debugger_sees_the_frames"
