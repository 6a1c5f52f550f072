"""What lazyeng gains on a GPU: launch-bound steps, pointwise chains, decoding, hidden copies.

Method. Each way to run a program (eager, lazy, torch.compile(mode="reduce-overhead")) has a model
of its own and is warm before anything is timed. They take turns in bursts, each of which ends when
the device is done; a figure is the median over rounds of ratios within a round. Above 1 lazy, or
torch.compile, is faster than eager. A lazy burst runs within one lazy() block; "graphs" are lazy
bursts with LAZYENG_CUDA_GRAPHS=on.

Chains are given in the bandwidth of a copy (`y.copy_(x)`, measured in the same rounds) that reads
and writes as much as they would if they read x once and wrote their result once: 1.0 is a copy.

Threads (gpu_threads.py): which of them a step keeps busy.

Copies: batches in pinned memory are copied to the device and go through products, which take about
as long. "alone" is the products of batches that are there already; the others are times by that:
1.0 hides the copies fully. "one by one" copies each batch before its products.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import statistics
import time
from collections.abc import Callable, Iterator

import torch

import lazyeng
from benchmarks import gpu_threads
from benchmarks.gpu_programs import CHAINS, LAUNCH_BOUND, decode
from benchmarks.workloads import Step
from lazyeng import _C

WARM_SECONDS = 60  # at most, for kernels that are compiled meanwhile

Burst = Callable[[int], float]  # runs so many steps, returns the seconds


def finish(device: str) -> None:
    lazyeng.synchronize()
    if device == "cuda":
        torch.cuda.synchronize()


def burst_of(
    step: Callable[[], object],
    device: str,
    lazy: bool = False,
    graphs: bool = False,
    keep: bool = False,
) -> Burst:
    """`keep`: what steps return is held until the end; what nobody holds, lazyeng may leave out."""

    def burst(count: int) -> float:
        _C.set_cuda_graphs(graphs)
        kept = []
        start = time.perf_counter()
        with lazyeng.lazy() if lazy else contextlib.nullcontext():
            for _ in range(count):
                result = step()
                if keep:
                    kept.append(result)
        finish(device)
        return time.perf_counter() - start

    return burst


def compiled(step: Step, device: str) -> Burst | None:
    """None where torch.compile fails; its reason is printed."""
    burst = burst_of(torch.compile(step, mode="reduce-overhead"), device)
    try:
        burst(5)
    except Exception as error:  # whatever it is, the other columns stand
        print(f"torch.compile: {str(error).splitlines()[0]}")
        return None
    return burst


def warm_up(burst: Burst, steps: int) -> None:
    """Trials, compilations, pools: until a burst asks for no kernel that is not there."""
    until = time.monotonic() + WARM_SECONDS
    while True:
        burst(steps)
        if not _C.pending_kernel_requests() or time.monotonic() > until:
            break
        while _C.pending_kernel_requests() and time.monotonic() < until:
            time.sleep(0.01)
    burst(steps)


def in_turns(
    bursts: dict[str, Burst], options: argparse.Namespace, most: int = 1 << 30
) -> dict[str, list[float]]:
    """Seconds of a step, by round. `most`: steps of a burst."""
    for burst in bursts.values():
        warm_up(burst, min(most, 3 if options.small else 30))
    first = next(iter(bursts.values()))
    count = min(most, max(1, int(options.seconds / (first(2) / 2))))
    found: dict[str, list[float]] = {name: [] for name in bursts}
    for _ in range(options.rounds):
        for name, burst in bursts.items():
            found[name].append(burst(count) / count)
    return found


def ratio(found: dict[str, list[float]], slow: str, fast: str) -> float | None:
    if slow not in found or fast not in found:
        return None
    return statistics.median(a / b for a, b in zip(found[slow], found[fast], strict=True))


def cell(figure: float | None, width: int = 9) -> str:
    return f"{'-':>{width}}" if figure is None else f"{figure:{width}.2f}"


def programs(
    device: str, options: argparse.Namespace
) -> dict[str, tuple[Callable[[], Step], float]]:
    """How each is made, and how much faster it is to be."""
    made: dict[str, tuple[Callable[[], Step], float]] = {
        name: (functools.partial(make, device), 3.0) for name, make in LAUNCH_BOUND.items()
    }
    made["Llama, batch 1"] = (functools.partial(decode, device, options.small), 2.0)
    wanted = tuple(options.programs or ("",))
    found = {name: program for name, program in made.items() if name.startswith(wanted)}
    if not found:
        raise SystemExit(f"--programs: got {', '.join(wanted)}, expected {', '.join(made)}")
    return found


def ways(make: Callable[[], Step], device: str) -> dict[str, Burst]:
    return {
        "eager": burst_of(make(), device), "lazy": burst_of(make(), device, lazy=True),
        "graphs": burst_of(make(), device, lazy=True, graphs=True),
    }  # fmt: skip


def steps(device: str, options: argparse.Namespace) -> Iterator[str]:
    """Rows: the time of eager by those of the others."""
    titles = ("lazy", "graphs", "wanted", "compile", "over it", "wanted")
    yield f"{'':22}{'eager us':>9}" + "".join(f"{title:>9}" for title in titles)
    for name, (make, wanted) in programs(device, options).items():
        bursts = ways(make, device)
        if options.compile and (burst := compiled(make(), device)):
            bursts["compile"] = burst
        found = in_turns(bursts, options)
        figures = [
            ratio(found, "eager", "lazy"), ratio(found, "eager", "graphs"), wanted,
            ratio(found, "eager", "compile"),
            ratio(found, "compile", "lazy"), 1.2 if name in LAUNCH_BOUND else None,
        ]  # fmt: skip
        eager = statistics.median(found["eager"]) * 1e6
        yield f"{name:22}{eager:9.0f}" + "".join(map(cell, figures))


def chains(device: str, options: argparse.Namespace) -> Iterator[str]:
    yield f"{'':22}{'dtype':>10}{'MiB':>6}{'copy GB/s':>11}{'eager':>9}{'lazy':>9}{'wanted':>9}"
    for name, function in CHAINS.items():
        for dtype in (torch.float32, torch.bfloat16):
            mebibytes = 1 if options.small else 256
            x = torch.rand(mebibytes * 2**20 // dtype.itemsize, device=device).to(dtype)
            y, run = torch.empty_like(x), functools.partial(function, x)
            bursts = {
                "copy": burst_of(functools.partial(y.copy_, x), device),
                "eager": burst_of(run, device, keep=True),
                "lazy": burst_of(run, device, lazy=True, keep=True),
            }
            found = in_turns(bursts, options, most=16)  # (4 GiB of results)
            rate = 2 * x.nbytes / statistics.median(found["copy"]) / 1e9
            title = f"{name:22}{str(dtype).removeprefix('torch.'):>10}{mebibytes:6}{rate:11.0f}"
            yield (
                title
                + cell(ratio(found, "copy", "eager"))
                + cell(ratio(found, "copy", "lazy"))
                + cell(0.9)
            )


def copies(device: str, options: argparse.Namespace) -> Iterator[str]:
    size, count = (32, 8) if options.small else (4096, 32)
    host = [torch.rand(size, size) for _ in range(4)]
    if device == "cuda":
        host = [batch.pin_memory() for batch in host]
    weight = torch.rand(size, size, device=device) / size
    there = [batch.to(device) for batch in host]

    def compute(x: torch.Tensor, products: int) -> torch.Tensor:
        for _ in range(products):
            x = x @ weight
        return x

    copy = burst_of(lambda: host[0].to(device), device)
    product = burst_of(lambda: there[0] @ weight, device)
    copy(3)
    product(3)
    products = max(1, round(copy(10) / product(10)))

    def over(batches: Callable[[int], Iterator[torch.Tensor]]) -> Callable[[], None]:
        def run() -> None:
            for batch in batches(count):
                compute(batch, products)

        return run

    def endless(batches: list[torch.Tensor], n: int) -> Iterator[torch.Tensor]:
        return (batches[i % len(batches)] for i in range(n))

    def copied(n: int) -> Iterator[torch.Tensor]:
        return (batch.to(device) for batch in endless(host, n))

    def ahead(n: int) -> Iterator[torch.Tensor]:
        yield from lazyeng.prefetch(list(endless(host, n)), depth=2, device=device)

    bursts = {
        "alone": burst_of(over(functools.partial(endless, there)), device),
        "one by one": burst_of(over(copied), device),
        "prefetch": burst_of(over(ahead), device, lazy=True),
    }
    found = in_turns(bursts, options)
    yield f"{'':22}{'alone ms':>9}{'one by one':>12}{'prefetch':>10}{'wanted':>9}"
    alone = statistics.median(found["alone"]) / count * 1e3
    times = [1 / (ratio(found, "alone", name) or 1) for name in ("one by one", "prefetch")]
    title = f"{products} products a batch"
    yield f"{title:22}{alone:9.2f}{times[0]:12.2f}{times[1]:10.2f}{1.0:9.2f}"


def threads(device: str, options: argparse.Namespace) -> Iterator[str]:
    found = {}
    for name, (make, _) in programs(device, options).items():
        found[name] = make, ways(make, device)
        for burst in found[name][1].values():
            warm_up(burst, 3 if options.small else 30)
    yield from gpu_threads.table(found, 3 if options.small else 40)


TABLES = {"steps": steps, "threads": threads, "chains": chains, "copies": copies}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.1, help="of a burst of eager steps")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--device", help="run all the same, on this one (to try the benchmark)")
    parser.add_argument("--only", nargs="+", choices=TABLES, help="these tables")
    parser.add_argument("--programs", nargs="+", help="those of steps whose names begin like this")
    parser.add_argument("--small", action="store_true", help="tiny sizes (to try the benchmark)")
    options = parser.parse_args()
    if not options.device and not torch.cuda.is_available():
        print("no CUDA device: nothing to measure here")
        return
    device = options.device or "cuda"
    name = torch.cuda.get_device_name() if device == "cuda" else device
    print(f"{name}, torch {torch.__version__}")
    for title, rows in TABLES.items():
        if options.only and title not in options.only:
            continue
        print(f"\n{title}")
        for row in rows(device, options):
            print(row, flush=True)


if __name__ == "__main__":
    main()
