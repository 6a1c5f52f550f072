"""lazyeng.profile and python -m lazyeng.report: what was recorded, run and waited for."""

import asyncio
import gc
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import lazyeng
from lazyeng import _C, lazy, report, synchronize, wrap
from tests.support.gate import Gate


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "trace.json")


def events_of(path, **wanted):
    """Events that have these values, by the time when they begin."""
    with open(path) as file:
        events = json.load(file)["traceEvents"]
    found = [e for e in events if all(e.get(key) == value for key, value in wanted.items())]
    return sorted(found, key=lambda e: e.get("ts", 0))


def end(event):
    return event["ts"] + event["dur"]


def test_every_op_is_recorded_and_run(path, mode):
    x, w = torch.rand(64, 64), torch.rand(64, 64)
    with lazyeng.profile(path), lazy(mode):
        for _ in range(3):
            y = torch.linalg.solve(x, w)
            z = (y @ w).t().exp()
        z.sum().item()
    records = events_of(path, cat="record")
    runs = events_of(path, cat="run") + [
        {"args": {"number": int(member.split("#")[1])}, "name": member.split("#")[0]}
        for group in events_of(path, cat="group")
        for member in group["args"]["members"]
    ]
    numbers = {e["args"]["number"]: e["name"] for e in runs if "number" in e["args"]}
    assert sum(e["name"] == "aten::mm" for e in records) == 3
    for record in records:
        number = record["args"].get("number")
        if number:
            assert numbers[number] == record["name"]
    assert any(e["name"] == "aten::t" and "number" not in e["args"] for e in records)


def test_lines_are_the_programs(path):
    x = wrap(torch.rand(8, 8))
    with lazyeng.profile(path):
        x.mm(x)  # LINE
        synchronize()
    (record,) = events_of(path, cat="record", name="aten::mm")
    lines = Path(__file__).read_text().splitlines()
    line = next(i for i, text in enumerate(lines, 1) if text.endswith("# LINE"))
    assert record["args"]["line"] == f"test_profiler.py:{line}"


def test_arrows_lead_from_record_to_run(path):
    with lazyeng.profile(path), lazy("deferred"):
        x = torch.rand(16, 16)
        (x @ x).relu().add(1).tolist()
    starts = {e["id"]: e for e in events_of(path, ph="s")}
    ends = {e["id"]: e for e in events_of(path, ph="f")}
    assert starts.keys() == ends.keys() and len(starts) >= 3
    records = {e["args"].get("number"): e for e in events_of(path, cat="record")}
    ran = events_of(path, cat="run") + events_of(path, cat="group")
    for number, start in starts.items():
        assert start["tid"] == records[number]["tid"] and start["ts"] == records[number]["ts"]
        assert any(
            e["tid"] == ends[number]["tid"] and e["ts"] <= ends[number]["ts"] <= end(e) for e in ran
        )


def chain(x):
    return (x * 2 + 1).neg()


def in_one_group(program):
    """Ran before: what was found out about its ops is known, and nothing runs at the call."""
    with lazy("deferred"):
        program()
        synchronize()


def test_groups_name_their_members(path):
    x = wrap(torch.rand(100))
    in_one_group(lambda: chain(x))
    with lazyeng.profile(path), lazy("deferred"):
        chain(x).tolist()
    (group,) = events_of(path, cat="group")
    names = [member.split("#")[0] for member in group["args"]["members"]]
    assert names == ["aten::mul.Tensor", "aten::add.Tensor", "aten::neg"]
    assert not [e for e in events_of(path, cat="run") if e["name"] == "aten::neg"]


def test_the_reader_runs_a_group_that_is_soon_done(path):
    """Of 64 KiB, say: a worker takes longer to wake up."""

    def threads(numel):
        x = wrap(torch.rand(numel))
        with lazyeng.profile(path), lazy("deferred"):
            (x * 2 + 1).neg().wait()
        (group,) = events_of(path, cat="group")
        return group["tid"], events_of(path, cat="record")[0]["tid"]

    runs, records = threads(1 << 14)
    assert runs == records
    runs, records = threads(1 << 20)
    assert runs != records


