// What each container calls the tensors of an architecture, and how their rows differ.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace espalier::convert {

enum class Side { kGguf, kDirectory };

// Sizes that a model is made of, as the dimensions of its matrices.
struct Sizes {
  std::uint64_t vocab = 0, hidden = 0, mlp_hidden = 0;
  std::uint64_t heads = 0, kv_heads = 0, head_dim = 0;
};

// A module, with {} for the number of its layer, and the size of its matrix.
struct Module {
  std::string_view gguf;  // "blk.{}.attn_q"
  std::string_view hf;    // "model.layers.{}.self_attn.q_proj"
  std::uint64_t (*rows)(const Sizes& sizes);
  std::uint64_t (*cols)(const Sizes& sizes);
  // The rotary embedding turns pairs of features. GGUF has the two of a pair side by side, the
  // directory half a head apart.
  bool rotated = false;
};

struct Architecture {
  std::string_view gguf_name;   // general.architecture
  std::string_view model_type;  // of config.json
  std::string_view hf_class;    // its `architectures`
  std::span<const Module> modules;
};

// Null where none is known.
[[nodiscard]] const Architecture* find_architecture(Side side, std::string_view name);

struct Translated {
  const Module* module;
  std::string name;  // on the other side
};

// The tensor `name` of `from` on the other side; nothing when the architecture has no such tensor.
[[nodiscard]] std::optional<Translated> translate(const Architecture& architecture, Side from,
                                                  std::string_view name);

// Which row of the matrix on side `from` becomes row `row` on the other, in heads of `head_dim`.
[[nodiscard]] std::uint64_t rotated_row(Side from, std::uint64_t row, std::uint64_t head_dim);

}  // namespace espalier::convert
