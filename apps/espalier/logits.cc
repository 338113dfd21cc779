// espalier logits: what a model says at every position of a text, for comparison with others.
#include <fmt/format.h>

#include <algorithm>

#include "base/interrupt.h"
#include "base/mapped_file.h"
#include "base/progress.h"
#include "file/safetensors.h"
#include "load.h"
#include "run/generate.h"
#include "token_list.h"
#include "verbs.h"

namespace espalier::app {
namespace {

struct LogitsOptions {
  std::string model;
  std::string prompt;
  std::string tokens;
  std::string tokens_file;
  std::string output;
  BackendOptions backend;
};

Result<std::vector<run::TokenId>> tokens_of(const LogitsOptions& options,
                                            const LoadedModel& loaded) {
  if (!options.tokens.empty()) return parse_token_list(options.tokens, "--tokens");
  if (!options.tokens_file.empty()) {
    ESPALIER_TRY(const MappedFile file, MappedFile::open(options.tokens_file));
    return parse_token_list(as_text(file.bytes()), options.tokens_file);
  }
  ESPALIER_TRY(const std::string prompt, text_or_stdin(options.prompt));
  ESPALIER_CHECK(need_tokenizer(loaded));
  return loaded.tokenizer->encode(prompt, text::AddSpecial::kYes, text::ParseSpecial::kYes);
}

Status write_logits(const LogitsOptions& options) {
  const std::atomic<bool>& stop = interrupted();
  ESPALIER_TRY(LoadedModel loaded, load(options.model));
  const model::ModelInfo& info = loaded.model->info();
  ESPALIER_TRY(const std::vector<run::TokenId> tokens, tokens_of(options, loaded));
  ESPALIER_CHECK(run::check_tokens(info, tokens, info.context_length));
  const std::unique_ptr<compute::Ops> ops = make_backend(options.backend, loaded);
  ESPALIER_TRY(run::KvCache cache,
               run::KvCache::create(info, 1, tokens.size(), cache_type(options.backend)));
  ESPALIER_TRY(auto writer, file::SafetensorsWriter::create(
                                options.output,
                                {{"tokens", file::Dtype::kI32, {tokens.size()}},
                                 {"logits", file::Dtype::kF32, {tokens.size(), info.vocab_size}}}));
  ESPALIER_CHECK(writer.write("tokens", std::as_bytes(std::span(tokens))));

  // As many rows at a time as prefill takes, but no more than 256 MiB of logits.
  const std::size_t chunk =
      std::clamp<std::size_t>((std::size_t{64} << 20) / info.vocab_size, 1, run::kPrefillRows);
  std::vector<float> logits(std::min(chunk, tokens.size()) * info.vocab_size);
  Progress progress("computing logits", tokens.size(), "positions");
  for (std::size_t first = 0; first < tokens.size(); first += chunk) {
    if (stop) {
      return work_error("interrupted after {} of {} positions; nothing was written to {}", first,
                        tokens.size(), options.output);
    }
    const std::size_t count = std::min(chunk, tokens.size() - first);
    run::forward_sequence({*loaded.model, *ops, cache}, std::span(tokens).subspan(first, count),
                          first, run::Wanted::kAllLogits, logits.data());
    ESPALIER_CHECK(
        writer.write("logits", std::as_bytes(std::span(logits).first(count * info.vocab_size))));
    progress.update(first + count);
  }
  return writer.finish();
}

}  // namespace

void add_logits(CLI::App& app, Verb& run) {
  CLI::App* verb = app.add_subcommand(
      "logits", "Write the logits of every position of a text to a safetensors file");
  auto options = std::make_shared<LogitsOptions>();
  verb->add_option("model", options->model, "Model: a GGUF file or a directory")->required();
  CLI::Option_group* input = verb->add_option_group("input", "What the model reads");
  input->add_option("-p,--prompt", options->prompt, "A text; - reads standard input");
  input->add_option("--tokens", options->tokens, "Token ids: 1,2,3");
  input->add_option("--tokens-file", options->tokens_file,
                    "A file of token ids with commas or white space between");
  input->require_option(1);
  verb->add_option("-o,--output", options->output,
                   "Gets `tokens` (I32) and `logits` (F32, [positions, vocabulary])")
      ->required();
  add_backend_options(*verb, options->backend);
  verb->callback([&run, options] { run = [options] { return write_logits(*options); }; });
}

}  // namespace espalier::app
