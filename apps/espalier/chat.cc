#include "chat.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <fstream>
#include <iostream>
#include <map>

#include "base/interrupt.h"
#include "line_editor.h"
#include "output.h"
#include "speeds.h"

namespace espalier::app {
namespace {

using text::OutputPart;

// Shows answers on standard output and thoughts, dimmed, on standard error.
class AnswerPrinter {
 public:
  AnswerPrinter(text::Reasoning reasoning, bool silent)
      : hides_thoughts_(silent || reasoning == text::Reasoning::kOff), silent_(silent) {}

  void print(const OutputPart& part) {
    if (!status_) return;
    if (part.kind == OutputPart::Kind::kThought) {
      if (hides_thoughts_) return;
      if (!thinking_) fmt::print(stderr, "{}", terminal_ ? "\x1b[2m" : "");
      thinking_ = true;
      fmt::print(stderr, "{}", part.text);
      return;
    }
    end_thoughts();
    if (silent_) return;
    ends_line_ = part.text.ends_with('\n');
    printed_ = true;
    status_ = write_stdout(part.text);
  }

  // Ends the last line.
  Status finish() {
    end_thoughts();
    if (status_ && printed_ && !ends_line_) status_ = write_stdout("\n");
    return status_;
  }

 private:
  void end_thoughts() {
    if (thinking_) fmt::print(stderr, "{}\n\n", terminal_ ? "\x1b[22m" : "");
    thinking_ = false;
  }

  bool hides_thoughts_, silent_;
  bool terminal_ = isatty(STDERR_FILENO) != 0;
  bool thinking_ = false, printed_ = false, ends_line_ = false;
  Status status_;
};

run::GenerateOptions generate_options(const RunOptions& options) {
  return {.max_tokens = options.max_tokens.value_or(kDefaultAnswerTokens),
          .sampler = options.sampler};
}

// A conversation at a terminal or over a pipe.
class Chat {
 public:
  Chat(const RunOptions& options, run::Conversation& conversation)
      : options_(options), conversation_(conversation) {}

  // False when the conversation is over.
  Result<bool> handle(const std::string& message) {
    if (message.starts_with('/')) return command(message);
    if (message.find_first_not_of(" \t\n") == std::string::npos) return true;
    return show([&](const auto& generate, const auto& on_part) {
      return conversation_.ask(message, generate, interrupted(), on_part);
    });
  }

 private:
  template <typename Ask>
  Result<bool> show(const Ask& ask) {
    AnswerPrinter printer(options_.reasoning, false);
    run::GenerateOptions generate = generate_options(options_);
    generate.sampler.seed += repetitions_;  // another answer to the same question
    auto answer = ask(generate, [&](const OutputPart& part) { printer.print(part); });
    ESPALIER_CHECK(printer.finish());
    if (!answer) {
      if (isatty(STDIN_FILENO) == 0) return answer.error();
      spdlog::error("{}", answer.error().message);
      return true;
    }
    if (answer->generation.stop == run::StopReason::kContextFull) {
      spdlog::warn("the context is full; /reset begins a new conversation, --ctx sets its size");
    }
    last_ = std::move(*answer);
    if (asked_to_end()) return false;
    clear_interrupt();
    return true;
  }

  Result<bool> command(const std::string& line) {
    using Command = Result<bool> (Chat::*)(const std::string& argument);
    static const std::map<std::string, Command> kCommands = {
        {"/help", &Chat::help},     {"/?", &Chat::help},     {"/reset", &Chat::reset},
        {"/system", &Chat::system}, {"/save", &Chat::save},  {"/regen", &Chat::regenerate},
        {"/stats", &Chat::stats},   {"/exit", &Chat::leave}, {"/bye", &Chat::leave},
        {"/quit", &Chat::leave},
    };
    const std::size_t space = std::min(line.find_first_of(" \n"), line.size());
    const auto found = kCommands.find(line.substr(0, space));
    if (found == kCommands.end()) {
      fmt::print(stderr, "unknown command {}; /help lists them\n", line.substr(0, space));
      return true;
    }
    const std::size_t argument = std::min(line.find_first_not_of(" \n", space), line.size());
    return (this->*found->second)(line.substr(argument));
  }

  Result<bool> help(const std::string& /*argument*/) {
    fmt::print(stderr,
               "/reset         begin a new conversation\n"
               "/system TEXT   set the system message and begin a new conversation\n"
               "/save FILE     write the conversation as JSON\n"
               "/regen         answer the last message again\n"
               "/stats         tokens and speeds\n"
               "/exit          leave, as Ctrl+D does\n"
               "A line that ends in \\ goes on in the next; \"\"\" begins and ends several lines.\n"
               "Ctrl+C stops an answer.\n");
    return true;
  }

  Result<bool> reset(const std::string& /*argument*/) {
    conversation_.reset();
    last_ = {};
    return true;
  }

