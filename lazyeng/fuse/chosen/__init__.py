"""Which ops of CUDA tensors hand-written kernels run (``triton_kernels/``), in place of torch's.

``calls``     recorded calls as plain data, as the core (``csrc/fuse/device``) looks them up
``launches``  how kernels are launched for them: grid, operands, constants, scratch memory, tables
``kernels``   the text of a kernel, read from its file; ``requests`` ask the compiler for it
``names``     of the ops
``table``     op -> the function that says how; ``norms``, ``softmax``, ``losses``, ``products``,
              ``optimizers``; ``lists``, whose kernels are generated

A function of the table gets calls and returns launches, or None: torch's own kernel runs then. What
it sees decides the answer: looks of tensors, and all arguments but floats, which are operands. So
it is asked once for each look, on the compiler's thread, and never while an op waits.
"""
