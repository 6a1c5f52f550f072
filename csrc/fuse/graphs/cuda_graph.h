// csrc/fuse/graphs/cuda_graph.h: a CUDA graph, captured by torch's class of that name.
//
// torch's allocator has to know of a capture, and so have its generators: so it goes through
// torch.cuda.CUDAGraph (lazyeng/fuse/cuda_graph.py), under the GIL, which is held for these calls
// and not in between. A launch is the driver's, without Python: no graph draws from a generator,
// which is all that torch has to do before.
#pragma once

#include <Python.h>
#include <c10/core/Stream.h>
#include <sys/types.h>

#include <memory>

#include "csrc/fuse/device/cuda_driver.h"

namespace lazyeng::fuse {

/// Any thread, without the GIL; a capture begins and ends on one thread, whose current stream is
/// `capture_stream`. Once the capture has ended it may die anywhere, under any lock: torch's object
/// is let go of later.
class CudaGraph {
 public:
  /// Begins the capture. Throws what torch does.
  explicit CudaGraph(c10::Device device);
  ~CudaGraph();
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  /// Ends it. Throws what torch does; then there is no graph.
  void end();
  void abandon() noexcept;
  /// On the stream (a CUstream). Throws CudaError.
  void launch(void* stream) const;

 private:
  std::unique_ptr<const PrimaryContext> context_;
  void* executable_ = nullptr;  // torch's, as long as its graph lives
  PyObject* graph_ = nullptr;
  bool open_ = true;     // it is being captured
  const pid_t process_;  // that made it: another one has no driver
};

/// Of captures on that device: no program's work ever gets there.
c10::Stream capture_stream(c10::Device device);

}  // namespace lazyeng::fuse
