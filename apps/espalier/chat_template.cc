// espalier chat-template: what a template makes of a conversation, to the byte.
#include "text/chat_template.h"

#include <nlohmann/json.hpp>

#include "base/mapped_file.h"
#include "load.h"
#include "output.h"
#include "text/jinja/json.h"
#include "verbs.h"

namespace espalier::app {
namespace {

struct ChatTemplateOptions {
  std::string model;
  std::string file;
  std::string context;
  std::string now;
  bool json = false;
};

Result<std::string> read_text(const std::string& path) {
  ESPALIER_TRY(const MappedFile mapped, MappedFile::open(path));
  return std::string(as_text(mapped.bytes()));
}

Result<text::ChatTemplate> open_template(const ChatTemplateOptions& options) {
  if (!options.file.empty()) {
    ESPALIER_TRY(const std::string source, read_text(options.file));
    return text::ChatTemplate::parse(source, options.file, nullptr);
  }
  ESPALIER_TRY(const file::Container container, open_model(options.model));
  ESPALIER_TRY(const auto source, text::find_chat_template(container));
  if (!source) return input_error("{}: there is no chat template", options.model);
  std::unique_ptr<text::Tokenizer> tokenizer;
  if (const auto* gguf = std::get_if<file::Gguf>(&container)) {
    ESPALIER_TRY(tokenizer, text::tokenizer_from_gguf(*gguf));
  } else if (const auto& directory = std::get<file::HfDirectory>(container);
             directory.find_file("tokenizer.json")) {
    ESPALIER_TRY(tokenizer, text::tokenizer_from_directory(directory.name()));
  }
  return text::ChatTemplate::parse(*source, options.model + ": chat template", tokenizer.get());
}

Status print_rendering(const ChatTemplateOptions& options) {
  ESPALIER_TRY(const text::ChatTemplate chat, open_template(options));
  ESPALIER_TRY(const std::string json,
               options.context == "-" ? text_or_stdin("-") : read_text(options.context));
  ESPALIER_TRY(const text::jinja::Value context,
               text::jinja::parse_json(json, text::jinja::Origin::kMessage, options.context));
  if (context.dict() == nullptr) {
    return input_error("{}: the document is no object, expected the template's variables",
                       options.context);
  }
  text::jinja::Variables variables;
  for (const auto& [name, value] : context.dict()->items) {
    variables.emplace_back(name.text()->bytes(), value);
  }
  std::tm now = text::local_time();
  if (!options.now.empty()) {
    ESPALIER_TRY(now, text::parse_time(options.now));
  }
  ESPALIER_TRY(const text::jinja::MarkedText text, chat.render(std::move(variables), now));
  if (!options.json) return write_stdout(text.bytes());
  nlohmann::ordered_json parts = nlohmann::ordered_json::array();
  for (const text::jinja::MarkedPart& part : text.parts()) {
    const bool own = part.origin == text::jinja::Origin::kTemplate;
    parts.push_back({{"text", part.text}, {"origin", own ? "template" : "message"}});
  }
  return write_stdout(parts.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) +
                      "\n");
}

}  // namespace

void add_chat_template(CLI::App& app, Verb& run) {
  CLI::App* verb =
      app.add_subcommand("chat-template", "Print what a chat template makes of a conversation");
  auto options = std::make_shared<ChatTemplateOptions>();
  CLI::Option_group* source = verb->add_option_group("source", "Whose template");
  source->add_option("model", options->model, "Model file or directory");
  source->add_option("--file", options->file, "A template (Jinja)");
  source->require_option(1);
  verb->add_option("--context", options->context,
                   "JSON object of the template's variables: messages, tools, documents, "
                   "add_generation_prompt, …; - reads standard input")
      ->required();
  verb->add_option("--now", options->now,
                   "The time that the template sees: 2026-11-30T12:34:56; default: the local time");
  verb->add_flag("--json", options->json,
                 "Print a list of parts, with the origin of each: template or message");
  verb->callback([&run, options] { run = [options] { return print_rendering(*options); }; });
}

}  // namespace espalier::app
