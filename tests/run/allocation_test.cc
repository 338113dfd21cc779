// Decoding allocates nothing once it has begun: memory is taken when it is first needed and kept.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "compute/cpu/cpu_ops.h"
#include "file/hf_directory.h"
#include "model/model.h"
#include "run/generate.h"
#include "run/sampler.h"
#include "support/data.h"
#include "support/fixture.h"

namespace {

std::atomic<std::size_t> allocations = 0;

void* allocate(std::size_t size, std::size_t alignment) {
  ++allocations;
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment, size) != 0) throw std::bad_alloc();
  return memory;
}

}  // namespace

// For the whole program; the other forms call these. (GCC 12 would take what it inlined for a mix
// of allocators.)
[[gnu::noinline]] void* operator new(std::size_t size) {
  return allocate(size, alignof(std::max_align_t));
}
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace espalier::run {
namespace {

class Allocations : public ::testing::TestWithParam<const char*> {};

TEST_P(Allocations, ThereAreNoneWhileDecoding) {
  const std::string folder = std::string("models/") + GetParam();
  const auto directory = file::HfDirectory::open(test::data_path(folder));
  ASSERT_TRUE(directory) << directory.error().message;
  const auto model = model::load_model(*directory);
  ASSERT_TRUE(model) << model.error().message;
  const test::Fixture golden(folder + "/golden.st");
  const auto tokens = golden.get<std::int32_t>("tokens");
  const auto ops = cpu::make_ops(2);
  (*model)->prepare(*ops);
  auto cache = KvCache::create((*model)->info(), 1, tokens.size(), compute::KvType::kQ8);
  ASSERT_TRUE(cache) << cache.error().message;
  const Session session{**model, *ops, *cache};
  std::vector<float> logits((*model)->info().vocab_size);
  Sampler sampler({});

  const std::size_t prompt = tokens.size() / 2;
  forward_sequence(session, tokens.first(prompt), 0, Wanted::kLastLogits, logits.data());
  std::size_t before = 0;
  for (std::size_t i = prompt; i < tokens.size(); ++i) {
    if (i == prompt + 1) before = allocations;
    forward_sequence(session, tokens.subspan(i, 1), i, Wanted::kLastLogits, logits.data());
    (void)sampler.sample(logits, tokens.first(i));
  }
  EXPECT_EQ(allocations, before);
}

INSTANTIATE_TEST_SUITE_P(Models, Allocations,
                         ::testing::Values("llama", "gemma3", "qwen3-moe", "gpt-oss", "qwen3-next",
                                           "exl3-mul1-mcg", "gptq-v1-g128-desc_act-asym"));

}  // namespace
}  // namespace espalier::run
