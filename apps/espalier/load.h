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

// What computes, as verbs are asked for it.
struct BackendOptions {
  std::string name = "cpu";
  int threads = 0;     // 0: one per processor
  bool exact = false;  // float32 activations
  bool repack = true;  // weights may be put in the order that kernels read fastest
  std::string cache;   // the type of keys and values; empty: what goes with the backend
};

// Adds --backend, --exact, --no-repack, --cache-type and --threads to a verb.
void add_backend_options(CLI::App& verb, BackendOptions& options);

[[nodiscard]] std::unique_ptr<compute::Ops> make_backend(const BackendOptions& options);

// The same with a model's weights prepared for it, in a copy of them where there is memory for
// that.
[[nodiscard]] std::unique_ptr<compute::Ops> make_backend(const BackendOptions& options,
                                                         LoadedModel& loaded);

// What the key-value cache holds: what was asked for, or half precision, and floats for the oracle.
[[nodiscard]] compute::KvType cache_type(const BackendOptions& options);

// `text`, or all of standard input if it is "-".
[[nodiscard]] Result<std::string> text_or_stdin(const std::string& text);

}  // namespace espalier::app