  Result<bool> system(const std::string& argument) {
    const auto& messages = conversation_.messages();
    if (!argument.empty()) {
      conversation_.set_system(argument);
    } else if (!messages.empty() && messages.front().role == "system") {
      fmt::print(stderr, "{}\n", messages.front().content);
    } else {
      fmt::print(stderr, "there is no system message\n");
    }
    return true;
  }

  Result<bool> save(const std::string& argument) {
    if (argument.empty()) {
      fmt::print(stderr, "/save needs the name of a file\n");
      return true;
    }
    nlohmann::ordered_json messages = nlohmann::ordered_json::array();
    for (const text::ChatMessage& message : conversation_.messages()) {
      nlohmann::ordered_json entry = {{"role", message.role}, {"content", message.content}};
      if (!message.reasoning.empty()) entry["reasoning_content"] = message.reasoning;
      messages.push_back(std::move(entry));
    }
    std::ofstream file(argument, std::ios::binary);
    file << dump({{"messages", std::move(messages)}});
    file.close();
    fmt::print(stderr, "{} {}\n", file ? "saved to" : "cannot write", argument);
    return true;
  }

  Result<bool> regenerate(const std::string& /*argument*/) {
    const auto& messages = conversation_.messages();
    if (messages.empty() || messages.back().role != "assistant") {
      fmt::print(stderr, "there is no answer to give again\n");
      return true;
    }
    ++repetitions_;
    return show([&](const auto& generate, const auto& on_part) {
      return conversation_.ask_again(generate, interrupted(), on_part);
    });
  }

  Result<bool> stats(const std::string& /*argument*/) {
    fmt::print(stderr, "context: {} tokens", conversation_.tokens_in_cache());
    if (last_) {
      fmt::print(stderr, "; {} tokens reused; {}", last_->cached_tokens,
                 speeds(last_->generation, last_->prompt_tokens));
    }
    fmt::print(stderr, "\n");
    return true;
  }

  Result<bool> leave(const std::string& /*argument*/) { return false; }

  const RunOptions& options_;
  run::Conversation& conversation_;
  std::optional<run::Answer> last_;
  std::uint64_t repetitions_ = 0;
};

constexpr std::string_view kFence = R"(""")";

// One message, which begins with `line`, as long as `read` gives the lines it goes on in.
template <typename Read>
std::string whole_message(std::string line, const Read& read) {
  if (line.starts_with(kFence)) {
    std::string message = line.substr(kFence.size());
    while (!message.ends_with(kFence)) {
      const auto next = read();
      if (!next) return message;
      message += '\n';
      message += *next;
    }
    message.resize(message.size() - kFence.size());
    return message;
  }
  while (line.ends_with('\\')) {
    line.back() = '\n';
    const auto next = read();
    if (!next) break;
    line += *next;
  }
  return line;
}

template <typename Read>
Status for_each(const Read& read, const std::function<Result<bool>(const std::string&)>& use) {
  while (auto line = read("> ")) {
    ESPALIER_TRY(const bool more, use(whole_message(std::move(*line), [&] { return read(". "); })));
    if (!more) break;
  }
  return {};
}

}  // namespace

Status for_each_message(const std::function<Result<bool>(const std::string&)>& use) {
  if (isatty(STDIN_FILENO) != 0) {
    LineEditor editor(default_history_file());
    return for_each([&](const char* prompt) { return editor.read(prompt); }, use);
  }
  ESPALIER_CHECK(for_each(
      [](const char* /*prompt*/) {
        std::string line;
        const bool read = static_cast<bool>(std::getline(std::cin, line));
        return read ? std::optional(std::move(line)) : std::nullopt;
      },
      use));
  if (std::cin.bad()) return work_error("standard input: reading failed");
  return {};
}

Status answer_once(const RunOptions& options, const LoadedModel& loaded,
                   run::Conversation& conversation) {
  AnswerPrinter printer(options.reasoning, options.json);
  ESPALIER_TRY(const run::Answer answer,
               conversation.ask(*options.prompt, generate_options(options), interrupted(),
                                [&](const OutputPart& part) { printer.print(part); }));
  ESPALIER_CHECK(printer.finish());
  if (options.json) {
    auto result =
        summary(loaded.model->info().source, answer.generation, answer.prompt_tokens, answer.text);
    if (!answer.reasoning.empty()) result["reasoning"] = answer.reasoning;
    return write_stdout(dump(result));
  }
  fmt::print(stderr, "{}\n", speeds(answer.generation, answer.prompt_tokens));
  return {};
}

Status converse(const RunOptions& options, const LoadedModel& loaded,
                run::Conversation& conversation) {
  if (isatty(STDIN_FILENO) != 0) {
    fmt::print(stderr, "{}; /help lists the commands, Ctrl+D ends\n", loaded.model->info().source);
  }
  Chat chat(options, conversation);
  return for_each_message([&](const std::string& message) { return chat.handle(message); });
}

}  // namespace espalier::app
