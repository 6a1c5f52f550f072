"""The C++ core (csrc/bindings.cpp). Not for users: its functions trust their callers.

Whatever waits lets go of the GIL meanwhile, and raises KeyboardInterrupt on Ctrl-C.
"""

from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Literal, TypeVar

import torch

from lazyeng.tensor import LazyTensor

R = TypeVar("R")

"""Mode, depth and block number before the block, and the number of the block itself."""

# ---- life of the core

def init(cls: type[torch.Tensor], workers: int, /) -> int:
    """Makes the recorder and a stopped engine, and registers the kernels; returns how many of them. Once."""

def start_engine() -> None:
    """Lets the engine's threads run; nothing if they do."""

def stop_engine() -> None:
    """Pushes and runs everything recorded, then ends the threads."""

def abandon_engine(patience: float, /) -> bool:
    """Lets nothing run any more, and interrupts kernels written in Python; False if not all have ended in so many seconds."""

def before_fork() -> None:
    """Runs everything recorded, ends the engine's threads, and keeps all other threads from recording."""

def after_fork_in_parent() -> None:
    """Starts the engine again and lets the other threads go on.

    What a handler of a signal has raised since `before_fork` is raised when `os.fork` returns.
    """

def after_fork_in_child() -> bool:
    """Starts the engine; False if it cannot be, because the fork happened within an op or a wait."""

def set_num_workers(n: int, /) -> None:
    """Sets the number of threads for CPU ops; waits for the ops that run now."""

def num_workers() -> int:
    """The number of threads for CPU ops."""

def set_limits(max_pending_ops: int, max_pending_bytes: int, /) -> None:
    """Sets the bounds of run-ahead, in ops and in bytes."""

def keep_accelerator() -> bool:
    """To be called before PrivateUse1 is named; False: it must not be (csrc/record/device/accelerator.h)."""

def set_backing_device(device: str, /) -> None:
    """Sets the device that torch.device("lazyeng") stands for."""

def arm_first_use() -> None:
    """Has `lazyeng.setup_core.look_again` be called, once, when lazyeng is first used."""

def adopt_ops_with_kernels() -> None:
    """Gives ops registered since the last call a kernel that records them as one op."""

def take_back_kernels(name: str, /) -> None:
    """Ours of an op of another namespace, "mylib::foo", before its definitions end."""

def set_replaced(name: str, overload: str, replaced: bool, /) -> bool:
    """An aten op has a kernel of the program in place of torch's, or has one no longer: it is treated as a custom op. False: there is no such op."""

# ---- tensors

def wrap_bare(obj: object, /) -> LazyTensor | None:
    """`wrap` of a plain tensor that has no part in autograd; None if it is something else."""

def unwrap_bare(obj: object, /) -> torch.Tensor | None:
    """`unwrap` of a LazyTensor that has no part in autograd; None if it is something else."""

def wrap_tensor(tensor: torch.Tensor, /) -> LazyTensor:
    """A LazyTensor over the same storage; the tensor itself if it is lazy. TypeError if it is no tensor."""

def is_lazy(obj: object, /) -> bool:
    """Whether this is a lazy tensor; False for anything else."""

def lie_alike(*lists: list[torch.Tensor]) -> bool:
    """Whether all tensors have one device and dtype, and those of each place in the lists are strided, without gaps, of the same sizes and strides. TypeError if the lists are not equally long."""

def plain(tensor: torch.Tensor, /) -> torch.Tensor:
    """A plain tensor over the same memory, detached. Waits; raises what failed; TypeError if it is not lazy."""

def share_version(of: torch.Tensor, to: torch.Tensor, /) -> None:
    """Gives `to`, of the same memory, the version counter of `of`. Nothing if one has none."""

def share_history(of: torch.Tensor, to: torch.Tensor, /) -> None:
    """Gives `to`, a leaf that needs no gradient, the autograd node of `of`: both have one gradient."""

def plain_view(tensor: torch.Tensor, /) -> torch.Tensor:
    """As `plain`, but a view in autograd's eyes: of the same history and version, also when written."""

def values(tensor: torch.Tensor, /) -> torch.Tensor:
    """As `plain`, when a GPU has done what it was given too: for reading values."""

def wait(tensor: torch.Tensor, /) -> None:
    """Waits for a lazy tensor, and for its device; raises what failed; TypeError if it is not lazy."""

def is_ready(tensor: torch.Tensor, /) -> bool:
    """Whether no recorded write to the lazy tensor's storage is pending; TypeError if it is not lazy."""

