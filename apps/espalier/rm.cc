// espalier rm: removes a model that was pulled.
#include "hub/cache.h"
#include "output.h"
#include "verbs.h"

namespace espalier::app {
namespace {

Status remove(const std::string& text) {
  ESPALIER_TRY(const hub::ModelName name, hub::parse_model_name(text));
  ESPALIER_TRY(const std::uint64_t freed, hub::remove_cached(name));
  return write_stdout(fmt::format("{:.1f} MB freed\n", static_cast<double>(freed) / 1e6));
}

}  // namespace

void add_rm(CLI::App& app, Verb& run) {
  CLI::App* verb = app.add_subcommand("rm", "Remove a model that was pulled");
  auto name = std::make_shared<std::string>();
  verb->add_option("name", *name, "org/repo[@revision][:pattern]")->required();
  verb->callback([&run, name] { run = [name] { return remove(*name); }; });
}

}  // namespace espalier::app