def test_the_reader_looks_up_a_few_rows_of_a_large_table(path):
    weight, rows = wrap(torch.rand(50_000, 64)), torch.arange(16)
    for _ in range(2):  # the first call finds out what it returns
        with lazyeng.profile(path), lazy("deferred"):
            torch.nn.functional.embedding(rows, weight).wait()
    (run,) = events_of(path, cat="run")
    assert run["tid"] == events_of(path, cat="record")[0]["tid"]


def test_waits_are_shown_without_sync_debug(path):
    x = wrap(torch.rand(300, 300))
    with lazyeng.profile(path), lazy("deferred"):
        y = x @ x
        y.sum().item()  # WAITS
    (wait,) = events_of(path, cat="wait")
    assert wait["args"]["line"].startswith("test_profiler.py:")
    assert wait["args"]["reason"].endswith("its value is read")
    run = events_of(path, cat="run", name="aten::mm")[0]
    assert wait["ts"] <= run["ts"] and end(run) <= end(wait) + 1


def test_all_is_complete_at_the_end(path):
    with lazyeng.profile(path), lazy("deferred"):
        y = torch.rand(32, 32) @ torch.rand(32, 32)
    assert y.is_ready()
    assert len(events_of(path, cat="run", name="aten::mm")) == 1


def test_counters_end_at_zero(path):
    with lazyeng.profile(path), lazy("deferred"):
        x = torch.rand(64)
        for _ in range(10):
            x = torch.cumsum(x, 0)
    for name in ("pending ops", "pending bytes"):
        (values,) = zip(*(e["args"].values() for e in events_of(path, name=name)), strict=True)
        assert max(values) > 0 and values[-1] == 0 and min(values) >= 0


def test_failures_stay_for_their_readers(path):
    x = wrap(torch.zeros(3, 3))
    with lazyeng.profile(path), lazy("deferred"):
        y = torch.linalg.inv(x)
        z = y + 1
    failed = [e["name"] for e in events_of(path, cat="run") if e["args"].get("failed")]
    assert failed == ["aten::linalg_inv_ex"] or failed == ["aten::_linalg_check_errors"]
    for tensor in (y, z):
        with pytest.raises(torch.linalg.LinAlgError):
            tensor.tolist()


def test_threads_have_their_names(path):
    def work():
        (wrap(torch.rand(640, 640)) @ torch.rand(640, 640)).tolist()  # too large for the reader

    thread = threading.Thread(target=work, name="my loader")
    with lazyeng.profile(path):
        thread.start()
        thread.join()
    names = {e["args"]["name"] for e in events_of(path, name="thread_name")}
    assert any(name.startswith("lazyeng-") for name in names)


def test_one_at_a_time(path):
    with lazyeng.profile(path):
        with pytest.raises(RuntimeError, match="another profile"), lazyeng.profile(path):
            pass
    with lazyeng.profile(path):
        pass
    assert events_of(path, cat="profile")


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # fork with threads
def test_a_forked_child_is_not_traced(path):
    with lazyeng.profile(path):
        x = wrap(torch.rand(8, 8)).cumsum(0)
        child = os.fork()
        if child == 0:
            try:
                with lazyeng.profile(path + ".child"):  # its own, if it wants one
                    (x @ x).tolist()
            finally:
                os._exit(len(events_of(path + ".child", cat="run", name="aten::mm")))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
        x.tolist()
    assert events_of(path, cat="run", name="aten::cumsum")
    assert not events_of(path, name="aten::mm")


