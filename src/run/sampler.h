// Choosing the next token from logits.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace espalier::run {

struct SamplerOptions {
  float temperature = 0.8f;     // 0: always the most likely token
  int top_k = 40;               // keep the k most likely; 0: all
  float top_p = 0.95f;          // keep the most likely that together reach p; 1: all
  float min_p = 0.05f;          // drop what is less likely than p · the most likely; 0: nothing
  float repeat_penalty = 1.0f;  // above 1: tokens of the last repeat_window become less likely
  std::size_t repeat_window = 64;
  std::uint64_t seed = 0;
};

// A stream of choices: the same seed, options and logits give the same tokens on every machine.
class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options) : options_(options), random_(options.seed) {}

  // Picks a token id. `past` is the sequence so far. Filters apply in the order repeat penalty,
  // top-k, top-p, min-p, temperature; ties go to the lower id.
  std::int32_t sample(std::span<const float> logits, std::span<const std::int32_t> past);

 private:
  struct Candidate {
    float logit;
    std::int32_t id;
  };

  void penalize_repeats(std::span<const std::int32_t> past);
  void keep_most_likely();

  SamplerOptions options_;
  std::mt19937_64 random_;
  std::vector<Candidate> candidates_;
  std::vector<double> weights_;
};

}  // namespace espalier::run
