"""Programs that do not use lazyeng: where it is installed, torch imports it, and nothing that they
do may change by that (csrc/record/device/accelerator.h)."""

from .support import fresh

PROBES = """
import os, tempfile, warnings
warnings.simplefilter("ignore")
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils import benchmark

def show(name, probe):
    try:
        print(name, repr(probe()))
    except BaseException as error:
        print(name, type(error).__name__, error)

one = torch.ones(1, 1)
show("DataParallel", lambda: torch.nn.DataParallel(torch.nn.Linear(1, 1))(one).shape)
show("Timer", lambda: benchmark.Timer("x + x", globals={"x": one}).timeit(1).median > 0)
for name in ("is_available", "current_accelerator", "device_count", "synchronize", "empty_cache",
             "memory_allocated", "current_stream"):
    show(f"accelerator.{name}", lambda: getattr(torch.accelerator, name)())
show("Stream", lambda: type(torch.Stream()).__name__)
show("pinned", lambda: one.is_pinned())
show("pin", lambda: one.pin_memory().shape)
loader = torch.utils.data.DataLoader([1, 2], pin_memory=True)
show("loader", lambda: [x.is_pinned() for x in loader])
with tempfile.TemporaryDirectory() as folder:
    show("save", lambda: len(dcp.save({"a": one}, checkpoint_id=folder).state_dict_metadata))
    show("load", lambda: dcp.load({"a": torch.zeros(1, 1)}, checkpoint_id=folder))
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
show("backend", lambda: dist.get_default_backend_for_device(
    torch.accelerator.current_accelerator() or "cpu"))
show("group", lambda: dist.init_process_group())
show("group", lambda: dist.get_backend())
show("mesh", lambda: init_device_mesh("cpu", (1,)))
show("shard", lambda: fully_shard(torch.nn.Linear(1, 1))(one).shape)
dist.destroy_process_group()
show("fork_rng", lambda: torch.random.fork_rng().__enter__())
show("devices", lambda: torch.get_default_device())
show("profiler", lambda: sorted(map(str, torch.profiler.supported_activities())))
"""


def test_nothing_changes_by_the_installation():
    without = fresh.run(PROBES)
    with_lazyeng = fresh.run("import lazyeng\n" + PROBES)
    assert without.returncode == with_lazyeng.returncode == 0, with_lazyeng.stderr
    assert with_lazyeng.stdout == without.stdout
    assert "DataParallel torch.Size([1, 1])" in without.stdout
