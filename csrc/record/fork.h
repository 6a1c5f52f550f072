// csrc/record/fork.h: what happens around os.fork().
#pragma once

#include "csrc/record/recorder.h"

namespace lazyeng::record {

/// Registers what has to happen in the very moment of a fork. Once per process.
void install_fork_handlers();

/// Runs everything recorded and ends the engine's threads; leaves the gate closed. With the GIL,
/// which it lets go of meanwhile. Does nothing inside an op or a wait: the child's gate is then
/// lost.
void before_fork(Recorder& recorder);
/// Starts the engine again and opens the gate. GIL.
void after_fork_in_parent(Recorder& recorder);
/// Starts the engine, unless the gate is lost: then false. GIL.
bool after_fork_in_child(Recorder& recorder);

}  // namespace lazyeng::record
