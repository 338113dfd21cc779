// Repacking a model from one container into the other without changing a weight.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "file/container.h"

namespace espalier::convert {

enum class Target { kGguf, kSafetensors };

enum class TokenizerPart { kConvert, kLeaveOut };

struct Options {
  Target target = Target::kGguf;
  // What becomes of tensors whose format the target cannot carry: plain numbers of this format,
  // F32, F16 or BF16; null refuses the whole conversion.
  const pack::Format* plain = nullptr;
  TokenizerPart tokenizer = TokenizerPart::kConvert;
  std::uint64_t shard_bytes = 5'000'000'000;  // the most in one safetensors file
  std::size_t threads = 0;                    // 0: one per processor
};

struct Report {
  std::uint64_t tensors = 0, bytes_before = 0, bytes_after = 0;
  std::uint64_t unpacked = 0;      // tensors that became plain numbers
  std::vector<std::string> notes;  // what the target does not have
};

// Writes the model in `input` as `output`: a GGUF file, or a directory with config.json, tensors in
// MLX's form where they are packed, and an index where they take several files. It appears under
// its name only when all is done. Errors: `output` exists; `input` is of the target's kind already,
// of an architecture that is not known, or broken; tensors that the target cannot carry (all of
// them are looked at before anything is written); a name that the target has no place for; a
// tokenizer that it cannot express; `stop`.
[[nodiscard]] Result<Report> convert(const file::Container& input,
                                     const std::filesystem::path& output, const Options& options,
                                     const std::atomic<bool>& stop);

}  // namespace espalier::convert
