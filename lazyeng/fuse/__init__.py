"""Fused groups as Triton kernels, in the order of a group's way to the GPU:

``description``  what the partition chose, as the CPU's lowering puts it (``lazyeng._C.planned``)
``expressions``  one table: operation -> Triton expression; ``functions`` has the longer ones
``iteration``    how a kernel goes over the elements
``kernels``      what a kernel is called with
``writer``       the lines of a kernel; ``source`` makes a readable file of them
``launches``     how many programs, with which constants and numbers
``compiler``     source -> cubin, in a process of its own (``worker``)
``disk_cache``   cubins that were compiled before
``background``   the thread that does all this while a group runs unfused
``chosen``       hand-written kernels for single ops and pairs (it asks the same compiler)

``csrc/fuse/triton_launch`` loads and launches the cubin. Importing this package imports neither
Triton nor a compiler.
"""
