#include "hub/cache.h"

#include <fnmatch.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "base/printable.h"

namespace espalier::hub {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPartSuffix = ".part";

// A part of a name that becomes a folder.
bool is_safe_part(std::string_view part) {
  return !part.empty() && part.size() <= 128 && part.front() != '.' &&
         std::all_of(part.begin(), part.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
         });
}

bool has_wildcard(std::string_view pattern) {
  return pattern.find_first_of("*?[") != std::string_view::npos;
}

// "name-00002-of-00005.gguf" is part 2 of the model "name"; 0: not a part.
struct SplitName {
  std::string stem;
  int part = 0;
};

SplitName split_name(std::string_view path) {
  constexpr std::string_view kForm = "-00000-of-00000.gguf";
  if (path.size() <= kForm.size()) return {};
  const std::string_view tail = path.substr(path.size() - kForm.size());
  int part = 0;
  for (std::size_t i = 0; i < kForm.size(); ++i) {
    const bool digit = tail[i] >= '0' && tail[i] <= '9';
    if (kForm[i] == '0' ? !digit : tail[i] != kForm[i]) return {};
    if (i < kForm.find("-of-") && digit) part = part * 10 + (tail[i] - '0');
  }
  return {std::string(path.substr(0, path.size() - kForm.size())), part};
}

// The files under a repository's folder by their relative paths.
Result<std::map<std::string, std::uint64_t>> files_under(const fs::path& folder) {
  std::map<std::string, std::uint64_t> files;
  std::error_code error;
  for (auto entry = fs::recursive_directory_iterator(folder, error);
       !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    if (!entry->is_regular_file(error)) continue;
    const std::uint64_t bytes = entry->file_size(error);
    files[entry->path().lexically_relative(folder).string()] = error ? 0 : bytes;
  }
  if (error) return work_error("{}: cannot be read: {}", folder.string(), error.message());
  return files;
}

// The models in one repository's folder.
Result<std::vector<CachedModel>> models_in(const fs::path& folder, const std::string& label) {
  ESPALIER_TRY(const auto files, files_under(folder));
  std::vector<std::string> paths;
  paths.reserve(files.size());
  std::uint64_t all_bytes = 0;
  bool partial = false;
  for (const auto& [path, bytes] : files) {
    paths.push_back(path);
    all_bytes += bytes;
    partial = partial || path.ends_with(kPartSuffix);
  }
  if (files.contains("config.json")) return {{{label, folder, all_bytes, !partial}}};

  std::vector<CachedModel> models;
  const std::vector<GgufSet> sets = gguf_sets(paths);
  for (const GgufSet& set : sets) {
    CachedModel model = {.name = fmt::format("{}:{}", label, set.name), .path = folder / set.name};
    for (const std::string& part : set.parts) model.bytes += files.at(part);
    const SplitName split = split_name(set.name);
    if (split.part != 0) {
      const auto expected =
          static_cast<std::size_t>(std::stoul(set.name.substr(set.name.size() - 10, 5)));
      model.complete = set.parts.size() == expected;
    }
    models.push_back(std::move(model));
  }
  if (models.empty() && partial) models.push_back({label, folder, all_bytes, false});
  return models;
}

std::string listing(const std::vector<CachedModel>& models) {
  std::string names;
  for (const CachedModel& model : models) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", model.name);
  }
  return names;
}

}  // namespace

Result<ModelName> parse_model_name(std::string_view text) {
  const auto wrong = [text] {
    return input_error("model name '{}': expected org/repo[@revision][:pattern]", printable(text));
  };
  ModelName name;
  const std::size_t colon = text.find(':');
  if (colon != std::string_view::npos) {
    name.pattern = text.substr(colon + 1);
    if (name.pattern.empty()) return wrong();
    text = text.substr(0, colon);
  }
  const std::size_t at = text.find('@');
  if (at != std::string_view::npos) {
    name.revision = text.substr(at + 1);
    // Git allows slashes here ("refs/pr/1"), which no folder may have.
    for (std::string_view rest = name.revision;;) {
      const std::size_t slash = rest.find('/');
      if (!is_safe_part(rest.substr(0, slash))) return wrong();
      if (slash == std::string_view::npos) break;
      rest.remove_prefix(slash + 1);
    }
    text = text.substr(0, at);
  }
  const std::size_t slash = text.find('/');
  if (slash == std::string_view::npos || !is_safe_part(text.substr(0, slash)) ||
      !is_safe_part(text.substr(slash + 1))) {
    return wrong();
  }
  name.repository = text;
  return name;
}

std::string repository_label(const ModelName& name) {
  return name.revision == "main" ? name.repository
                                 : fmt::format("{}@{}", name.repository, name.revision);
}

std::string revision_segment(const ModelName& name) {
  std::string segment = name.revision;
  for (std::size_t i = 0; (i = segment.find('/', i)) != std::string::npos;) {
    segment.replace(i, 1, "%2F");
  }
  return segment;
}

