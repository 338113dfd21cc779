#include "verbs.h"

namespace espalier::app {

void add_run(CLI::App& app, Verb& run) {
  CLI::App* verb = app.add_subcommand("run");
  verb->callback([&run] { run = []() -> Status { return work_error("run: not there"); }; });
}

}  // namespace espalier::app
