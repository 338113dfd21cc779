// What `run` and `logits` share: opening a model and choosing the backend that computes.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "base/result.h"
#include "compute/ops.h"
#include "file/container.h"
#include "model/model.h"
#include "text/tokenizer.h"

namespace espalier::app {

// A model with everything read from its container. Members point into those before them.
struct LoadedModel {
  std::unique_ptr<file::Container> container;
  std::unique_ptr<model::Model> model;
  std::unique_ptr<text::Tokenizer> tokenizer;  // null where a directory has none that can be read
  Error no_tokenizer;                          // why it is null
};

// What `model` names: a GGUF file, a Hugging Face directory, or a model that was pulled.
[[nodiscard]] Result<file::Container> open_model(const std::string& model);

// The same with everything read, after a check that vocabulary and embedding agree.
[[nodiscard]] Result<LoadedModel> load(const std::string& model);

// The tokenizer of a model, whose weights need not be there.
[[nodiscard]] Result<std::unique_ptr<text::Tokenizer>> open_tokenizer(const std::string& model);

// An error that says why there is no tokenizer.
[[nodiscard]] Status need_tokenizer(const LoadedModel& loaded);

// Adds --backend, --exact and --threads to a verb; --exact is a backend of its own.
void add_backend_options(CLI::App& verb, std::string& backend, int& threads);

// The backend of that name; `threads` 0 means one per processor.
[[nodiscard]] std::unique_ptr<compute::Ops> make_backend(const std::string& name, int threads);

// The element type of the key-value cache that goes with a backend: the oracle keeps floats.
[[nodiscard]] compute::KvType cache_type(const std::string& backend);

// `text`, or all of standard input if it is "-".
[[nodiscard]] Result<std::string> text_or_stdin(const std::string& text);

}  // namespace espalier::app
