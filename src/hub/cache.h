// Models by name: the folder in which downloaded repositories lie, and what is in it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace espalier::hub {

// "org/repo", "org/repo@revision", either with ":pattern" behind it.
struct ModelName {
  std::string repository;  // "org/repo"
  std::string revision = "main";
  std::string pattern;  // which files; empty: the model itself
};

// Errors: not of that form, or characters that a path could be tricked with.
[[nodiscard]] Result<ModelName> parse_model_name(std::string_view text);

// "org/repo@revision", without "@main".
[[nodiscard]] std::string repository_label(const ModelName& name);

// The revision as one part of a path or URL: the slashes that Git allows in it become %2F.
[[nodiscard]] std::string revision_segment(const ModelName& name);

// Whether the path of a file, or its last part, fits `pattern`: a glob if it has any of *?[, else a
// part of the name; upper and lower case alike. Everything fits the empty pattern.
[[nodiscard]] bool fits(std::string_view pattern, std::string_view path);

// GGUF files that make one model: one file, or all parts of a split one.
struct GgufSet {
  std::string name;                // of the first part
  std::vector<std::string> parts;  // in the order of `paths`
};

// The GGUF models among `paths`, which are sorted.
[[nodiscard]] std::vector<GgufSet> gguf_sets(const std::vector<std::string>& paths);

// $XDG_CACHE_HOME/espalier/models, by default ~/.cache/espalier/models. Error: no HOME either.
[[nodiscard]] Result<std::filesystem::path> models_folder();

// Where the files of a repository lie, or would.
[[nodiscard]] Result<std::filesystem::path> repository_folder(const ModelName& name);

struct CachedModel {
  std::string name;            // as find_model takes it
  std::filesystem::path path;  // a GGUF file or a directory
  std::uint64_t bytes = 0;
  bool complete = true;  // false: a download that was broken off
};

// All models in the cache, sorted by name.
[[nodiscard]] Result<std::vector<CachedModel>> list_cached();

// The path of a model that the user named: a cached model's, or `model` itself where that exists or
// is no model's name. Errors: no such model was pulled; several fit, which are listed.
[[nodiscard]] Result<std::filesystem::path> find_model(const std::string& model);

// Removes the cached files that `name` stands for (all of the repository if it has no pattern) and
// the folders that this leaves empty. Returns how many bytes that frees. Error: nothing fits.
[[nodiscard]] Result<std::uint64_t> remove_cached(const ModelName& name);

}  // namespace espalier::hub
