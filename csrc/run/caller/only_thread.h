// csrc/run/caller/only_thread.h: whether one thread of the program has long ops to itself.
//
// Threads that each run such ops themselves, on all cores, are in each other's way, as in eager
// code: on two cores requests of two threads took 1.1 to 1.7 times as long as with a worker, which
// runs them one after another.
#pragma once

namespace lazyeng::run {

/// The calling thread has a long op.
void note_long_op();
/// The same; and whether no other thread had one in the last tenth of a second.
bool is_only_thread();

}  // namespace lazyeng::run
