#include "verbs.h"

namespace espalier::app {

void add_logits(CLI::App& app, Verb& run) {
  CLI::App* verb = app.add_subcommand("logits");
  verb->callback([&run] { run = []() -> Status { return work_error("logits: not there"); }; });
}

}  // namespace espalier::app
