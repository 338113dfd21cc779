// espalier list: the models that were pulled.
#include "hub/cache.h"
#include "output.h"
#include "verbs.h"

namespace espalier::app {
namespace {

Status list() {
  ESPALIER_TRY(const std::vector<hub::CachedModel> models, hub::list_cached());
  std::string text;
  for (const hub::CachedModel& model : models) {
    text += fmt::format("{:10.1f} MB  {}{}\n", static_cast<double>(model.bytes) / 1e6, model.name,
                        model.complete ? "" : "  (broken off; pull again)");
  }
  return write_stdout(text);
}

}  // namespace

void add_list(CLI::App& app, Verb& run) {
  app.add_subcommand("list", "List the models that were pulled")->callback([&run] { run = list; });
}

}  // namespace espalier::app
