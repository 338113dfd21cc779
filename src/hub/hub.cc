#include "hub/hub.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "base/printable.h"
#include "file/json.h"
#include "hub/http.h"

namespace espalier::hub {
namespace {

constexpr std::string_view kDefaultEndpoint = "https://huggingface.co";
constexpr std::size_t kMaxListingBytes = 64u << 20;
constexpr std::size_t kMaxFiles = 100000;
constexpr std::uint64_t kMaxFileBytes = 1ull << 44;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// A path that stays within its folder on any file system.
bool is_safe_path(std::string_view path) {
  if (path.empty() || path.size() > 1024 || path.back() == '/') return false;
  const bool plain = std::all_of(path.begin(), path.end(), [](unsigned char c) {
    return c >= ' ' && c != '\\' && c != ':' && c != 0x7f;
  });
  if (!plain) return false;
  for (std::string_view rest = path;;) {
    const std::size_t slash = rest.find('/');
    const std::string_view part = rest.substr(0, slash);
    if (part.empty() || part == "." || part == "..") return false;
    if (slash == std::string_view::npos) return true;
    rest.remove_prefix(slash + 1);
  }
}

bool is_hex(std::string_view text, std::size_t length) {
  return text.size() == length && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// Percent-encodes all but what a path may hold as it is.
std::string url_path(std::string_view path) {
  std::string encoded;
  for (const unsigned char c : path) {
    if (std::isalnum(c) != 0 ||
        std::string_view("-._~/").find(static_cast<char>(c)) != std::string_view::npos) {
      encoded += static_cast<char>(c);
    } else {
      encoded += fmt::format("%{:02X}", c);
    }
  }
  return encoded;
}

Result<RemoteFile> read_sibling(const file::Json& json, const std::string& where) {
  if (!json.is_object()) {
    return input_error("{}: found {}, expected an object", where, file::json_kind(json));
  }
  const file::JsonObject sibling(json, where);
  RemoteFile file;
  ESPALIER_TRY(const auto path, sibling.string("rfilename"));
  if (!path || !is_safe_path(*path)) {
    return input_error("{}: key 'rfilename': '{}' is no path below a folder", where,
                       printable(path.value_or("")));
  }
  file.path = *path;
  ESPALIER_TRY(const auto size, sibling.unsigned_integer("size"));
  if (!size || *size > kMaxFileBytes) {
    return input_error("{}: file '{}': found no size below {} bytes", where, printable(file.path),
                       kMaxFileBytes);
  }
  file.size = *size;
  ESPALIER_TRY(const auto blob, sibling.string("blobId"));
  ESPALIER_TRY(const auto lfs, sibling.object("lfs"));
  if (lfs) {
    ESPALIER_TRY(const auto sha256, lfs->string("sha256"));
    file.sha256 = sha256.value_or("");
  } else {
    file.git_blob = blob.value_or("");
  }
  if (!is_hex(file.sha256, 64) && !is_hex(file.git_blob, 40)) {
    return input_error("{}: file '{}': found no checksum", where, printable(file.path));
  }
  return file;
}

// What a model in safetensors needs: all beside its weights that is text. Weights in other forms
// ("consolidated" ones, ONNX and the like in folders of their own) would only repeat them.
bool belongs_to_directory(const std::string& path) {
  if (path.find('/') != std::string::npos || path.starts_with("consolidated")) return false;
  constexpr std::string_view kEndings[] = {".safetensors", ".json", ".jinja", ".txt", ".model"};
  return std::any_of(std::begin(kEndings), std::end(kEndings),
                     [&path](std::string_view ending) { return path.ends_with(ending); });
}

// The sets to take, or an error that lists them.
Result<std::vector<GgufSet>> choose_sets(std::vector<GgufSet> sets, const ModelName& name) {
  if (sets.size() <= 1 || name.pattern.find_first_of("*?[") != std::string::npos) return sets;
  if (name.pattern.empty()) {
    std::vector<GgufSet> usual;
    for (const GgufSet& set : sets) {
      if (fits("Q4_K_M", set.name)) usual.push_back(set);
    }
    if (usual.size() == 1) return usual;
  }
  std::string names;
  for (const GgufSet& set : sets) names += (names.empty() ? "" : ", ") + printable(set.name);
  return input_error("{}: {} models fit; add a part of one's name behind a colon: {}",
                     repository_label(name), sets.size(), names);
}

}  // namespace

Hub hub_from_environment() {
  Hub hub = {.endpoint = environment("HF_ENDPOINT"), .token = environment("HF_TOKEN")};
  if (hub.endpoint.empty()) hub.endpoint = kDefaultEndpoint;
  while (hub.endpoint.ends_with('/')) hub.endpoint.pop_back();
  if (hub.token.empty()) {
    std::filesystem::path path = environment("HF_TOKEN_PATH");
    if (path.empty()) {
      std::filesystem::path home = environment("HF_HOME");
      if (home.empty()) {
        std::filesystem::path cache = environment("XDG_CACHE_HOME");
        if (cache.empty()) cache = std::filesystem::path(environment("HOME")) / ".cache";
        home = cache / "huggingface";
      }
      path = home / "token";
    }
    std::ifstream(path) >> hub.token;  // nothing where there is no such file
  }
  return hub;
}

Result<RemoteRepository> list_repository(const Hub& hub, const ModelName& name) {
  const std::string url = fmt::format("{}/api/models/{}/revision/{}?blobs=true", hub.endpoint,
                                      name.repository, revision_segment(name));
  ESPALIER_TRY(const std::string body, http_get(url, hub.token, kMaxListingBytes));
  ESPALIER_TRY(const file::Json json, file::parse_json(as_bytes(body), url));
  const file::JsonObject answer(json, url);
  RemoteRepository repository;
  ESPALIER_TRY(const auto commit, answer.string("sha"));
  if (!commit || !is_hex(*commit, 40)) {
    return input_error("{}: key 'sha': found '{}', expected a commit", url,
                       printable(commit.value_or("")));
  }
  repository.commit = *commit;
  const file::Json* siblings = answer.find("siblings");
  if (siblings == nullptr || !siblings->is_array() || siblings->size() > kMaxFiles) {
    return input_error("{}: key 'siblings': expected an array of at most {} files", url, kMaxFiles);
  }
  std::set<std::string> seen;
  for (const file::Json& sibling : *siblings) {
    ESPALIER_TRY(RemoteFile file, read_sibling(sibling, url));
    if (!seen.insert(file.path).second) {
      return input_error("{}: file '{}' is listed twice", url, printable(file.path));
    }
    repository.files.push_back(std::move(file));
  }
  std::sort(repository.files.begin(), repository.files.end(),
            [](const RemoteFile& a, const RemoteFile& b) { return a.path < b.path; });
  return repository;
}

std::string file_url(const Hub& hub, const ModelName& name, const std::string& commit,
                     const std::string& path) {
  return fmt::format("{}/{}/resolve/{}/{}", hub.endpoint, name.repository, commit, url_path(path));
}

Result<std::vector<RemoteFile>> choose_files(const RemoteRepository& repository,
                                             const ModelName& name) {
  std::map<std::string, const RemoteFile*> by_path;
  std::vector<std::string> fitting;
  bool has_config = false;
  bool has_safetensors = false;
  for (const RemoteFile& file : repository.files) {
    by_path[file.path] = &file;
    if (fits(name.pattern, file.path)) fitting.push_back(file.path);
    has_config = has_config || file.path == "config.json";
    has_safetensors =
        has_safetensors || (file.path.ends_with(".safetensors") && belongs_to_directory(file.path));
  }

  std::vector<std::string> chosen;
  if (name.pattern.empty() && has_config && has_safetensors) {
    std::copy_if(fitting.begin(), fitting.end(), std::back_inserter(chosen), belongs_to_directory);
  } else {
    std::vector<GgufSet> sets = gguf_sets(fitting);
    // The eyes of a model that sees are a file of their own.
    if (name.pattern.empty()) {
      std::erase_if(sets, [](const GgufSet& set) { return fits("mmproj", set.name); });
    }
    ESPALIER_TRY(sets, choose_sets(std::move(sets), name));
    for (const GgufSet& set : sets) {
      chosen.insert(chosen.end(), set.parts.begin(), set.parts.end());
    }
    if (chosen.empty() && !name.pattern.empty()) chosen = fitting;
  }
  if (chosen.empty()) {
    return input_error(
        "{}{}{}: none of its {} files {}", repository_label(name), name.pattern.empty() ? "" : ":",
        printable(name.pattern), repository.files.size(),
        name.pattern.empty() ? "is a GGUF, and they are no safetensors model" : "fits");
  }
  std::vector<RemoteFile> files;
  files.reserve(chosen.size());
  for (const std::string& path : chosen) files.push_back(*by_path.at(path));
  return files;
}

}  // namespace espalier::hub