def status(tensor: torch.Tensor, /) -> tuple[Literal["pending", "failed", "ready"], str]:
    """The state of a lazy tensor and "aten::mm @ train.py:42" of the op behind it ("" if ready). Never waits."""

def complete_storage(storage: torch.UntypedStorage, writes: bool, /) -> None:
    """Waits for recorded writes to the storage's memory, which somebody is about to look at, or, if he `writes` it, for all that was recorded on it."""

def finish_uses(tensor: torch.Tensor, /) -> None:
    """Waits for all that was recorded on a plain tensor's memory, outside of blocks and kernels."""

def follow_storage(storage: torch.UntypedStorage, /) -> bool:
    """The engine follows to the storage's present memory, which no pending op may use; False if it does not know it."""

# ---- waiting for more than one tensor, and failures

def flush() -> None:
    """Pushes the window to the engine; waits for nothing."""

def wait_for_all() -> None:
    """Waits for everything recorded so far; raises no failure."""

def set_collectives_at_the_call(on: bool) -> None:
    """Whether the calling thread's collectives are called at the call instead of recorded."""

def wait_for_plain_writes() -> None:
    """Waits for recorded writes to plain tensors and for draws from generators; raises no failure."""

def finish_plain_reads() -> None:
    """Waits for what has been recorded that reads memory of plain tensors; raises no failure."""

def wait_for_generators() -> None:
    """Waits for recorded draws from random generators."""

def unreported() -> list[BaseException]:
    """A new exception for each failure not reported yet, in the order of creation; they count as reported now."""

def failures_of_block(block: int, /) -> list[BaseException]:
    """A new exception for each failed write to a plain tensor that this open lazy() block recorded, whether or not it has been reported; they count as reported now."""

def look_at_failures_of_block(block: int, /) -> list[BaseException]:
    """The same for those that are not reported, and that are not afterwards."""

def any_failure() -> bool:
    """Whether some tensor may have failed: failures live as long as those."""

def mark_reported() -> None:
    """Marks all failures so far as reported."""

def deliver_warnings() -> None:
    """Gives what kernels warned of on engine threads to Python's `warnings`; may raise there."""

def set_reports_waits(reports: bool, /) -> bool:
    """Says whether waits of the calling thread are reported to lazyeng.sync_debug; returns what was said before."""

# ---- lazy() blocks and modes; a mode is an index into lazyeng.config.MODES

def call_in_block(mode: int, function: Callable[..., R], args: tuple[Any, ...], /) -> R:
    """Calls function(*args) in a block, at whose end nothing waits."""

def with_methods(
    finish: Callable[[Any, int, BaseException | None], None], /
) -> tuple[Callable[..., Any], Callable[..., None]]:
    """``__enter__`` and ``__exit__`` of blocks, which no handler of a signal interrupts. `finish` is called with the object, the block (-1: none was entered) and what leaves it."""

def leave_block(block: int, /) -> None:
    """Leaves a block: what counts is the innermost of those that are still open."""

def leave_blocks() -> None:
    """Leaves all blocks of this thread, in a process that will not come to their ends."""

def in_custom_kernel() -> bool:
    """Whether the calling thread runs the kernel of a recorded custom op, which sees real tensors."""

def thread_mode() -> tuple[int, int]:
    """The calling thread's mode and how many blocks are around it."""

def alone_holds_back(block: int, /) -> bool:
    """Whether all other blocks around the calling thread are of mode sync."""

def records_in_sync_only() -> bool:
    """Whether the engine's threads have ended, or are ending, with the program."""

def set_default_mode(mode: int, /) -> None:
    """Sets the mode outside any block, for all threads."""

def set_backward_from_lazy(lazy: bool, /) -> bool:
    """Says whether the backward pass that this thread is about to run starts from lazy tensors; returns what was said before."""

def follow_autocast() -> None:
    """Autocast has been turned on or off in this thread: so it is for what torch.func wraps around lazy tensors."""

# ---- memory of plain tensors

def reads_directly(tensor: torch.Tensor, /) -> bool:
    """Whether a method may look at the tensor's memory at once, without call_eagerly. Only for tensors."""

def before_lending(tensor: torch.Tensor, /) -> None:
    """Its memory is about to be given to others. Waits for what was recorded and reads or writes it."""

def lent(handle: torch.Tensor, /) -> None:
    """Others have the tensor's memory for as long as it lives: it is the base of an array of numpy."""

def lend(tensor: torch.Tensor, /) -> torch.Tensor:
    """What a tensor of another library is to be made of: it tells when that is gone. Waits as
    `before_lending` does. Something else than a plain tensor on the CPU comes back as it is."""

