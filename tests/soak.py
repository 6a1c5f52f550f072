"""python -m tests.soak: random programs, eagerly and lazily, for as long as one likes.

Each round is one seed in one mode, with all, half or none of the tensors wrapped, alone or in
several threads; what differs from eager ends the run, with the seed. Every fourth round has large
tensors (up to 1 MiB), which engine threads take from the buffer pool. Under a sanitizer:
tools/sanitize.sh. With `--models` random models are trained instead, on one intra-op thread.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
import warnings

import torch

from .programs import random_programs
from .support import model_runs, random_runs

THREADS = 4
LARGE_EACH = 4  # rounds; coprime to the number of forms and modes together (9)
LARGE = 32


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    add = parser.add_argument
    add("--seconds", type=float, default=1800)
    add("--length", type=int, default=500, help="ops of a program")
    add("--models", action="store_true", help="train random models")
    add("--seed", type=int, help="of the first round; the rounds count on from it")
    return parser.parse_args()


def train_models(seed: int, seconds: float) -> None:
    torch.set_num_threads(1)
    begin = time.monotonic()
    rounds = ended = 0
    for name, way in itertools.cycle(model_runs.WAYS.items()):
        if time.monotonic() - begin >= seconds:
            break
        try:
            ended += model_runs.check(seed + rounds, way)
        except BaseException:
            print(f"round {rounds}: --models --seed {seed + rounds}, {name}")
            raise
        rounds += 1
    raised = rounds - ended
    print(f"{rounds} models ({raised} raised), {time.monotonic() - begin:.0f} s, no difference")


def main() -> None:
    args = arguments()
    warnings.simplefilter("ignore", UserWarning)  # of out= that has to be resized
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(2**31)
    if args.models:
        return train_models(seed, args.seconds)
    forms = (random_runs.wrap_all, random_runs.wrap_half, random_runs.wrap_none)
    begin = time.monotonic()
    rounds = 0
    for wrap, mode in itertools.cycle(itertools.product(forms, random_runs.MODES)):
        if time.monotonic() - begin >= args.seconds:
            break
        here = seed + rounds
        scale = LARGE if rounds % LARGE_EACH == 0 else 1
        try:
            with random_programs.scaled(scale):
                random_runs.check(here, args.length, mode, wrap)
                random_runs.run_threads(THREADS, mode, here, args.length // THREADS)
        except BaseException:
            print(f"round {rounds}: --seed {here}, {mode}, {wrap.__name__}, scale {scale}")
            raise
        rounds += 1
        if rounds % 50 == 0:
            print(f"{rounds} rounds, {time.monotonic() - begin:.0f} s", flush=True)
    ops = rounds * 2 * args.length
    print(f"{rounds} rounds, {ops} ops, {time.monotonic() - begin:.0f} s, no difference")


if __name__ == "__main__":
    main()
