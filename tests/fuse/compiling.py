"""Compiling the groups of a program without a device: the requests, and what must come of them."""

from lazyeng.fuse import compiler
from lazyeng.fuse.compiler import answers, request_for
from lazyeng.fuse.launches import launches_of
from lazyeng.fuse.source import source_of
from tests.fuse.programs import groups_of

ARCHES = (80, 90)


def requests_for(groups, arches):
    """One for each kernel and architecture, as for aligned memory and a number of elements that is
    a multiple of 16."""
    for group, source in groups:
        for launch in launches_of(group.program, source):
            aligned = [
                a.name
                for a in launch.kernel.arguments
                if a.type.startswith("*") or a.kind == "n_elements"
            ]
            for arch in arches:
                yield request_for(source, launch, arch, aligned)


def requests_of(plans, arches=ARCHES):
    groups = groups_of(plans)
    return requests_for([(group, source_of(group.program, group.ops)) for group in groups], arches)


def compile_all(requests, folder):
    """Answers to all; every kernel is ptx for its architecture, and a cubin."""
    made = answers(requests)
    for i, (request, answer) in enumerate(zip(requests, made, strict=True)):
        assert "error" not in answer, f"{answer['error']}\n{request.text}"
        assert f".target sm_{request.arch}" in answer["ptx"]
        cubin = compiler.compiled(answer).cubin
        assert cubin.startswith(b"\x7fELF")
        (folder / f"{i}.ptx").write_text(answer["ptx"])
        (folder / f"{i}.cubin").write_bytes(cubin)
    return made
