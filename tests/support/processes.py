"""Scripts in processes of their own. `alone` and `start` give them an interpreter from start to
end, which takes seconds; `run` and `check` fork (fresh.py) unless they are told otherwise."""

import os
import signal
import subprocess
import sys
import textwrap

from tests.support import fresh

IMPORTS = "import torch, lazyeng\nfrom lazyeng import lazy, wrap\n"
# faulthandler.enable() only: the thread of dump_traceback_later does not live on in a forked child,
# whose exit then waits for it for ever.
PRELUDE = """
import faulthandler, os, sys, time
faulthandler.enable()
import torch, lazyeng
from lazyeng import lazy, synchronize, wrap
from tests.support.thread_names import count_threads
"""


def start(script, *options, **environment):
    """`options` are the interpreter's, in front of the script."""
    return subprocess.Popen(
        [sys.executable, *options, "-c", script], env=os.environ | environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finished(process, timeout=60):
    """What a process was and said. One that hangs is aborted, so that stderr shows where it was."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)
        try:
            out, err = process.communicate(timeout=5)
        except subprocess.TimeoutExpired:  # a forked child still holds the pipes
            process.kill()
            out, err = "", "hangs, and so does a child of it"
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def alone(script, *options, head="", timeout=60, **environment):
    """Runs `head` and the script, which may be indented, in an interpreter of their own."""
    return finished(start(head + textwrap.dedent(script), *options, **environment), timeout)


def printed_by(script, *options, head="", timeout=120, **environment):
    """What a script prints that has an interpreter of its own, and must end with status 0."""
    done = alone(script, *options, head=head, timeout=timeout, **environment)
    assert done.returncode == 0, f"exit {done.returncode}: {done.stderr[-3000:]}"
    return done.stdout


def run(body, *, own=False, timeout=60, **environment):
    """Runs the script after PRELUDE. `own`: with an interpreter of its own."""
    if own:
        return alone(body, head=PRELUDE, timeout=timeout, **environment)
    return fresh.run(PRELUDE + textwrap.dedent(body), env=environment, timeout=timeout)


def check(body, stdout, **settings):
    """As `run`; status 0, and words that are printed."""
    done = run(body, **settings)
    assert done.returncode == 0, f"exit {done.returncode}: {done.stderr[-3000:]}"
    assert done.stdout.split() == stdout.split(), done.stderr[-3000:]
    return done
