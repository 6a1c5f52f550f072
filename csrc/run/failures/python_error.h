// csrc/run/failures/python_error.h: between C++ exceptions and Python's current error.
//
// The one place that knows torch's class for it: its header brings pybind11, which costs every file
// that includes it ten seconds of compiling.
#pragma once

#include <cstdint>
#include <exception>

namespace lazyeng::run {

/// Throws Python's current error as the C++ exception that torch turns back into it. Takes the GIL.
[[noreturn]] void throw_current_python_error();

/// Clears Python's current error, if there is one. False if that is no Exception, and still the
/// current error: what a handler of a signal has raised (Ctrl-C) is nobody's to swallow. GIL.
bool clear_unless_interrupt();

/// Makes a C++ exception Python's current error, by torch's own translation (message included).
/// GIL.
void translate_to_python(const std::exception_ptr& error);

/// Python code raised it. Such an exception may still be the thread's current error as well.
bool is_python_error(const std::exception_ptr& error) noexcept;

/// Python code raised what is no Exception: KeyboardInterrupt, SystemExit.
bool is_interrupt(const std::exception_ptr& error) noexcept;

/// Whether it says that memory ran out, thrown by a kernel of torch or in Python.
bool is_out_of_memory(const std::exception_ptr& error) noexcept;

/// The code of an error of a device's runtime (torch.AcceleratorError), thrown by a kernel of torch
/// or in Python; 0 for any other exception.
int32_t accelerator_error_code(const std::exception_ptr& error) noexcept;

}  // namespace lazyeng::run
