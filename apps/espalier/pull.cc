// espalier pull: fetches a model from the Hugging Face hub into the cache folder.
#include "hub/download.h"
#include "hub/hub.h"
#include "output.h"
#include "verbs.h"

namespace espalier::app {
namespace {

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

}  // namespace espalier::app
