// espalier run: continues a prompt and prints the text as it comes.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/interrupt.h"
#include "load.h"
#include "run/generate.h"
#include "text/utf8.h"
#include "verbs.h"

namespace espalier::app {
namespace {

struct RunOptions {
  std::string model;
  std::string prompt;
  std::string backend = "cpu";
  int threads = 0;
  std::size_t context = 0;
  bool json = false;
  run::GenerateOptions generate;
};

double per_second(std::size_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

// Prints bytes as they come, but only whole UTF-8 characters, so that a terminal never sees a half.
class StreamPrinter {
 public:
  void print(std::string_view bytes) {
    pending_ += bytes;
    flush(text::complete_utf8_prefix(pending_));
  }
  void finish() { flush(pending_.size()); }

 private:
  void flush(std::size_t count) {
    std::fwrite(pending_.data(), 1, count, stdout);
    std::fflush(stdout);
    pending_.erase(0, count);
  }

  std::string pending_;
};

void print_json(const LoadedModel& loaded, const run::Generation& generation,
                std::size_t prompt_tokens, const std::string& text) {
  const std::size_t decoded = generation.tokens.size();
  const nlohmann::ordered_json result = {
      {"model", loaded.model->info().source},
      {"prompt_tokens", prompt_tokens},
      {"output_tokens", decoded},
      {"text", text},
      {"tokens", generation.tokens},
      {"stop", run::stop_reason_name(generation.stop)},
      {"timings",
       {{"prompt_seconds", generation.prompt_seconds},
        {"prompt_tokens_per_second", per_second(generation.prompt_done, generation.prompt_seconds)},
        {"decode_seconds", generation.decode_seconds},
        {"decode_tokens_per_second", per_second(decoded, generation.decode_seconds)}}}};
  // Text can end in the middle of a character; JSON cannot.
  fmt::print("{}\n", result.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

Status run_model(const RunOptions& options) {
  const std::atomic<bool>& stop = interrupted();
  ESPALIER_TRY(const std::string prompt, text_or_stdin(options.prompt));
  ESPALIER_TRY(const LoadedModel loaded, load(options.model));
  const model::ModelInfo& info = loaded.model->info();
  ESPALIER_CHECK(need_tokenizer(loaded));
  const std::vector<run::TokenId> tokens =
      loaded.tokenizer->encode(prompt, text::AddSpecial::kYes, text::ParseSpecial::kYes);

  const std::size_t context = options.context != 0 ? options.context : info.context_length;
  if (context > info.context_length) {
    spdlog::warn("{}: the model was made for {} positions, --ctx asks for {}", info.source,
                 info.context_length, context);
  }
  ESPALIER_CHECK(run::check_tokens(info, tokens, context));
  const std::size_t most = context - tokens.size();
  const std::size_t capacity = tokens.size() + std::min(most, options.generate.max_tokens);
  ESPALIER_TRY(run::KvCache cache,
               run::KvCache::create(info, 1, capacity, cache_type(options.backend)));
  const std::unique_ptr<compute::Ops> ops = make_backend(options.backend, options.threads);

  StreamPrinter printer;
  std::string text;
  const auto on_token = [&](run::TokenId id) {
    const auto piece = loaded.tokenizer->piece(id, text::ControlTokens::kSkip);
    if (!piece) return;  // an embedding row beyond the vocabulary has no text
    text += *piece;
    if (!options.json) printer.print(*piece);
  };
  ESPALIER_TRY(const run::Generation generation,
               run::generate({*loaded.model, *ops, cache}, *loaded.tokenizer, tokens,
                             options.generate, stop, on_token));
  if (options.json) {
    print_json(loaded, generation, tokens.size(), text);
    return {};
  }
  printer.finish();
  if (!text.empty() && text.back() != '\n') fmt::print("\n");
  std::fflush(stdout);
  fmt::print(stderr,
             "{}prompt: {} of {} tokens, {:.1f} tokens/s; generation: {} tokens, {:.1f} tokens/s\n",
             generation.stop == run::StopReason::kInterrupted ? "interrupted; " : "",
             generation.prompt_done, tokens.size(),
             per_second(generation.prompt_done, generation.prompt_seconds),
             generation.tokens.size(),
             per_second(generation.tokens.size(), generation.decode_seconds));
  return {};
}

}  // namespace

void add_run(CLI::App& app, Verb& run) {
  CLI::App* verb = app.add_subcommand("run", "Continue a prompt and print the text as it comes");
  auto options = std::make_shared<RunOptions>();
  run::SamplerOptions& sampler = options->generate.sampler;
  verb->add_option("-m,--model", options->model, "Model: a GGUF file or a directory")->required();
  verb->add_option("-p,--prompt", options->prompt, "Text to continue; - reads standard input")
      ->required();
  verb->add_option("-n,--tokens", options->generate.max_tokens, "Most tokens to generate")
      ->capture_default_str();
  verb->add_option("--temp", sampler.temperature, "Temperature; 0 takes the most likely token")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  verb->add_option("--top-k", sampler.top_k, "Choose among the k most likely tokens; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  verb->add_option("--top-p", sampler.top_p, "Choose among the most likely that reach p; 1: all")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  verb->add_option("--min-p", sampler.min_p, "Drop tokens less likely than p times the most likely")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  verb->add_option("--repeat-penalty", sampler.repeat_penalty,
                   "Make the last 64 tokens less likely; 1: no")
      ->check(CLI::Range(0.01, 100.0))
      ->capture_default_str();
  verb->add_option("--seed", sampler.seed, "The same seed and input give the same text")
      ->capture_default_str();
  verb->add_option("--ctx", options->context, "Most positions; 0: what the model was made for")
      ->check(CLI::Range(std::size_t{0}, std::size_t{1} << 30))
      ->capture_default_str();
  add_backend_options(*verb, options->backend, options->threads);
  verb->add_flag("--json", options->json, "Print one JSON object instead of text");
  verb->callback([&run, options] { run = [options] { return run_model(*options); }; });
}

}  // namespace espalier::app
