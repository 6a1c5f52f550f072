"""What a call that ran at once for another reason says of later ones (csrc/record/recorder.cpp)."""

from tests.support.fresh import run


def test_a_setting_leaves_no_doubt_behind():
    """Under it kernels may refuse, so calls run at once; that their meta functions were not asked
    does not make these wrong."""
    program = """
import torch
from lazyeng import lazy, wrap

torch.use_deterministic_algorithms(True)
with lazy():
    wrap(torch.ones(1)) * 2
torch.use_deterministic_algorithms(False)
for mode in ("async", "deferred"):
    with lazy(mode):
        failed = wrap(torch.ones(3)).take(wrap(torch.tensor([7])))
        y = failed * 2  # (raised here if it ran at once)
    try:
        y.item()
    except IndexError:
        print("read", mode)
"""
    done = run(program, timeout=60)
    assert done.stdout == "read async\nread deferred\n", done.stdout + done.stderr
