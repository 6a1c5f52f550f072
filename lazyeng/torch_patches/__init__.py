"""What lazyeng puts in the place of functions and methods of torch, by subject.

`install()` of each module does so, once, as the core starts (``lazyeng/setup_core.py``). A call
that has nothing to do with lazyeng goes on to torch's own function.

===================  ==============================================================================
``plain_reads``      reads of a plain tensor's memory by Python wait first
``plain_data``       ``plain.data``, also assigned to
``resizing``         ``plain.resize_`` waits for what uses the memory
``parameters``       subclasses of ``nn.Parameter`` around lazy tensors
``uninitialized``    parameters and buffers without a shape yet
``subclasses``       ``as_subclass``, and tensor classes of the program
``comparing``        ``torch.testing.assert_close`` of lazy and plain
``autocast``         ``torch.autocast`` of what ``torch.func`` wraps around lazy tensors
``backward``         backward passes that start from lazy tensors
``dirty_inputs``     ``ctx.mark_dirty``
``compiled``         functions of ``torch.compile``; ``_crossing``: what goes in and comes out
``tracers``          ``make_fx``, ``torch.func.linearize``, ``FakeTensorMode``
``script_modules``   TorchScript
``jiterator``        ``torch.cuda.jiterator``
``custom_ops``       definitions of ops, and kernels that replace torch's
``optimizers``       which implementation an optimizer takes; ``fused_adam``: one op for a step
``process_groups``   what a program does to process groups past the dispatcher
``saving``           ``torch.save``; ``loading``: ``torch.load(map_location="lazyeng")``
``settings``         setters of what kernels read from the process wait first
``torch_profiler``   ``torch.profiler`` sees the engine's threads
===================  ==============================================================================
"""
