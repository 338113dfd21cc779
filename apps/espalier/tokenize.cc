// espalier tokenize: a text as token ids and back, for comparison with others.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "load.h"
#include "token_list.h"
#include "verbs.h"

namespace espalier::app {
namespace {

struct TokenizeOptions {
  std::string model;
  std::string prompt = "-";
  std::string decode;
  bool no_add_special = false;
  bool no_parse_special = false;
  bool json = false;
};

Status print(std::string_view bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), stdout) == bytes.size() &&
      std::fflush(stdout) == 0) {
    return {};
  }
  return work_error("standard output: writing failed");
}

Status tokenize(const TokenizeOptions& options) {
  ESPALIER_TRY(const auto tokenizer, open_tokenizer(options.model));
  if (!options.decode.empty()) {
    ESPALIER_TRY(const auto ids, parse_token_list(options.decode, "--decode"));
    const auto bytes = tokenizer->decode(ids, text::ControlTokens::kPrint);
    if (!bytes) return input_error("{}: --decode: {}", options.model, bytes.error().message);
    return print(*bytes);
  }
  ESPALIER_TRY(const std::string prompt, text_or_stdin(options.prompt));
  const std::vector<text::TokenId> ids = tokenizer->encode(
      prompt, options.no_add_special ? text::AddSpecial::kNo : text::AddSpecial::kYes,
      options.no_parse_special ? text::ParseSpecial::kNo : text::ParseSpecial::kYes);
  if (options.json) return print(nlohmann::json{{"ids", ids}}.dump() + "\n");
  return print(fmt::format("{}\n", fmt::join(ids, ",")));
}

}  // namespace

void add_tokenize(CLI::App& app, Verb& run) {
  CLI::App* verb = app.add_subcommand("tokenize", "Print a text as token ids, or ids as a text");
  auto options = std::make_shared<TokenizeOptions>();
  verb->add_option("model", options->model, "GGUF file or directory; a vocabulary alone is enough")
      ->required();
  verb->add_option("-p,--prompt", options->prompt, "A text; - reads standard input")
      ->capture_default_str();
  CLI::Option* no_add = verb->add_flag("--no-add-special", options->no_add_special,
                                       "Without the tokens that the vocabulary puts around a text");
  CLI::Option* no_parse = verb->add_flag("--no-parse-special", options->no_parse_special,
                                         "Take the spelling of control tokens as text");
  CLI::Option* json = verb->add_flag("--json", options->json, R"(Print {"ids": [1,2,3]})");
  verb->add_option("--decode", options->decode, "Print the bytes that these ids stand for: 1,2,3")
      ->excludes("--prompt")
      ->excludes(no_add)
      ->excludes(no_parse)
      ->excludes(json);
  verb->callback([&run, options] { run = [options] { return tokenize(*options); }; });
}

}  // namespace espalier::app
