// The verbs of the command line. Each is one file: it adds its subcommand to the application and
// sets `run` to what happens when the user chose it.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "base/result.h"

namespace espalier::app {

using Verb = std::function<Status()>;

void add_chat_template(CLI::App& app, Verb& run);
void add_convert(CLI::App& app, Verb& run);
void add_devices(CLI::App& app, Verb& run);
void add_bench(CLI::App& app, Verb& run);
void add_profile(CLI::App& app, Verb& run);
void add_dequantize(CLI::App& app, Verb& run);
void add_inspect(CLI::App& app, Verb& run);
void add_tokenize(CLI::App& app, Verb& run);
void add_logits(CLI::App& app, Verb& run);
void add_run(CLI::App& app, Verb& run);
void add_pull(CLI::App& app, Verb& run);
void add_list(CLI::App& app, Verb& run);
void add_rm(CLI::App& app, Verb& run);

}  // namespace espalier::app
