#include "convert/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

#include "model/modules.h"

namespace espalier::convert {
namespace {

std::uint64_t vocab(const Sizes& s) { return s.vocab; }
std::uint64_t hidden(const Sizes& s) { return s.hidden; }
std::uint64_t mlp_hidden(const Sizes& s) { return s.mlp_hidden; }
std::uint64_t query(const Sizes& s) { return s.heads * s.head_dim; }
std::uint64_t key(const Sizes& s) { return s.kv_heads * s.head_dim; }
std::uint64_t one(const Sizes&) { return 1; }

std::uint64_t head(const Sizes& s) { return s.head_dim; }

constexpr Module usual(model::Module module, decltype(Module::rows) rows,
                       decltype(Module::cols) cols, bool rotated = false) {
  const auto* name = std::begin(model::kModuleNames);
  while (name->module != module) ++name;
  return {name->gguf, name->hugging_face, rows, cols, rotated};
}

// The modules of a decoder, most of them called alike everywhere.
template <bool kRotated>
constexpr auto kDecoder = std::to_array<Module>({
    usual(model::Module::kEmbedding, vocab, hidden),
    usual(model::Module::kFinalNorm, one, hidden),
    usual(model::Module::kHead, vocab, hidden),
    usual(model::Module::kAttentionNorm, one, hidden),
    usual(model::Module::kQuery, query, hidden, kRotated),
    usual(model::Module::kKey, key, hidden, kRotated),
    usual(model::Module::kValue, key, hidden),
    usual(model::Module::kQueryNorm, one, head),
    usual(model::Module::kKeyNorm, one, head),
    usual(model::Module::kAttentionOutput, hidden, query),
    usual(model::Module::kMlpNorm, one, hidden),
    usual(model::Module::kGate, mlp_hidden, hidden),
    usual(model::Module::kUp, mlp_hidden, hidden),
    usual(model::Module::kDown, hidden, mlp_hidden),
});

// Of models with one name in GGUF, the first is what that becomes.
constexpr auto kArchitectures = std::to_array<Architecture>({
    {"llama", "llama", "LlamaForCausalLM", kDecoder<true>},
    {"llama", "mistral", "MistralForCausalLM", kDecoder<true>},
    {"qwen2", "qwen2", "Qwen2ForCausalLM", kDecoder<false>},
    {"qwen3", "qwen3", "Qwen3ForCausalLM", kDecoder<false>},
});

// "blk.12.attn_q" as the pattern "blk.{}.attn_q" and 12. Numbers as no writer spells them ("012",
// or too long) make no pattern that a table has.
struct Pattern {
  std::string text;
  std::uint64_t number = 0;
};

Pattern pattern_of(std::string_view module) {
  Pattern pattern;
  while (true) {
    const std::size_t end = std::min(module.find('.'), module.size());
    const std::string_view part = module.substr(0, end);
    const bool number = !part.empty() && part.size() < 6 && (part.size() == 1 || part[0] != '0') &&
                        part.find_first_not_of("0123456789") == std::string_view::npos;
    if (number) pattern.number = std::stoull(std::string(part));
    pattern.text += number ? "{}" : part;
    if (end == module.size()) return pattern;
    pattern.text += '.';
    module.remove_prefix(end + 1);
  }
}

}  // namespace

const Architecture* find_architecture(Side side, std::string_view name) {
  const auto found = std::find_if(
      kArchitectures.begin(), kArchitectures.end(), [&](const Architecture& architecture) {
        return name == (side == Side::kGguf ? architecture.gguf_name : architecture.model_type);
      });
  return found == kArchitectures.end() ? nullptr : &*found;
}

std::optional<Translated> translate(const Architecture& architecture, Side from,
                                    std::string_view name) {
  const std::size_t dot = std::min(name.rfind('.'), name.size());
  const std::string_view suffix = name.substr(dot);
  if ((suffix != ".weight" && suffix != ".bias") || name.find('{') != std::string_view::npos) {
    return std::nullopt;
  }
  const Pattern pattern = pattern_of(name.substr(0, dot));
  for (const Module& module : architecture.modules) {
    if (pattern.text != (from == Side::kGguf ? module.gguf : module.hf)) continue;
    std::string other =
        fmt::format(fmt::runtime(from == Side::kGguf ? module.hf : module.gguf), pattern.number);
    return Translated{&module, other.append(suffix)};
  }
  return std::nullopt;
}

std::uint64_t rotated_row(Side from, std::uint64_t row, std::uint64_t head_dim) {
  const std::uint64_t half = head_dim / 2;
  const std::uint64_t head = row / head_dim * head_dim;
  const std::uint64_t place = row % head_dim;
  return head + (from == Side::kDirectory ? place % 2 * half + place / 2
                                          : place % half * 2 + place / half);
}

}  // namespace espalier::convert
