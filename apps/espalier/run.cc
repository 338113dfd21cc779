// espalier run: a chat with a model, one answer, or the plain continuation of a text.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <map>

#include "base/interrupt.h"
#include "base/mapped_file.h"
#include "chat.h"
#include "load.h"
#include "output.h"
#include "run/conversation.h"
#include "run/generate.h"
#include "run_options.h"
#include "speeds.h"
#include "text/utf8.h"
#include "verbs.h"

namespace espalier::app {
namespace {

// Prints bytes as they come, but only whole UTF-8 characters, so that a terminal never sees a half.
class StreamPrinter {
 public:
  void print(std::string_view bytes) { write(characters_.add(bytes)); }

  // Ends the line.
  Status finish() {
    write(characters_.finish());
    if (!ends_line_) write("\n");
    return status_;
  }

 private:
  void write(const std::string& text) {
    if (text.empty() || !status_) return;
    status_ = write_stdout(text);
    ends_line_ = text.ends_with('\n');
  }

  text::WholeCharacters characters_;
  bool ends_line_ = true;
  Status status_;
};

// Continues `prompt` as it is.
Status complete(const RunOptions& options, const LoadedModel& loaded, const run::Session& session,
                const std::string& prompt) {
  const std::vector<run::TokenId> tokens =
      loaded.tokenizer->encode(prompt, text::AddSpecial::kYes, text::ParseSpecial::kYes);
  StreamPrinter printer;
  std::string text;
  const auto on_token = [&](run::TokenId id) {
    const auto piece = loaded.tokenizer->piece(id, text::ControlTokens::kSkip);
    if (!piece) return;  // an embedding row beyond the vocabulary has no text
    text += *piece;
    if (!options.json) printer.print(*piece);
  };
  ESPALIER_TRY(const run::Generation generation,
               run::generate(session, *loaded.tokenizer, tokens,
                             {.max_tokens = options.max_tokens.value_or(kDefaultTokens),
                              .sampler = options.sampler},
                             interrupted(), on_token));
  if (options.json) {
    return write_stdout(
        dump(summary(loaded.model->info().source, generation, tokens.size(), text)));
  }
  ESPALIER_CHECK(printer.finish());
  fmt::print(stderr, "{}\n", speeds(generation, tokens.size()));
  return {};
}

// The template that the user or the model gives, or nothing where neither does.
Result<std::optional<text::ChatTemplate>> chat_template(const RunOptions& options,
                                                        const LoadedModel& loaded) {
  std::optional<std::string> source;
  std::string name = options.template_file;
  if (!name.empty()) {
    ESPALIER_TRY(const MappedFile mapped, MappedFile::open(name));
    source = as_text(mapped.bytes());
  } else {
    ESPALIER_TRY(source, text::find_chat_template(*loaded.container));
    name = loaded.model->info().source + ": chat template";
  }
  if (!source) return std::optional<text::ChatTemplate>();
  ESPALIER_TRY(text::ChatTemplate parsed,
               text::ChatTemplate::parse(*source, name, loaded.tokenizer.get()));
  return std::optional(std::move(parsed));
}

// Completes the prompt, or every message of standard input.
Status run_plain(const RunOptions& options, const LoadedModel& loaded,
                 const run::Session& session) {
  if (options.prompt) return complete(options, loaded, session, *options.prompt);
  return for_each_message([&](const std::string& message) -> Result<bool> {
    if (message.empty()) return true;
    ESPALIER_CHECK(complete(options, loaded, session, message));
    if (asked_to_end()) return false;
    clear_interrupt();
    return true;
  });
}

Status run_model(RunOptions options) {
  (void)interrupted();  // from here on, Ctrl+C stops cleanly
  if (options.json && !options.prompt) return input_error("--json needs a --prompt");
  if (options.prompt) {
    ESPALIER_TRY(options.prompt, text_or_stdin(*options.prompt));
  }
  ESPALIER_TRY(LoadedModel loaded, load(options.model));
  const model::ModelInfo& info = loaded.model->info();
  ESPALIER_CHECK(need_tokenizer(loaded));
  std::optional<text::ChatTemplate> chat;
  if (!options.raw) {
    ESPALIER_TRY(chat, chat_template(options, loaded));
  }

  const std::size_t context = options.context != 0 ? options.context : info.context_length;
  if (context > info.context_length) {
    spdlog::warn("{}: the model was made for {} positions, --ctx asks for {}", info.source,
                 info.context_length, context);
  }
  ESPALIER_TRY(run::KvCache cache,
               run::KvCache::create(info, 1, context, cache_type(options.backend)));
  const std::unique_ptr<compute::Ops> ops = make_backend(options.backend, loaded);
  if (interrupt_pending()) return work_error("interrupted while the weights were prepared");
  const run::Session session{*loaded.model, *ops, cache};
  if (!chat) {
    if (!options.raw) {
      fmt::print(stderr, "{}: there is no chat template; the text is continued as it is\n",
                 info.source);
    }
    return run_plain(options, loaded, session);
  }
  run::Conversation conversation(session, *loaded.tokenizer, *chat, options.reasoning);
  conversation.set_system(options.system);
  return options.prompt ? answer_once(options, loaded, conversation)
                        : converse(options, loaded, conversation);
}

}  // namespace

void add_run(CLI::App& app, Verb& run) {
  CLI::App* verb = app.add_subcommand("run", "Chat with a model, or let it continue a text");
  auto options = std::make_shared<RunOptions>();
  run::SamplerOptions& sampler = options->sampler;
  verb->add_option("-m,--model", options->model, "A GGUF file, a directory, or a pulled model")
      ->required();
  verb->add_option("-p,--prompt", options->prompt,
                   "A message to answer once; - reads standard input. Without it: a conversation");
  CLI::Option* raw = verb->add_flag("--raw", options->raw,
                                    "Continue the prompt as it is, without a chat template");
  verb->add_option("--system", options->system, "The system message of the chat")->excludes(raw);
  verb->add_option("--template", options->template_file,
                   "A chat template (Jinja) instead of the model's own")
      ->excludes(raw);
  verb->add_option(
          "--reasoning", options->reasoning,
          "Whether the model thinks before it answers, if its template lets it choose; off "
          "also hides thoughts")
      ->transform(CLI::CheckedTransformer(std::map<std::string, text::Reasoning>{
          {"on", text::Reasoning::kOn}, {"off", text::Reasoning::kOff}}))
      ->excludes(raw);
  verb->add_option("-n,--tokens", options->max_tokens,
                   "Most tokens to generate; by default 2048, or 128 where a text is continued");
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
  add_backend_options(*verb, options->backend);
  verb->add_flag("--json", options->json, "Print one JSON object instead of text");
  verb->callback([&run, options] { run = [options] { return run_model(*options); }; });
}

}  // namespace espalier::app
