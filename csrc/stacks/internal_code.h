// csrc/stacks/internal_code.h: which code objects are lazyeng's or torch's, and so are hidden.
//
// All of it belongs to the holder of the GIL.
#pragma once

#include <Python.h>

#include <cstdint>
#include <string>
#include <vector>

namespace lazyeng::stacks {

/// Code objects whose file lies under one of these directories are internal. The first is
/// lazyeng's own.
void set_internal_prefixes(std::vector<std::string> prefixes);

/// Makes one code object internal, wherever its file is; it is kept alive for good.
void add_internal_code(PyCodeObject* code);

/// Keeps no error that is pending.
bool is_internal(PyCodeObject* code);
/// Whether it is lazyeng's own.
bool is_own(PyCodeObject* code);

/// The file of a code object in the file system's encoding; "?" if it cannot be encoded.
std::string file_of(PyCodeObject* code);
/// The same to be shown, in UTF-8: what that cannot say is escaped.
std::string shown_file_of(PyCodeObject* code);

/// Counts the changes of what is internal.
uint32_t internal_generation() noexcept;

}  // namespace lazyeng::stacks
