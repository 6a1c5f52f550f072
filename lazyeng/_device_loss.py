"""What a failure says when a device is lost: which ops may have failed there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from lazyeng._traceback import Stack, place, sites_of

_SHOWN = 8

# An op that may have failed: its name, its inputs in words, its stack, that of the forward op.
Candidate = tuple[str, Sequence[str], Stack, Stack]


@dataclass(frozen=True, slots=True)
class DeviceLoss:
    """A device's context that is lost.

    Args:
        device: such as "cuda:0".
        candidates: the ops of which one failed, in the order in which they were launched.
        others: how many more were launched that hold no assertion, as far as is known.
    """

    device: str
    candidates: Sequence[Candidate]
    others: int

    def notes(self) -> list[str]:
        """What follows the note of the failed op, or takes its place if that is not known."""
        lost = f"lazyeng: the CUDA context of {self.device} is lost"
        advice = "nothing more can run on it in this process"
        if len(self.candidates) == 1 and not self.others:
            return [f"{lost}: {advice}"]
        if len(self.candidates) == 1:
            return [f"{lost}: {advice} ({self._others()} had been launched)"]
        return [
            f"{lost}: {advice}. One of these operations failed there "
            '(to see which, run with lazy("sync") in place of lazy(), and with LAZYENG_MODE=sync '
            "for tensors outside of blocks):",
            *self._listed(),
        ]

    def _others(self) -> str:
        plural = "" if self.others == 1 else "s"
        return f"{self.others} more operation{plural} not known to assert"

    def _listed(self) -> list[str]:
        """One line for each place; a loop's line stands there once."""
        times = Counter(map(_described, self.candidates))  # in the order of launch
        lines = [f"  {what}" + (f" ({n} times)" if n > 1 else "") for what, n in times.items()]
        hidden = len(lines) - _SHOWN
        more = [f"  … (+{hidden})"] if hidden > 0 else []
        if self.others:
            more.append(f"  or one of {self._others()}")
        return lines[:_SHOWN] + more


def _described(candidate: Candidate) -> str:
    op, inputs, stack, forward_stack = candidate
    sites = sites_of(forward_stack) or sites_of(stack)
    created = f", created at {place(sites)}" if sites else ""
    return f"{op}({', '.join(inputs)}){created}"
