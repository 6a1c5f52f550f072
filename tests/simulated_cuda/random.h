// tests/simulated_cuda/random.h: a generator with seed and offset, and dropout that draws from it.
//
// Dropout is what torch's kernel for CUDA computes (aten/src/ATen/native/cuda/Dropout.cu), one
// simulated thread after another: which thread draws for which element, and how far the offset
// moves, as for a GPU of two multiprocessors.
#pragma once

#include <ATen/Generator.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>

#include "ops.h"

namespace {

constexpr int64_t kBlock = 256, kProcessors = 2, kThreadsOfProcessor = 2048;

struct PhiloxGenerator final : c10::GeneratorImpl {
  explicit PhiloxGenerator(int device)
      : GeneratorImpl({c10::kCUDA, c10::DeviceIndex(device)},
                      c10::DispatchKeySet(c10::DispatchKey::CUDA)) {}
  void set_current_seed(uint64_t seed) override { seed_ = seed, offset_ = 0; }
  void set_offset(uint64_t offset) override {
    TORCH_CHECK(offset % 4 == 0, "offset must be a multiple of 4");
    offset_ = offset;
  }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom(true));
    return seed_;
  }
  void set_state(const c10::TensorImpl&) override { TORCH_CHECK(false, "not simulated"); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    TORCH_CHECK(false, "not simulated");
  }
  PhiloxGenerator* clone_impl() const override {
    auto* made = new PhiloxGenerator(device_.index());
    made->seed_ = seed_, made->offset_ = offset_;
    return made;
  }

 private:
  uint64_t seed_ = c10::default_rng_seed_val, offset_ = 0;
};

const at::Generator& default_generator(int device) {
  static auto* const made = [] {
    auto* all = new std::vector<at::Generator>;
    for (int d = 0; d < kDevices; ++d) all->push_back(at::make_generator<PhiloxGenerator>(d));
    return all;
  }();
  return (*made)[device];
}

/// One thread's curandStatePhilox4_32_10.
class Curand {
 public:
  Curand(uint64_t seed, uint64_t thread, uint64_t offset)
      : seed_(seed), thread_(thread), counter_(offset / 4) {}

  std::array<float, 4> uniform4() {
    std::array<uint32_t, 4> c{low(counter_), high(counter_), low(thread_), high(thread_)};
    ++counter_;
    uint32_t k0 = low(seed_), k1 = high(seed_);
    for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9, k1 += 0xBB67AE85) {
      const uint64_t a = uint64_t{0xD2511F53} * c[0], b = uint64_t{0xCD9E8D57} * c[2];
      c = {high(b) ^ c[1] ^ k0, low(b), high(a) ^ c[3] ^ k1, low(a)};
    }
    std::array<float, 4> uniform;
    for (int i = 0; i < 4; ++i) uniform[i] = float(c[i]) * 0x1p-32f + 0x1p-33f;
    return uniform;
  }

 private:
  static uint32_t low(uint64_t x) { return uint32_t(x); }
  static uint32_t high(uint64_t x) { return uint32_t(x >> 32); }
  uint64_t seed_, thread_, counter_;
};

/// Calls `keeps(element, uniform number)` for each element.
template <class Keeps>
void draw(int64_t n, int64_t vector, int64_t threads, uint64_t seed, uint64_t offset,
          const Keeps& keeps) {
  for (int64_t thread = 0; thread < threads; ++thread) {
    Curand state(seed, thread, offset);
    if (vector == 1) {
      for (int64_t start = thread; start < n; start += 4 * threads) {
        const auto drawn = state.uniform4();
        for (int64_t i = 0; i < 4; ++i)
          if (start + i * threads < n) keeps(start + i * threads, drawn[i]);
      }
      continue;
    }
    for (int64_t start = thread * vector; start < n; start += threads * vector)
      for (int64_t i = 0; i < vector; i += 4) {
        const auto drawn = state.uniform4();
        for (int64_t j = 0; j < std::min<int64_t>(vector, 4); ++j) keeps(start + i + j, drawn[j]);
      }
  }
}

std::tuple<at::Tensor, at::Tensor> draw_dropout(const at::Tensor& x, double keep,
                                                const at::Generator& of, at::ScalarType mask_type) {
  const int device = x.device().index();
  const int64_t n = x.numel(), size = int64_t(x.element_size());
  const int64_t threads =
      kBlock * std::min(kProcessors * (kThreadsOfProcessor / kBlock), (n + kBlock - 1) / kBlock);
  int64_t vector = 16 / size;
  while (reinterpret_cast<uintptr_t>(x.const_data_ptr()) % (vector * size)) vector /= 2;
  while (n % vector) vector /= 2;
  at::Generator generator = of;
  uint64_t seed, offset;
  {
    std::lock_guard lock(generator.mutex());
    seed = generator.current_seed(), offset = generator.get_offset();
    generator.set_offset(offset + 4 * ((n + 4 * threads - 1) / (4 * threads)));
  }
  const BelowEverything below;
  const at::Tensor y = new_device_tensor(at::empty_like(meta_twin(x)), device);
  const at::Tensor mask =
      new_device_tensor(at::empty_like(meta_twin(x), at::TensorOptions(mask_type)), device);
  launch(stream_of(device), [x = host_twin(x), y = host_twin(y), mask = host_twin(mask), keep, n,
                             vector, threads, seed, offset] {
    const BelowEverything below;
    const at::ScalarType wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor kept =
        at::zeros_like(x, at::TensorOptions(at::kFloat), at::MemoryFormat::Contiguous);
    float* const data = kept.mutable_data_ptr<float>();
    const double bound = wide == at::kDouble ? keep : double(float(keep));
    draw(n, vector, threads, seed, offset,
         [&](int64_t element, float uniform) { data[element] = uniform < bound; });
    const double scale = 1.0 / bound;
    const at::Tensor factor = at::mul(at::ones_like(x, at::TensorOptions(wide)), scale);
    at::Tensor(y).copy_(at::mul(at::mul(x.to(wide), kept.to(wide)), factor));
    at::Tensor(mask).copy_(kept);
  });
  return {y, mask};
}

std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& x, double p,
                                                  std::optional<bool> train) {
  if (!train.value_or(true)) return {x.clone(), at::ones_like(x, at::TensorOptions(at::kBool))};
  if (p == 1) return {at::zeros_like(x), at::zeros_like(x, at::TensorOptions(at::kBool))};
  return draw_dropout(x, 1.0 - p, default_generator(x.device().index()), at::kBool);
}

std::tuple<at::Tensor, at::Tensor> fused_dropout(const at::Tensor& x, double keep,
                                                 std::optional<at::Generator> generator) {
  return draw_dropout(x, keep, generator.value_or(default_generator(x.device().index())),
                      at::kByte);
}

}  // namespace
