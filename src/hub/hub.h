// The Hugging Face hub, or a server that speaks like it: what a repository holds, and which of its
// files make a model.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "hub/cache.h"

namespace espalier::hub {

struct Hub {
  std::string endpoint;  // without a slash at its end
  std::string token;     // empty: anonymous
};

// From the environment: HF_ENDPOINT, HF_TOKEN or the file HF_TOKEN_PATH (by default where the hub's
// own tools keep it, under HF_HOME).
[[nodiscard]] Hub hub_from_environment();

struct RemoteFile {
  std::string path;  // relative, of safe characters, without ".."
  std::uint64_t size = 0;
  std::string sha256;    // of large files
  std::string git_blob;  // of the others (DigestKind::kGitBlob)
};

struct RemoteRepository {
  std::string commit;  // what the revision stands for now
  std::vector<RemoteFile> files;
};

// What `name` holds. Errors: no such repository, no answer, an answer that is not the hub's or
// that holds a path which would leave the folder.
[[nodiscard]] Result<RemoteRepository> list_repository(const Hub& hub, const ModelName& name);

// The address of one file.
[[nodiscard]] std::string file_url(const Hub& hub, const ModelName& name, const std::string& commit,
                                   const std::string& path);

// The files to fetch. With a pattern, those that fit; GGUF models (with all their parts) only if
// the pattern has wildcards or leaves one of them. Without one, the model: weights as safetensors
// with everything beside them; else the only GGUF model, or that in Q4_K_M. Errors: nothing fits;
// the choice is the user's, from a list.
[[nodiscard]] Result<std::vector<RemoteFile>> choose_files(const RemoteRepository& repository,
                                                           const ModelName& name);

}  // namespace espalier::hub
