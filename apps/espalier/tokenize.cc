#include "verbs.h"

namespace espalier::app {

void add_tokenize(CLI::App& app, Verb& run) {
  CLI::App* verb = app.add_subcommand("tokenize");
  verb->callback([&run] { run = []() -> Status { return work_error("tokenize: not there"); }; });
}

}  // namespace espalier::app
