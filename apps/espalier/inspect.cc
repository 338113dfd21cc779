#include "verbs.h"

namespace espalier::app {

void add_inspect(CLI::App& app, Verb& run) {
  CLI::App* verb = app.add_subcommand("inspect");
  verb->callback([&run] { run = []() -> Status { return work_error("inspect: not there"); }; });
}

}  // namespace espalier::app
