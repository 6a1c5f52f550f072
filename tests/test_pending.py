"""lazyeng.graph: what is recorded and has not run, as it would run now."""

import html
import re
import xml.etree.ElementTree as ElementTree

import pytest
import torch

import lazyeng
from lazyeng import graph, lazy, wrap
from tests.support.gate import Gate


@pytest.fixture(autouse=True)
def nothing_pending():
    lazyeng.synchronize()
    yield
    lazyeng.synchronize()


def names(picture):
    return [op.op for op in picture.ops]


def test_a_program_that_has_not_run():
    x = wrap(torch.rand(8, 8))
    # (Ops that other tests have called in odd ways may be run to learn what they return, once.)
    ((x @ x) * 2 + 1).relu().wait()
    with lazy("deferred"):
        y = x @ x
        z = (y * 2 + 1).relu()
        picture = graph()
        assert not z.is_ready()  # looking runs nothing
    mm, mul, add, relu = picture.ops
    assert names(picture) == ["aten::mm", "aten::mul.Tensor", "aten::add.Tensor", "aten::relu"]
    assert mm.reads == () and mul.reads == (mm.label,) and relu.reads == (add.label,)
    assert mm.inputs == ("float32[8,8]@cpu",) * 2 and mm.outputs == ("float32[8,8]@cpu",)
    assert mm.line.startswith("test_pending.py:") and not mm.pushed
    assert mm.group is None
    assert mul.group == add.group == relu.group is not None
    assert len(picture) == 4


def test_only_what_a_tensor_needs():
    x = wrap(torch.rand(4, 4))
    with lazy("deferred"):
        y = x @ x
        other = x.cumsum(0)
        z = y @ y
        assert names(graph(z)) == ["aten::mm", "aten::mm"]
        assert names(graph(other)) == ["aten::cumsum"]
        assert len(graph(other, y)) == 2
        assert len(graph(x)) == 0


def test_order_without_data():
    x = wrap(torch.rand(4))
    with lazy("deferred"):
        total = x.cumsum(0)
        x.copy_(torch.ones(4))
        after = x.cumsum(0)
        first, copy, second = graph().ops
    assert copy.follows == (first.label,) and copy.reads == ()
    assert second.reads == (copy.label,)
    assert copy.outputs == ("float32[4]@cpu",)
    del total, after


def test_a_part_that_is_overwritten_keeps_the_rest():
    """The engine reads the version before, and so the picture says."""
    x = wrap(torch.rand(4))
    with lazy("deferred"):
        x.copy_(torch.ones(4))
        x[:2].copy_(torch.zeros(2))
        whole, part = graph().ops
    assert part.reads == (whole.label,) and part.follows == ()


def test_views_share_their_storage():
    x = wrap(torch.rand(4, 4))
    with lazy("deferred"):
        y = x @ x
        y[0].add_(1)
        z = y.t() @ x
        mm, add, last = graph(z).ops
    assert add.reads == (mm.label,) and last.reads == (add.label,)


def test_nothing_is_pending():
    assert len(graph()) == 0 and str(graph()) == "nothing is pending"
    assert "<svg" in graph().to_html()


def test_pushed_ops_that_wait(tmp_path):
    """Behind a kernel that does not end, what reads its result waits in the engine."""
    gate = Gate()
    try:
        y = gate(wrap(torch.ones(3, 3)))
        assert gate.reached.wait(60)
        z = (y @ y).cumsum(0)
        lazyeng._C.flush()
        picture = graph(z)
        assert names(picture) == ["lazyeng_tests::gate", "aten::mm", "aten::cumsum"]
        assert all(op.pushed for op in picture.ops)
    finally:
        gate.open()
    assert z.tolist() == torch.full((3, 3), 3.0).cumsum(0).tolist()


def test_a_picture_changes_no_result():
    x = torch.rand(50)
    with lazy("deferred"):
        y = (x * 3 + 1).neg()
        z = y * y
        for _ in range(3):
            graph(z)
        del y
        result = z + 1
    assert torch.equal(lazyeng.unwrap(result), (x * 3 + 1).neg().square() + 1)


def test_text():
    x = wrap(torch.rand(2, 3))
    with lazy("deferred"):
        y = (x * 2).cumsum(0)
        text = str(graph(y)).splitlines()
    assert re.fullmatch(
        r"mul#\d+ = aten::mul.Tensor\(float32\[2,3\]@cpu, int64\[\]@cpu\) -> "
        r"float32\[2,3\]@cpu  @ test_pending.py:\d+", text[0])  # fmt: skip
    assert re.search(r"  reads mul#\d+  @ test_pending.py", text[1])


def test_print(capsys):
    with lazy("deferred"):
        y = wrap(torch.rand(2)).cumsum(0)
        graph(y).print()
    assert "aten::cumsum" in capsys.readouterr().out


def test_dot():
    x = wrap(torch.rand(8, 8))
    with lazy("deferred"):
        z = (x @ x * 2 + 1).neg()
        picture = graph(z)
    dot = picture.to_dot()
    mm, mul, *_ = (op.label for op in picture.ops)
    assert f'"{mm}" -> "{mul}";' in dot and "subgraph cluster_" in dot
    assert dot.count("{") == dot.count("}")
    assert sum(" -> " in line and "[" not in line for line in dot.splitlines()) == 3


def test_html_is_one_well_formed_page(tmp_path):
    x = wrap(torch.rand(8, 8))
    with lazy("deferred"):
        y = x @ x
        z = (y * 2 + 1).neg() @ y.cumsum(0)
        picture = graph(z)
    page = picture.to_html(tmp_path / "graph.html")
    assert (tmp_path / "graph.html").read_text() == page
    assert "http" not in page and "<script" not in page
    svg = ElementTree.fromstring(re.search(r"<svg.*</svg>", page, re.S)[0])
    titles = [title.text for title in svg.iter("title")]
    assert sorted(titles) == sorted(str(picture).splitlines())
    tops = {}
    for item in svg.findall("g"):
        tops[item.find("text").text, item.find("title").text] = float(item.find("rect").get("y"))
    by_label = {text.split(" = ")[0]: top for (_, text), top in tops.items()}
    for op in picture.ops:
        assert all(by_label[before] < by_label[op.label] for before in op.reads), html.escape(page)


def test_large_graph():
    x = wrap(torch.rand(4))
    with lazy("deferred"):
        for _ in range(5_000):
            x = x.cumsum(0)
        picture = graph(x)
    assert len(picture) == 5_000
    picture.to_dot()
    assert picture.to_html().count('<g class="item">') == 5_000  # in time that is not quadratic


def test_plain_tensors_have_none():
    with pytest.raises(TypeError, match="expected LazyTensors, got Tensor"):
        graph(torch.ones(2))
