// csrc/run/cores/parts.h: large ops on threads that have nothing else to do, instead of OpenMP's
// helpers.
//
// Where the program records most of the time, large ops run on one core (spare_cores.h): a helper
// of OpenMP would stand in line behind the program, be waited for, and spin on its core afterwards.
// But while that program waits, its thread has a core and nothing to do. So such ops are done in
// parts (csrc/engine/parts.h), some of them by the thread that waits; once it goes on recording,
// no helper spins on its core.
#pragma once

#include <functional>

#include "csrc/run/caller/thread_settings.h"

namespace lazyeng::engine {
class Engine;
}

namespace lazyeng::run {

/// The engine whose threads help; null: none does.
void set_parts_engine(engine::Engine* engine);

/// Microseconds on one core from which parts may pay.
inline constexpr double kWorthParts = 40;

/// Whether as many threads as the op may have are there, this one included, with cores of their
/// own.
bool parts_pay(double microseconds, int threads);

/// Whether no engine thread runs an op of the CPU's queue. A hint.
bool engine_rests();
/// How many threads that queue has.
unsigned engine_workers();

/// For tests: ops that may have parts always have them.
void set_always_in_parts(bool always);
bool always_in_parts();

/// Calls part(0) to part(count - 1), each once, on one core, on threads with these settings. Throws
/// what the first of them throws, once all have ended.
void run_in_parts(int count, ThreadSettings settings, const std::function<void(int)>& part);

/// How many ops were done so.
uint64_t ops_in_parts();

}  // namespace lazyeng::run
