// espalier profile: where the time of a prefill and of a decoded token goes, operator by operator.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "load.h"
#include "measure/bench.h"
#include "output.h"
#include "verbs.h"

namespace espalier::app {
namespace {

struct ProfileOptions {
  std::string model;
  BackendOptions backend;
  measure::ModelBenchOptions work = {.prompt_tokens = 128, .decode_tokens = 32};
};

// A table of what the operators did in `tokens` tokens, the slowest first.
std::string table(std::string_view title, std::size_t tokens,
                  const std::vector<measure::OperatorAccount>& accounts) {
  double total = 0;
  for (const measure::OperatorAccount& account : accounts) total += account.seconds;
  std::vector<std::size_t> order(accounts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return accounts[a].seconds > accounts[b].seconds;
  });
  const auto per_token = [tokens](double amount) { return amount / static_cast<double>(tokens); };
  std::string text =
      fmt::format("{}: {:.1f} µs a token\n{:20} {:>10} {:>12} {:>7} {:>14}\n", title,
                  per_token(1e6 * total), "operator", "calls", "µs a token", "share", "weights");
  for (const std::size_t op : order) {
    const measure::OperatorAccount& account = accounts[op];
    if (account.calls == 0) continue;
    const std::string speed =
        account.weight_bytes == 0
            ? ""
            : fmt::format("{:.1f} GB/s",
                          static_cast<double>(account.weight_bytes) / account.seconds / 1e9);
    text += fmt::format("{:20} {:>10} {:>12.1f} {:>6.1f}% {:>14}\n",
                        measure::operator_name(static_cast<measure::Operator>(op)), account.calls,
                        per_token(1e6 * account.seconds), 100 * account.seconds / total, speed);
  }
  return text;
}

Status profile(const ProfileOptions& options) {
  ESPALIER_TRY(LoadedModel loaded, load(options.model));
  const std::unique_ptr<compute::Ops> ops = make_backend(options.backend, loaded);
  ESPALIER_TRY(
      const measure::Profile profile,
      measure::profile_model(*loaded.model, *ops, cache_type(options.backend), options.work));
  std::string text;
  if (options.work.prompt_tokens != 0) {
    text += table(fmt::format("prefill of {} tokens", options.work.prompt_tokens),
                  options.work.prompt_tokens, profile.prefill);
  }
  if (options.work.decode_tokens != 0) {
    text += text.empty() ? "" : "\n";
    text += table(fmt::format("decoding of {} tokens", options.work.decode_tokens),
                  options.work.decode_tokens, profile.decode);
  }
  return write_stdout(text);
}

}  // namespace

void add_profile(CLI::App& app, Verb& run) {
  CLI::App* verb = app.add_subcommand("profile", "Say where the time goes, by operator");
  auto options = std::make_shared<ProfileOptions>();
  const auto tokens = CLI::Range(std::size_t{0}, std::size_t{1} << 24);
  verb->add_option("-m,--model", options->model, "A GGUF file, a directory, or a pulled model")
      ->required();
  verb->add_option("-p,--prompt-tokens", options->work.prompt_tokens, "Tokens of prefill")
      ->check(tokens)
      ->capture_default_str();
  verb->add_option("-n,--tokens", options->work.decode_tokens, "Tokens to decode")
      ->check(tokens)
      ->capture_default_str();
  verb->add_option("-d,--depth", options->work.depth, "Tokens that are in the cache before")
      ->check(tokens)
      ->capture_default_str();
  add_backend_options(*verb, options->backend);
  verb->callback([&run, options] { run = [options] { return profile(*options); }; });
}

}  // namespace espalier::app
