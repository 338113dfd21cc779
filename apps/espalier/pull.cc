// espalier pull, list and rm: models by name, from the Hugging Face hub into a cache folder.
#include "hub/cache.h"
#include "hub/download.h"
#include "hub/hub.h"
#include "output.h"
#include "verbs.h"

namespace espalier::app {
namespace {

constexpr double kMegabyte = 1e6;

struct PullOptions {
  std::string name;
  hub::DownloadOptions download;
};

// Prints the path that was pulled, which other verbs also find by the name.
Status pull(const PullOptions& options) {
  ESPALIER_TRY(const hub::ModelName name, hub::parse_model_name(options.name));
  ESPALIER_TRY(const std::filesystem::path folder, hub::repository_folder(name));
  const hub::Hub hub = hub::hub_from_environment();
  ESPALIER_TRY(const hub::RemoteRepository repository, hub::list_repository(hub, name));
  ESPALIER_TRY(const std::vector<hub::RemoteFile> files, hub::choose_files(repository, name));
  std::vector<hub::Fetch> fetches;
  fetches.reserve(files.size());
  for (const hub::RemoteFile& file : files) {
    fetches.push_back({file, hub::file_url(hub, name, repository.commit, file.path)});
  }
  ESPALIER_CHECK(hub::download(fetches, folder, hub.token, options.download));
  // A GGUF is its own model; a directory's files are one together.
  const bool gguf = files.front().path.ends_with(".gguf");
  return write_stdout((gguf ? folder / files.front().path : folder).string() + "\n");
}

Status list() {
  ESPALIER_TRY(const std::vector<hub::CachedModel> models, hub::list_cached());
  std::string text;
  for (const hub::CachedModel& model : models) {
    text += fmt::format("{:10.1f} MB  {}{}\n", static_cast<double>(model.bytes) / kMegabyte,
                        model.name, model.complete ? "" : "  (broken off; pull again)");
  }
  return write_stdout(text);
}

Status remove(const std::string& text) {
  ESPALIER_TRY(const hub::ModelName name, hub::parse_model_name(text));
  ESPALIER_TRY(const std::uint64_t freed, hub::remove_cached(name));
  return write_stdout(fmt::format("{:.1f} MB freed\n", static_cast<double>(freed) / kMegabyte));
}

}  // namespace

void add_pull(CLI::App& app, Verb& run) {
  CLI::App* verb = app.add_subcommand("pull", "Fetch a model from the Hugging Face hub");
  auto options = std::make_shared<PullOptions>();
  verb->add_option(
          "name", options->name,
          "org/repo[@revision][:pattern]; the pattern is a part of a file's name, or a glob")
      ->required();
  verb->add_option("--connections", options->download.connections, "Most connections at a time")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  verb->callback([&run, options] { run = [options] { return pull(*options); }; });
}

void add_list(CLI::App& app, Verb& run) {
  app.add_subcommand("list", "List the models that were pulled")->callback([&run] { run = list; });
}

void add_rm(CLI::App& app, Verb& run) {
  CLI::App* verb = app.add_subcommand("rm", "Remove a model that was pulled");
  auto name = std::make_shared<std::string>();
  verb->add_option("name", *name, "org/repo[@revision][:pattern]")->required();
  verb->callback([&run, name] { run = [name] { return remove(*name); }; });
}

}  // namespace espalier::app
