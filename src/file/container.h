// A model in whichever container it comes, a GGUF file or a Hugging Face directory, and the list of
// what is in it.
#pragma once

#include <filesystem>
#include <string>
#include <variant>
#include <vector>

#include "file/gguf.h"
#include "file/hf_directory.h"

namespace espalier::file {

using Container = std::variant<Gguf, HfDirectory>;

// Opens a GGUF file or, if `path` is a directory, a Hugging Face directory.
[[nodiscard]] Result<Container> open_container(const std::filesystem::path& path);

// The path, for messages.
[[nodiscard]] const std::string& container_name(const Container& container);

// A tensor as users know it: a packed matrix counts as one, whatever parts it is stored in.
struct NamedMatrix {
  std::string name;  // "blk.0.attn_q.weight", "model.layers.0.self_attn.q_proj.weight"
  std::vector<std::uint64_t> shape;  // slowest varying first; the last is matrix.cols
  pack::Matrix matrix;               // [product of the other dimensions, cols]
};

struct Contents {
  std::vector<NamedMatrix> matrices;  // everything that has values, in the container's order
  // A directory's tensors that are in none of these, such as tables of integers.
  std::vector<const SafetensorsTensor*> others;
};

// Everything in the container. Errors: a packed matrix whose parts contradict each other.
[[nodiscard]] Result<Contents> list_contents(const Container& container);

// Its matrices alone.
[[nodiscard]] Result<std::vector<NamedMatrix>> list_matrices(const Container& container);

// Gives the memory of the container's files back to the system, which reads them again when needed.
void release_pages(const Container& container);

// Bytes of a matrix with everything that it keeps beside its codes.
[[nodiscard]] std::uint64_t matrix_bytes(const pack::Matrix& matrix);

}  // namespace espalier::file