def test_a_forked_child_that_leaves_the_block(path):
    """It writes nothing: the file is its parent's."""
    block = lazyeng.profile(path)
    with block:
        wrap(torch.rand(8, 8)).cumsum(0).tolist()
        child = os.fork()
        if child == 0:
            try:
                block.__exit__(None, None, None)
            except BaseException:
                os._exit(1)
            os._exit(2 if os.path.getsize(path) else 0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert events_of(path, cat="run", name="aten::cumsum")


def test_as_a_decorator(path):
    @lazyeng.profile(path)
    def program():
        return (wrap(torch.rand(8, 8)) @ torch.rand(8, 8)).sum().item()

    program()
    program()
    assert len(events_of(path, cat="run", name="aten::mm")) == 1


def test_generators_and_coroutines_are_traced_to_their_end(path, tmp_path):
    def mm():
        return (wrap(torch.rand(8, 8)) @ torch.rand(8, 8)).sum().item()

    @lazyeng.profile(path)
    def steps():
        for _ in range(2):
            mm()
            yield

    @lazyeng.profile(path)
    async def main():
        mm()
        await asyncio.sleep(0)
        mm()

    @lazyeng.profile(path)
    async def stream():
        for _ in range(2):
            mm()
            yield

    async def read():
        return [item async for item in stream()]

    for run in (lambda: [*steps()], lambda: asyncio.run(main()), lambda: asyncio.run(read())):
        os.path.exists(path) and os.remove(path)
        run()
        assert len(events_of(path, cat="run", name="aten::mm")) == 2


def test_an_interrupted_profile_is_written(path):
    """What hangs is what one profiles."""
    gate = Gate(limit=20)
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.5, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
    try:
        with pytest.raises(KeyboardInterrupt), lazyeng.profile(path):
            (wrap(torch.rand(8, 8)) @ torch.rand(8, 8)).sum().item()
            gate(wrap(torch.ones(2)))
            timer.start()
    finally:
        gate.open()
        timer.cancel()
        timer.join()
        signal.signal(signal.SIGINT, old)
    assert events_of(path, cat="run", name="aten::mm")
    synchronize()


def test_an_op_that_fails_at_the_call_has_run(path):
    """Programs that read all the time run small ops there (csrc/record/at_once.cpp)."""
    table, right, wrong = torch.rand(4), torch.tensor([1]), torch.tensor([9])
    with lazy():
        for _ in range(5):
            (table[right] + 1).tolist()
        with lazyeng.profile(path), pytest.raises(IndexError):
            (table[wrong] + 1).tolist()
    (run,) = events_of(path, cat="run", name="aten::index.Tensor")
    (record,) = events_of(path, cat="record", name="aten::index.Tensor")
    assert run["args"]["failed"] and run["args"]["number"] == record["args"]["number"]


def test_threads_that_have_ended_have_their_names(path):
    def evaluate():
        for _ in range(20):  # (it waits in one of them at least)
            (wrap(torch.rand(300, 300)) @ torch.rand(300, 300)).sum().item()

    with lazyeng.profile(path):
        thread = threading.Thread(target=evaluate, name="evaluator")
        thread.start()
        thread.join()
    names = {e["args"]["name"] for e in events_of(path, ph="M", name="thread_name")}
    assert "evaluator" in names


def test_threads_that_have_ended_and_never_waited_have_their_names(path):
    x, results = wrap(torch.rand(8, 8)), []
    with lazyeng.profile(path):
        thread = threading.Thread(target=lambda: results.append(x @ x), name="recorder \u00e9")
        thread.start()
        thread.join()
    names = {e["args"]["name"] for e in events_of(path, ph="M", name="thread_name")}
    assert "recorder \u00e9" in names


def test_an_exception_passes_and_the_trace_is_written(path):
    with pytest.raises(KeyError), lazyeng.profile(path):
        (wrap(torch.rand(8, 8)) @ torch.rand(8, 8)).sum().item()
        raise KeyError
    assert events_of(path, cat="run", name="aten::mm")


def test_a_file_that_cannot_be_written_is_told_of_at_the_start(tmp_path):
    begun = False
    with pytest.raises(FileNotFoundError), lazyeng.profile(tmp_path / "no folder" / "trace.json"):
        begun = True
    assert not begun
    with lazyeng.profile(tmp_path / "trace.json"):  # no profile is left open
        wrap(torch.ones(3)).sum().item()
    assert events_of(str(tmp_path / "trace.json"), cat="profile")


@pytest.mark.parametrize("given, name", [(3, "int"), (None, "NoneType"), (b"x", "bytes")])
def test_what_is_no_path_is_named(given, name):
    with pytest.raises(TypeError, match=f"profile: path must be a str or a path, got {name}"):
        lazyeng.profile(given)


def test_names_may_hold_anything(path):
    """Events are put together by hand."""
    program = compile("y = (x @ x).cumsum(0); y.wait()", 'a"\\b\n\u00e9.py', "exec")
    thread = threading.Thread(target=exec, args=(program, {"x": wrap(torch.ones(8, 8))}), name='"')
    with lazyeng.profile(path), lazy("deferred"):
        thread.start()
        thread.join()
    (record,) = events_of(path, cat="record", name="aten::mm")
    assert record["args"]["line"] == 'a"\\b\n\u00e9.py:1'
    assert '"' in [e["args"]["name"] for e in events_of(path, name="thread_name")]


def test_the_collector_need_not_look_at_what_was_kept():
    """There may be some hundred thousand ranges."""
    x = wrap(torch.ones(100))
    in_one_group(lambda: chain(x))
    assert _C.start_trace()
    with lazy("deferred"):
        chain(x).wait()
    events = [event for _, _, events in _C.stop_trace() for event in events]
    assert {event[0] for event in events} >= {"record", "group"}
    members = [event[-1] for event in events]
    each = itertools.chain(events, members, *members)
    assert not any(map(gc.is_tracked, each))


def test_an_older_file_is_replaced(path):
    with open(path, "w") as file:
        file.write("x" * 100_000)
    with lazyeng.profile(path):
        wrap(torch.ones(3)).sum().item()
    assert events_of(path, cat="profile")


def test_report(path):
    x = wrap(torch.rand(640, 640))
    with lazyeng.profile(path), lazy("deferred"):
        for _ in range(3):
            y = x @ x
            (y * 2 + 1).neg().numpy()
    done = subprocess.run(
        [sys.executable, "-m", "lazyeng.report", path], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    (mm,) = [line.split() for line in lines if line.startswith("aten::mm ")]
    assert mm[1] == mm[3] == "3"
    assert any(line.startswith("group: mul add neg ") for line in lines)
    assert any("test_profiler.py:" in line and "its value is read" in line for line in lines)
    assert any(line.startswith("lazyeng-cpu") for line in lines)
    page = Path(path).with_suffix(".html").read_text()
    assert "aten::mm" in page and "http" not in page  # it loads nothing


@pytest.mark.parametrize("text", [
    '{"traceEvents": []}', '[]', '{"traceEvents": 3}', '{"traceEvents": [{"name": "no phase"}]}',
    '{"traceEvents": [{"ph": "X", "ts": 1, "dur": 1, "name": "no category"}]}',
    '{"traceEvents": [{"ph": "X", "cat": "profile"}]}',
    '{"traceEvents": [{"ph": "X", "cat": "profile", "ts": 0, "dur": "long", "tid": 1}]}',
    '{"traceEvents": [{"ph": "X", "cat": "profile", "ts": 0, "dur": NaN, "tid": 1}]}',
    '{"traceEvents": [{"ph": "X", "cat": "profile", "ts": 0, "dur": 1, "tid": 1},'
    ' {"ph": "X", "cat": "wait", "ts": 0, "dur": 1, "tid": 1, "args": {}}]}',
    '{"traceEvents": [{"ph": "X", "cat": "profile", "ts": 0, "dur": 1, "tid": 1},'
    ' {"ph": "X", "cat": "group", "ts": 0, "dur": 1, "tid": 1}]}',
    "[" * 100_000, b"\xff".decode("latin-1"),
])  # fmt: skip
def test_report_of_something_else(text, path, capsys):
    with open(path, "w") as file:
        file.write(text)
    assert report.main([path]) == 2
    assert "expected a trace written by lazyeng.profile" in capsys.readouterr().err
    assert report.main([path + ".none"]) == 2


def test_the_report_is_not_read_to_its_end(path):
    with lazyeng.profile(path):
        wrap(torch.ones(3)).sum().item()
    with subprocess.Popen(
        [sys.executable, "-m", "lazyeng.report", path],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as command:  # fmt: skip
        command.stdout.close()
        assert command.stderr.read() == "" and command.wait(60) == 1


def test_report_does_not_replace_the_trace(tmp_path, capsys):
    for name, options in (("trace.html", []), ("trace.json", ["--html", tmp_path / "trace.json"])):
        path = str(tmp_path / name)
        with lazyeng.profile(path):
            wrap(torch.ones(3)).sum().item()
        assert report.main([path, *map(str, options)]) == 2
        assert "expected another file for the page" in capsys.readouterr().err
        assert events_of(path, cat="profile")


def test_report_of_a_page_that_cannot_be_written(path, capsys):
    with lazyeng.profile(path):
        wrap(torch.ones(3)).sum().item()
    assert report.main([path, "--html", "/no/such/folder/page.html"]) == 2
    assert "No such file or directory" in capsys.readouterr().err


def test_report_of_threads_without_a_name(path, capsys):
    with open(path, "w") as file:
        same = {"ph": "X", "name": "mm", "ts": 0, "dur": 1, "args": {}}
        ranges = [{"cat": "run", "tid": 5, **same}, {"cat": "profile", "tid": 0, **same}]
        json.dump({"traceEvents": ranges}, file)
    assert report.main([path]) == 0
    assert "thread 5" in capsys.readouterr().out


def test_names_cannot_end_the_page(path):
    page = report.timeline_html(
        "<b>", {1: "</script><script>alert(1)</script>"},
        [{"tid": 1, "cat": "run", "ts": 0.0, "dur": 1.0, "name": "</script>@DATA@"}], 1.0,
    )  # fmt: skip
    assert page.count("</script>") == 1 and "<b></title>" not in page


def test_covered_time_counts_once():
    ranges = [{"ts": 0.0, "dur": 10.0}, {"ts": 2.0, "dur": 3.0}, {"ts": 8.0, "dur": 4.0}]
    assert report._covered(ranges) == 12.0


def test_under_torchs_profiler():
    """Its ranges on the program's thread are those of recording; the results are the same."""
    x = torch.rand(16, 16)
    with torch.profiler.profile() as profiler, lazy():
        y = ((x @ x) * 2 + 1).sum()
        value = y.item()
    assert value == pytest.approx(((x @ x) * 2 + 1).sum().item())
    names = {event.name for event in profiler.events()}
    assert {"aten::mm", "aten::mul", "aten::sum"} <= names


def test_torchs_profiler_sees_the_engines_threads():
    x = torch.rand(640, 640)  # too large for the thread that reads to run it itself
    in_one_group(lambda: (x @ x) * 2 + 1)
    config = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with torch.profiler.profile(experimental_config=config) as profiler, lazy("deferred"):
        ((x @ x) * 2 + 1).tolist()
    threads = {name: set() for name in ("aten::mm", "lazyeng::group")}
    for event in profiler.events():
        threads.get(event.name, set()).add(event.thread)
    assert len(threads["aten::mm"]) == 2 and threads["lazyeng::group"]


def threads_of(profiler):
    """Of each name, the threads on which it was seen."""
    threads = {}
    for event in profiler.events():
        threads.setdefault(event.name, set()).add(event.thread)
    return threads


def test_torchs_profiler_sees_what_engine_threads_run():
    x = torch.rand(640, 640)  # too large for the thread that reads to run it itself
    in_one_group(lambda: (x @ x) * 2 + 1)
    for _ in range(2):  # a second profile as the first
        with torch.profiler.profile() as profiler, lazy("deferred"):
            y = (x @ x) * 2 + 1
        # (It is complete when the profile ends.)
        assert y.is_ready()
        threads = threads_of(profiler)
        assert len(threads["aten::mm"]) == 2 and threads["lazyeng::group"]


def test_torchs_profiler_sees_an_op_in_parts_once():
    """Whichever threads do them (csrc/run/cores/parts.h), and not the trials that go before."""
    x = torch.rand(256, 256)
    _C.set_always_in_parts(True)
    try:
        done = lazyeng.engine_stats()["in_parts"]
        for _ in range(24):
            with torch.profiler.profile() as profiler, lazy("deferred"):
                y = x @ x
            assert y.is_ready()
            names = [event.name for event in profiler.events()]
            assert names.count("aten::mm") == 2, names  # recorded, and run
            assert not {"aten::narrow", "aten::_to_copy"} & {*names}, names
        assert torch.get_num_threads() == 1 or lazyeng.engine_stats()["in_parts"] > done
    finally:
        _C.set_always_in_parts(False)


def test_torchs_profiler_sees_no_trials():
    """What a kernel refuses is found out with made-up tensors, at the first call of its kind."""
    x = wrap(torch.rand(6, 6, dtype=torch.complex64))
    with torch.profiler.profile() as profiler:
        torch.mm(x, x).wait()
    names = [event.name for event in profiler.events()]
    assert "aten::mm" in names
    assert not {"aten::ones", "aten::fill_"} & {*names}, names


def test_profiles_end_while_engine_threads_work():
    x = torch.rand(64, 64)
    done = threading.Event()

    def work():
        with lazy():
            while not done.is_set():
                for _ in range(50):
                    y = (x @ x).cos()
                y.wait()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(10):
            with torch.profiler.profile() as profiler:
                (wrap(x) @ x).sum().item()
            assert "aten::mm" in threads_of(profiler)
    finally:
        done.set()
        thread.join()
