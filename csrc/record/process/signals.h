// csrc/record/process/signals.h: handlers of signals (Ctrl-C), run by a thread that waits.
#pragma once

#include <exception>

namespace lazyeng::record {

/// Runs the handlers that are due, and returns what one of them raised. (Only the main thread ever
/// has any.) Takes the GIL.
std::exception_ptr raised_by_signal();

}  // namespace lazyeng::record
