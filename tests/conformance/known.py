"""Entries that are not compared in full, or not equal, each with its reason.

docs/conformance.md is generated from these tables: `python -m tests.conformance --docs`.
"""

# "suite:name" -> reason. An entry here may differ from eager without failing the run; the full run
# reports entries that turned out equal, so that the table does not outlive its reasons.

KNOWN: dict[str, str] = {
    "op:sparse.sampled_addmm": "its backward makes a sparse gradient inside a composite function that "
    "looks at the memory of a lazy one",
    "out:_batch_norm_with_update": "eager refuses this call too; its message prints the arguments, "
    "and a LazyTensor prints as one",
}

# Their results are uninitialised memory, in eager too: dtype, shape and strides are compared, the
# values are not.
METADATA_ONLY: dict[str, str] = {
    "op:empty": "uninitialised memory",
    "op:empty_like": "uninitialised memory",
    "op:empty_permuted": "uninitialised memory",
    "op:empty_strided": "uninitialised memory",
    "op:new_empty": "uninitialised memory",
    "op:new_empty_strided": "uninitialised memory",
}

# Entries with nothing to run: PyTorch itself has no CPU kernel or no sample for them.
NOT_APPLICABLE_REASON = "no dtype is supported on the CPU, or PyTorch has no sample for it"