def tell_address(tensor: torch.Tensor, /) -> None:
    """Somebody asks for the address of a tensor's memory. Waits as `before_lending` does."""

def note_alias(tensor: torch.Tensor, alias: torch.Tensor, /) -> None:
    """`alias` is over the tensor's memory, and has a version of its own (`tensor.data`)."""

def call_outside(function: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any], /) -> R:
    """Calls function(*args, **kwargs) as if outside lazy()."""

def call_eagerly(
    function: Callable[..., R],
    tensor: torch.Tensor,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    reads: bool,
    /,
) -> R:
    """Waits for recorded writes to the plain tensor, then calls function(tensor, *args, **kwargs) as if outside lazy().
    A failed write is raised if its values are read."""

def read_memory(method: Callable[[torch.Tensor], R], tensor: torch.Tensor, /) -> R:
    """Waits for recorded writes to the plain tensor, then calls one of torch's methods of C."""

# ---- creation stacks

def set_stack_mode(mode: int, /) -> None:
    """Sets what is captured: an index into lazyeng.config.STACKS."""

def time_capture(count: int, /) -> tuple[float, float]:
    """Nanoseconds of capturing the caller's stack once, and the mean of `count` captures more."""

def set_internal_prefixes(directories: list[str], /) -> None:
    """Frames of files under these directories are not the user's. The first is lazyeng's own."""

def add_internal_code(code: CodeType, /) -> None:
    """Frames of this code object are not the user's either; it is kept alive."""

def hide_while_unwinding(error: BaseException, companion: object, /) -> None:
    """The error is being raised: entries of internal frames around this one are taken out of its traceback.

    `companion` dies with the error, and can have weak references.
    """

def unwind_hook_is_armed() -> bool:
    """Whether what `hide_while_unwinding` installs is in this thread (Python 3.11) or process."""

def capture_stack() -> list[tuple[CodeType, int]]:
    """The caller's stack: (code, offset of the instruction in bytes), outermost first; empty if stacks are off."""

def _new_stub_frame(code: CodeType, globals: dict[str, Any], /) -> FrameType:
    """A frame that never ran and never will, without callers and locals, for synthetic tracebacks."""

# ---- fusion

def set_window_bounds(nodes: int, microseconds: int, /) -> None:
    """For benchmarks: how many nodes a window is held with, and how often an idle worker looks whether recording has paused."""

def set_fusion(on: bool, /) -> None:
    """Says whether windows recorded from now on are partitioned into groups."""

def set_inexact_fusion(on: bool, /) -> None:
    """Says whether groups may hold what they round otherwise than eager, within the tolerance of assert_close."""

def plan_count() -> int:
    """How many plans of groups are kept."""

def set_ops_before_trials(ops: int, /) -> None:
    """How many ops are recorded, after one that may join groups if it gives eager's bits, before that is tried (1000); 0: at once."""

def fused_ops() -> dict[str, bool]:
    """For tests: of each op that joins groups, by its name, whether it reduces a tensor. (A loss may, or may not.)"""

def tried_ops() -> dict[str, tuple[str, str, str, str]]:
    """By name the ops that are tried, and what was found for float32, float64, float16 and bfloat16: "untried", "wanted", "running", "same", "same if dense", "same if whole" or "other"."""

def set_cuda_graphs(on: bool, /) -> None:
    """Whether loops on a GPU are launched as CUDA graphs."""

def set_inexact_device_fusion(on: bool, /) -> None:
    """The same for groups of other devices than the CPU."""

def planned() -> tuple[
    list[tuple[list[tuple], dict[str, Any] | None, list[int], list[Any]]],
    list[tuple],
    list[torch.Tensor | None],
]:
    """What stands in the window as it would be pushed now: (calls, program, values of its tensors, its parameters) of each op, values, storages; lazyeng.fuse.description has a class for each."""

def set_fusion_log(on: bool, /) -> None:
    """Says whether each group is reported on stderr when it runs."""

# ---- kernels of groups on devices

def announce_kernel_requests() -> None:
    """From now on lazyeng.fuse.background.start is called, on the main thread, when a group needs a kernel."""

def next_kernel_request() -> tuple[int, int, dict[str, Any], list[str], tuple[bool, ...]] | None:
    """Waits for a request: (number, architecture or 0, program or calls, ops of its members, whether each tensor of the program lies at a multiple of 16 bytes); None once stop_kernel_requests was called."""

