// espalier: runs language models straight from their packed weights.
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include "verbs.h"

int main(int argc, char** argv) {
  using namespace espalier;

  // Results go to standard output, everything said about the work to standard error.
  spdlog::set_default_logger(spdlog::stderr_color_mt("espalier"));
  spdlog::set_pattern("%^%l%$: %v");

  CLI::App app("Runs language models straight from their packed weights.", "espalier");
  app.set_version_flag("--version", "espalier " ESPALIER_VERSION);
  app.require_subcommand(1);

  app::Verb verb;
  app::add_inspect(app, verb);
  app::add_tokenize(app, verb);
  app::add_convert(app, verb);
  app::add_dequantize(app, verb);
  app::add_logits(app, verb);
  app::add_run(app, verb);
  app::add_chat_template(app, verb);
  app::add_pull(app, verb);
  app::add_list(app, verb);
  app::add_rm(app, verb);
  app::add_devices(app, verb);
  app::add_bench(app, verb);
  app::add_profile(app, verb);

  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& done) {  // --help, --version
    return app.exit(done);
  } catch (const CLI::ParseError& wrong) {
    app.exit(wrong);
    return static_cast<int>(ErrorKind::kInput);
  }
  if (Status status = verb(); !status) {
    spdlog::error("{}", status.error().message);
    return static_cast<int>(status.error().kind);
  }
  return 0;
}
