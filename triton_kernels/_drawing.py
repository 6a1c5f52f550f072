"""Which thread of torch's CUDA kernel of dropout draws for which element (dropout.py)."""

from __future__ import annotations

from dataclasses import dataclass

THREADS = 256  # of a block of torch's kernel


@dataclass(frozen=True, slots=True)
class Drawing:
    """On a GPU that has room for ``resident`` blocks at once.

    ``vector`` neighbours belong to one thread, as many as 16 bytes hold unless some would be left
    over, and the next ones to the next thread. Without neighbours (1) a thread has every
    ``threads``-th element, four of them for each draw.
    """

    vector: int
    threads: int
    increment: int  # of the generator's offset: numbers that a thread may draw

    @staticmethod
    def of(n_elements: int, itemsize: int, resident: int) -> Drawing:
        vector = 16 // itemsize
        while n_elements % vector:
            vector //= 2
        threads = THREADS * min(resident, -(-n_elements // THREADS))
        return Drawing(vector, threads, 4 * -(-n_elements // (4 * threads)))

    def draws(self, n_elements: int) -> int:
        """Of four numbers each; of those for a vector of two, two are not looked at."""
        if self.vector == 1:
            return self.increment // 4 * self.threads
        return n_elements // min(self.vector, 4)

    def place(self, element: int) -> tuple[int, int, int]:
        """(thread, draw of the thread, which of its four numbers) for an element."""
        if self.vector == 1:
            turn, thread = divmod(element, self.threads)
            return thread, turn // 4, turn % 4
        vector, inside = divmod(element, self.vector)
        turn, thread = divmod(vector, self.threads)
        return thread, turn * -(-self.vector // 4) + inside // 4, inside % 4
