#include "load.h"

#include <iostream>
#include <iterator>
#include <thread>

#include "compute/reference/reference.h"

namespace espalier::app {

Result<LoadedModel> load(const std::string& path) {
  LoadedModel loaded;
  ESPALIER_TRY(auto gguf, file::Gguf::open(path));
  loaded.gguf = std::make_unique<file::Gguf>(std::move(gguf));
  ESPALIER_TRY(loaded.model, model::load_model(*loaded.gguf));
  ESPALIER_TRY(loaded.tokenizer, text::tokenizer_from_gguf(*loaded.gguf));
  const std::size_t tokens = loaded.tokenizer->vocab_size();
  const std::size_t rows = loaded.model->info().vocab_size;
  if (tokens > rows) {
    return input_error("{}: the vocabulary has {} tokens, but the embedding only {} rows", path,
                       tokens, rows);
  }
  return loaded;
}

void add_backend_options(CLI::App& verb, std::string& backend, int& threads) {
  verb.add_option("--backend", backend, "What computes: cpu, or reference, the slow oracle")
      ->check(CLI::IsMember({"cpu", "reference"}))
      ->capture_default_str();
  verb.add_option("--threads", threads, "Threads; 0: one per processor")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
}

std::unique_ptr<compute::Ops> make_backend(const std::string& name, int threads) {
  (void)threads;
  (void)name;
  return reference::make_ops();
}

compute::KvType cache_type(const std::string& backend) {
  return backend == "reference" ? compute::KvType::kF32 : compute::KvType::kF16;
}

Result<std::string> text_or_stdin(const std::string& text) {
  if (text != "-") return text;
  std::string read(std::istreambuf_iterator<char>(std::cin), {});
  if (std::cin.bad()) return work_error("standard input: reading failed");
  return read;
}

}  // namespace espalier::app
