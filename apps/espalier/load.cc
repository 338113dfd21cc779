#include "load.h"

#include <iostream>
#include <iterator>
#include <optional>

#include "base/machine.h"
#include "compute/cpu/cpu_ops.h"
#include "compute/reference/reference.h"
#include "hub/cache.h"

namespace espalier::app {
namespace {

constexpr std::pair<std::string_view, compute::KvType> kCacheTypes[] = {
    {"f32", compute::KvType::kF32},   {"f16", compute::KvType::kF16},
    {"bf16", compute::KvType::kBF16}, {"q8", compute::KvType::kQ8},
    {"q4", compute::KvType::kQ4},
};

// Whether a second copy of the weights leaves memory for all else.
bool has_memory_for_copy(const file::Container& container) {
  const auto matrices = file::list_matrices(container);
  const std::optional<std::uint64_t> available = available_memory();
  if (!matrices) return false;
  if (!available) return true;
  std::uint64_t bytes = 0;
  for (const file::NamedMatrix& matrix : *matrices) bytes += file::matrix_bytes(matrix.matrix);
  return bytes <= *available / 4 * 3;
}

}  // namespace

Result<file::Container> open_model(const std::string& model) {
  ESPALIER_TRY(const std::filesystem::path path, hub::find_model(model));
  return file::open_container(path);
}

Result<LoadedModel> load(const std::string& model) {
  LoadedModel loaded;
  ESPALIER_TRY(file::Container container, open_model(model));
  loaded.container = std::make_unique<file::Container>(std::move(container));
  const auto* gguf = std::get_if<file::Gguf>(loaded.container.get());
  const auto* directory = std::get_if<file::HfDirectory>(loaded.container.get());
  ESPALIER_TRY(loaded.model,
               gguf != nullptr ? model::load_model(*gguf) : model::load_model(*directory));
  if (gguf == nullptr) {
    // Directories may have tokens beyond the embedding, for other parts of a model; a prompt that
    // has one of these is an error. They may also lack a tokenizer, which token lists do without.
    auto tokenizer = text::tokenizer_from_directory(directory->name());
    if (tokenizer) {
      loaded.tokenizer = std::move(*tokenizer);
    } else {
      loaded.no_tokenizer = std::move(tokenizer.error());
    }
    return loaded;
  }
  ESPALIER_TRY(loaded.tokenizer, text::tokenizer_from_gguf(*gguf));
  // An embedding may have rows to spare, but every token needs one.
  const std::size_t tokens = loaded.tokenizer->vocab_size();
  const std::size_t rows = loaded.model->info().vocab_size;
  if (tokens > rows) {
    return input_error("{}: the vocabulary has {} tokens, but the embedding only {} rows", model,
                       tokens, rows);
  }
  return loaded;
}

Status need_tokenizer(const LoadedModel& loaded) {
  if (loaded.tokenizer != nullptr) return {};
  return loaded.no_tokenizer;
}

Result<std::unique_ptr<text::Tokenizer>> open_tokenizer(const std::string& model) {
  ESPALIER_TRY(const std::filesystem::path path, hub::find_model(model));
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return text::tokenizer_from_directory(path);
  ESPALIER_TRY(const file::Gguf gguf, file::Gguf::open(path));
  return text::tokenizer_from_gguf(gguf);
}

void add_backend_options(CLI::App& verb, BackendOptions& options) {
  verb.add_option("--backend", options.name, "What computes: cpu, or reference, the slow oracle")
      ->check(CLI::IsMember({"cpu", "reference"}))
      ->capture_default_str();
  verb.add_flag("--exact", options.exact, "The cpu backend with float32 activations: slower");
  verb.add_flag("!--no-repack", options.repack,
                "Compute from the file's own memory: slower, but takes half as much");
  std::vector<std::string> names;
  for (const auto& [name, type] : kCacheTypes) names.emplace_back(name);
  verb.add_option("--cache-type", options.cache,
                  "What keys and values are kept as: less memory, less exact; default f16")
      ->check(CLI::IsMember(names));
  verb.add_option("-t,--threads", options.threads, "Threads; 0: one per processor")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
}

std::unique_ptr<compute::Ops> make_backend(const BackendOptions& options) {
  if (options.name == "reference") return reference::make_ops();
  return cpu::make_ops(static_cast<std::size_t>(options.threads),
                       options.exact ? cpu::Activations::kFloat32 : cpu::Activations::kCoded);
}

std::unique_ptr<compute::Ops> make_backend(const BackendOptions& options, LoadedModel& loaded) {
  std::unique_ptr<compute::Ops> ops = make_backend(options);
  const bool coded = options.name == "cpu" && !options.exact;  // all others read the file as it is
  if (options.repack && coded && has_memory_for_copy(*loaded.container)) {
    loaded.model->prepare(*ops);
    file::release_pages(*loaded.container);
  }
  return ops;
}

compute::KvType cache_type(const BackendOptions& options) {
  for (const auto& [name, type] : kCacheTypes) {
    if (name == options.cache) return type;
  }
  return options.name == "reference" ? compute::KvType::kF32 : compute::KvType::kF16;
}

Result<std::string> text_or_stdin(const std::string& text) {
  if (text != "-") return text;
  std::string read(std::istreambuf_iterator<char>(std::cin), {});
  if (std::cin.bad()) return work_error("standard input: reading failed");
  return read;
}

}  // namespace espalier::app