bool fits(std::string_view pattern, std::string_view path) {
  if (pattern.empty()) return true;
  const std::string glob(has_wildcard(pattern) ? std::string(pattern)
                                               : fmt::format("*{}*", pattern));
  const std::string whole(path);
  const std::size_t slash = whole.rfind('/');
  const char* last = whole.c_str() + (slash == std::string::npos ? 0 : slash + 1);
  return ::fnmatch(glob.c_str(), whole.c_str(), FNM_CASEFOLD) == 0 ||
         ::fnmatch(glob.c_str(), last, FNM_CASEFOLD) == 0;
}

std::vector<GgufSet> gguf_sets(const std::vector<std::string>& paths) {
  std::map<std::string, GgufSet> sets;  // by stem; a part's stem is no whole file's path
  for (const std::string& path : paths) {
    if (!path.ends_with(".gguf")) continue;
    const SplitName split = split_name(path);
    GgufSet& set = sets[split.part == 0 ? path : split.stem];
    if (set.parts.empty()) set.name = path;
    set.parts.push_back(path);
  }
  std::vector<GgufSet> list;
  list.reserve(sets.size());
  for (auto& [stem, set] : sets) list.push_back(std::move(set));
  return list;
}

Result<fs::path> models_folder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != '\0') return fs::path(cache) / "espalier" / "models";
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home == '\0') {
    return input_error("neither XDG_CACHE_HOME nor HOME is set: no folder for models");
  }
  return fs::path(home) / ".cache" / "espalier" / "models";
}

Result<fs::path> repository_folder(const ModelName& name) {
  ESPALIER_TRY(const fs::path root, models_folder());
  ModelName flat = name;
  flat.revision = revision_segment(name);
  return root / repository_label(flat);
}

Result<std::vector<CachedModel>> list_cached() {
  ESPALIER_TRY(const fs::path root, models_folder());
  std::vector<CachedModel> models;
  std::error_code error;
  if (!fs::is_directory(root, error)) return models;
  for (const auto& org : fs::directory_iterator(root, error)) {
    if (!org.is_directory(error)) continue;
    for (const auto& repository : fs::directory_iterator(org.path(), error)) {
      if (!repository.is_directory(error)) continue;
      std::string label = repository.path().lexically_relative(root).string();
      for (std::size_t i = label.find("%2F"); i != std::string::npos; i = label.find("%2F")) {
        label.replace(i, 3, "/");
      }
      ESPALIER_TRY(std::vector<CachedModel> found, models_in(repository.path(), label));
      std::move(found.begin(), found.end(), std::back_inserter(models));
    }
  }
  if (error) return work_error("{}: cannot be read: {}", root.string(), error.message());
  std::sort(models.begin(), models.end(),
            [](const CachedModel& a, const CachedModel& b) { return a.name < b.name; });
  return models;
}

Result<fs::path> find_model(const std::string& model) {
  std::error_code error;
  if (fs::exists(model, error)) return fs::path(model);
  const Result<ModelName> name = parse_model_name(model);
  if (!name) return fs::path(model);  // whoever opens it says that it is not there

  ESPALIER_TRY(const fs::path folder, repository_folder(*name));
  std::vector<CachedModel> models;
  if (fs::is_directory(folder, error)) {
    ESPALIER_TRY(models, models_in(folder, repository_label(*name)));
  }
  std::erase_if(models, [&name](const CachedModel& candidate) {
    return !fits(name->pattern, candidate.path.filename().string());
  });
  if (models.empty()) {
    return input_error(
        "{}: no such file or directory, and no such model was pulled: `espalier pull {}`", model,
        model);
  }
  if (models.size() > 1) {
    return input_error("{}: several models fit: {}", model, listing(models));
  }
  if (!models.front().complete) {
    return input_error("{}: its download was broken off; `espalier pull {}` goes on with it", model,
                       model);
  }
  return models.front().path;
}

Result<std::uint64_t> remove_cached(const ModelName& name) {
  ESPALIER_TRY(const fs::path folder, repository_folder(name));
  ESPALIER_TRY(const fs::path root, models_folder());
  std::error_code error;
  std::uint64_t freed = 0;
  std::size_t removed = 0;
  if (fs::is_directory(folder, error)) {
    ESPALIER_TRY(const auto files, files_under(folder));
    for (const auto& [path, bytes] : files) {
      if (!fits(name.pattern, path)) continue;
      if (!fs::remove(folder / path, error)) {
        return work_error("{}: cannot be removed: {}", (folder / path).string(), error.message());
      }
      freed += bytes;
      ++removed;
    }
  }
  if (removed == 0) {
    return input_error("{}{}{}: nothing of that name was pulled", repository_label(name),
                       name.pattern.empty() ? "" : ":", name.pattern);
  }
  // Deepest folders first; one that still holds something stays.
  std::vector<fs::path> folders = {folder};
  for (const auto& entry : fs::recursive_directory_iterator(folder, error)) {
    if (entry.is_directory(error)) folders.push_back(entry.path());
  }
  std::sort(folders.rbegin(), folders.rend());
  for (const fs::path& empty : folders) fs::remove(empty, error);
  fs::remove(folder.parent_path(), error);
  return freed;
}

}  // namespace espalier::hub
