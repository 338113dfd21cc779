// libFuzzer target of Hugging Face directories: configurations, the index of shards, and the
// matrices that these and the tensors make together. An input is the directory's files one after
// another with zero bytes between them, in the order of kFiles and absent where empty, and then
// bytes for the tensors' data, over and over. Files of tensors are given as
// {"name": ["I32", [8, 16]], …}, in which any shape is as easy to reach as another.
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <string>

#include "file/container.h"

namespace {

using namespace espalier;
namespace fs = std::filesystem;

constexpr std::uint64_t kMaxDataBytes = 1 << 16;
constexpr auto kFiles = std::to_array<std::string_view>(
    {"config.json", "quantize_config.json", "model.safetensors.index.json", "a.safetensors",
     "b.safetensors", "ngram_embedding.safetensors"});

// A directory of this process, gone with it; in memory where that can be had, which is many times
// faster than on disk.
class Scratch {
 public:
  Scratch() {
    const fs::path memory = "/dev/shm";
    std::string name = (fs::is_directory(memory) ? memory : fs::temp_directory_path()).string();
    name += "/hf_directory_fuzz.XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { fs::remove_all(path_); }

  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// Cuts `text` at its first zero byte and returns what is before.
std::string_view take_part(std::string_view& text) {
  const std::string_view part = text.substr(0, text.find('\0'));
  text.remove_prefix(std::min(text.size(), part.size() + 1));
  return part;
}

// A safetensors file of these tensors; entries that are none are left out.
std::string safetensors_file(std::string_view tensors, std::string_view fill) {
  const auto list = file::parse_json(as_bytes(tensors), "tensors");
  if (!list) return std::string(tensors);
  file::Json header = file::Json::object();
  std::uint64_t offset = 0;
  for (const auto& [name, entry] : list->items()) {
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_array()) {
      continue;
    }
    const auto dtype = file::find_dtype(entry[0].get<std::string>());
    std::vector<std::uint64_t> shape;
    for (const file::Json& dim : entry[1]) {
      if (dim.is_number_unsigned()) shape.push_back(dim.get<std::uint64_t>());
    }
    const auto bytes = dtype ? file::tensor_bytes(*dtype, shape) : std::nullopt;
    if (!bytes || *bytes > kMaxDataBytes - offset) continue;
    header[name] = {
        {"dtype", entry[0]}, {"shape", shape}, {"data_offsets", {offset, offset + *bytes}}};
    offset += *bytes;
  }
  const std::string text = header.dump();
  const std::uint64_t length = text.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof(length));
  file += text;
  for (std::uint64_t i = 0; i < offset; ++i) file += fill.empty() ? '\0' : fill[i % fill.size()];
  return file;
}

// Writes the files of an input, in place of those of the one before.
void write_files(const fs::path& directory, std::string_view input) {
  std::array<std::string_view, kFiles.size()> parts;
  for (std::string_view& part : parts) part = take_part(input);
  for (std::size_t f = 0; f < kFiles.size(); ++f) {
    const fs::path path = directory / kFiles[f];
    fs::remove(path);
    if (parts[f].empty()) continue;
    std::ofstream out(path, std::ios::binary);
    if (kFiles[f].ends_with(".safetensors")) {
      out << safetensors_file(parts[f], input);
    } else {
      out << parts[f];
    }
  }
}

// A message is one line.
template <typename T>
bool usable(const Result<T>& result) {
  if (!result && result.error().message.find('\n') != std::string::npos) std::abort();
  return static_cast<bool>(result);
}

void decode_ends(const pack::Matrix& matrix) {
  std::vector<float> row(matrix.cols);
  pack::decode_rows(matrix, 0, 1, row.data());
  pack::decode_rows(matrix, matrix.rows - 1, 1, row.data());
  pack::dequantize_rows(matrix, matrix.rows - 1, 1, row.data());
  (void)file::without_padding(matrix, 100, 200);
}

void use(const file::HfDirectory& directory, std::string_view module) {
  const auto matrix = directory.find_matrix(module);
  if (usable(matrix) && *matrix) decode_ends(**matrix);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Scratch scratch;
  write_files(scratch.path(), {reinterpret_cast<const char*>(data), size});
  const auto container = file::open_container(scratch.path());
  if (!usable(container)) return 0;
  const auto& directory = std::get<file::HfDirectory>(*container);
  for (const std::string& module : directory.modules()) use(directory, module);
  for (const file::Safetensors& opened : directory.files()) {
    for (const file::SafetensorsTensor& tensor : opened.tensors()) {
      use(directory, tensor.name);
      (void)usable(directory.find_values(tensor.name));
    }
  }
  if (const auto list = file::list_matrices(*container); usable(list)) {
    for (const file::NamedMatrix& tensor : *list) decode_ends(tensor.matrix);
  }
  return 0;
}