def answer_kernel_request(
    request: int,
    partial_bytes: list[int] = ...,
    kernels: list[tuple] = ...,
    tables: list[tuple] = ...,
    draws: int = ...,
    /,
) -> None:
    """Loads the kernels of a group or of calls: (key, name, bytes of shared memory, warps, cubin, grid, arguments) each, an argument being (kind, type, index, number); tables are (elements of a piece, ((places of tensors, whether it moves, call and position of numbers), ...)); draws: how far they move on the offset of the device's generator. Without kernels torch's own run."""

def set_chosen_ops(names: list[str], pairs: list[tuple[str, str]], lists: list[str], /) -> None:
    """From now on kernels are asked for, hand-written ones, for calls of these ops on devices, for these pairs of calls, and for chains of those ops over lists of tensors."""

def pending_kernel_requests() -> int:
    """Requests that are not answered."""

def stop_kernel_requests() -> None:
    """Ends the threads that wait for requests."""

def give_up_device_groups() -> None:
    """Nothing can be compiled: ops of devices run one by one from now on."""

# ---- memory

def install_buffer_pool(limit: int, /) -> None:
    """Sets up the pool that large memory of engine threads and of blocks comes from; it keeps at most `limit` bytes for reuse. Later calls change that bound."""

def empty_buffer_pool() -> None:
    """Gives the memory that is kept for reuse back to the system."""

# ---- timing, for benchmarks/engine.py

def time_window() -> float:
    """Nanoseconds that the only worker takes for all that is recorded and not pushed yet."""

def time_cache_line() -> float | None:
    """Nanoseconds in which a cache line comes from one core to another; None where there is one core."""

def time_empty_ops(count: int, /) -> float:
    """Nanoseconds that the only worker takes for an op of the engine that does nothing, of `count`."""

def time_kernel(name: str, x: torch.Tensor, y: torch.Tensor, count: int, /) -> tuple[float, float]:
    """Nanoseconds of an op's CPU kernel, called directly, and through the dispatcher with its arguments on a stack; of `count` calls each."""

# ---- versions

def announce_own_write(tensor: torch.Tensor, /) -> None:
    """Says that an op is about to bump the tensor's version counter and then to be recorded."""

def expect_bump(tensor: torch.Tensor, /) -> object:
    """Says that torch will bump the counter for recorded writes; to be kept until it has."""

# ---- numbers

def stats() -> dict[str, int]:
    """The counters of `lazyeng.engine_stats` (lazyeng/stats.py has their names), since import."""

def microseconds_on_one_core(
    name: str, overload: str, tensors: list[torch.Tensor], num_args: int, /
) -> float:
    """What the table of costs (csrc/run/cores/width.cpp) says of the op with these arguments, then results. Infinite: it does not know it."""

def kernel_settings_changed(can_be_read: bool, /) -> None:
    """Which kernels torch chooses may be others from now on."""

def set_warn_always(always: bool, /) -> None:
    """torch.set_warn_always, whatever warnings lazyeng ignores at the moment."""

def warns_always() -> bool:
    """What the program has set so."""

def set_trials_bounded(bounded: bool, /) -> None:
    """For tests: whether trials of widths and parts stop once they have taken their time."""

def set_always_in_parts(always: bool, /) -> None:
    """For tests: what threads that have nothing else to do may help with is done in parts, whoever is there (csrc/run/cores/parts.h)."""

# ---- graph

# label, op, line, inputs, outputs, group (-1: alone), pushed, places of the nodes it reads from and
# of those it only follows.
PendingNode = tuple[str, str, str, list[str], list[str], int, bool, list[int], list[int]]

def pending(tensors: list[torch.Tensor], /) -> list[PendingNode]:
    """What is recorded and has not run, in the order of recording; with tensors, only what these need."""

# ---- profiler

# kind ("record", "run", "group"), op, number of its node (0: a view), begin and end (ns of
# time.perf_counter_ns), bytes it will allocate, whether it failed, the program's line, members of a
# group as (op, number).
TraceEvent = tuple[str, str, int, int, int, int, bool, str, list[tuple[str, int]]]
# the system's number of the thread, the system's name of it, its events
ThreadLog = tuple[int, str, list[TraceEvent]]

def let_threads_join_profile() -> None:
    """A profile of torch's has begun: engine threads may join it."""

def keep_threads_out_of_profile() -> None:
    """It is about to end: returns when all have left it."""

def start_trace() -> bool:
    """Begins to keep what each thread does; False if that is being done already."""

def stop_trace() -> list[ThreadLog]:
    """All that was kept."""
