// csrc/record/process/fork.h: what happens around os.fork().
#pragma once

#include <exception>

#include "csrc/record/recorder.h"

namespace lazyeng::record {

/// Registers what has to happen in the very moment of a fork. Once per process.
void install_fork_handlers();

/// Runs everything recorded and ends the engine's threads; leaves the gate closed. With the GIL,
/// which it lets go of meanwhile. Does nothing inside an op or a wait, and leaves the gate open if
/// a handler of a signal raises: the child's gate is then lost.
void before_fork(Recorder& recorder);
/// Starts the engine again and opens the gate. Returns what a handler has raised since before_fork.
/// GIL.
std::exception_ptr after_fork_in_parent(Recorder& recorder);
/// Starts the engine, unless the gate is lost: then false. GIL.
bool after_fork_in_child(Recorder& recorder);

/// For a thread that is about to wait. Between before_fork and what follows the fork the program's
/// own hooks run, and handlers of signals: what these wait for needs the engine. In the parent it
/// runs, with the gate open, for the scope; in the child from then on. Elsewhere nothing happens.
/// With or without the GIL.
class EngineWhileForking {
 public:
  explicit EngineWhileForking(Recorder& recorder);
  ~EngineWhileForking();
  EngineWhileForking(const EngineWhileForking&) = delete;
  EngineWhileForking& operator=(const EngineWhileForking&) = delete;

 private:
  Recorder* reopened_ = nullptr;
};

}  // namespace lazyeng::record
