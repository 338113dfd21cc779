#include "compute/cpu/project.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/half.h"
#include "compute/cpu/exl3_kernels.h"
#include "compute/cpu/float_kernels.h"
#include "compute/cpu/panel.h"
#include "pack/exl3.h"

namespace espalier::cpu {
namespace {

using compute::Workspace;

// Weights are read as streams for at most so many rows, with so many inputs (or a block) of one
// stream before it is the next one's turn, and asked for so many bytes ahead in each.
constexpr std::size_t kStreamedRows = 16;
constexpr std::size_t kStreamedInputs = 128;
constexpr std::size_t kAheadBytes = 4608;

// Fewer inputs are coded sooner by one thread than another wakes up.
constexpr std::size_t kSharedInputs = 4096;
static_assert(kSharedInputs % kPanelInputs == 0);

// A product with codes, and how its columns are cut into panels.
struct CodedProduct {
  const Product* product;
  const CodeKernel* kernel;
  std::size_t panel_inputs;
  std::size_t panels;  // of its outputs
};

CodedProduct coded_product(const Product& product, const CodeKernel& kernel, std::size_t lanes) {
  // Panels of equal size, in whole blocks.
  const std::size_t blocks = product.w->cols / kernel.block;
  const std::size_t most_blocks = kPanelInputs / kernel.block;
  const std::size_t parts = (blocks + most_blocks - 1) / most_blocks;
  return {.product = &product,
          .kernel = &kernel,
          .panel_inputs = (blocks + parts - 1) / parts * kernel.block,
          .panels = (product.w->rows + lanes - 1) / lanes};
}

// What one thread needs.
struct Scratch {
  Panel* panel;
  float* sums;  // [kStreams, x.rows, lanes]
};

// sums [x.rows, lanes] to the outputs of a panel.
void write_outputs(const Product& product, std::size_t panel, std::size_t rows, std::size_t lanes,
                   const float* sums) {
  const std::size_t output = panel * lanes;
  const std::size_t outputs = std::min(lanes, product.w->rows - output);
  for (std::size_t r = 0; r < rows; ++r) {
    std::copy_n(sums + r * lanes, outputs, product.y + r * product.w->rows + output);
  }
}

// Panels [begin, end), one after the other.
void multiply_panels(const CodedProduct& coded, std::size_t begin, std::size_t end,
                     const CodedRows& x, const Scratch& scratch) {
  const auto& [product, kernel, panel_inputs, panels] = coded;
  const pack::Matrix& w = *product->w;
  const CodeKernels& kernels = code_kernels();
  const std::size_t lanes = kernels.lanes;
  for (std::size_t panel = begin; panel < end; ++panel) {
    const std::size_t output = panel * lanes;
    std::fill_n(scratch.sums, x.rows * lanes, 0.0f);
    for (std::size_t first = 0; first < w.cols; first += panel_inputs) {
      const std::size_t inputs = std::min(panel_inputs, w.cols - first);
      if (product->arranged != nullptr) {
        const std::size_t row_bytes = w.cols / kernel->block * kernel->block_bytes;
        kernel->unpack_arranged(product->arranged + output * row_bytes, first, inputs,
                                *scratch.panel);
      } else {
        kernel->unpack(w, output, first, inputs, *scratch.panel);
      }
      kernels.multiply(kernel->shape, *scratch.panel, x, first, inputs, scratch.sums);
    }
    write_outputs(*product, panel, x.rows, lanes, scratch.sums);
  }
}

// The same for few rows and arranged weights, where reading the weights takes most of the time.
void stream_panels(const CodedProduct& coded, std::size_t begin, std::size_t end,
                   const CodedRows& x, const Scratch& scratch) {
  const auto& [product, kernel, panel_inputs, panels] = coded;
  const std::size_t lanes = code_kernels().lanes;
  const std::size_t cols = product->w->cols;
  const std::size_t block_bytes = lanes * kernel->block_bytes;
  const std::size_t panel_bytes = cols / kernel->block * block_bytes;
  const std::size_t length = (end - begin + kStreams - 1) / kStreams;  // of a stream, in panels
  const std::size_t step = std::max(kernel->block, kStreamedInputs);

  const std::byte* weights = product->arranged + begin * panel_bytes;
  Ahead ahead = {.at = weights,
                 .end = weights + length * panel_bytes,
                 .last = weights + (end - begin) * panel_bytes,
                 .stride = length * panel_bytes,
                 .bytes = block_bytes / (kernel->block / kCodedGroup)};
  Ahead nothing;
  for (std::size_t asked = 0; asked < kStreams * kAheadBytes; asked += ahead.bytes) ahead.ask();

  for (std::size_t i = 0; i < length; ++i) {
    std::fill_n(scratch.sums, kStreams * x.rows * lanes, 0.0f);
    for (std::size_t first = 0; first < cols; first += step) {
      const std::size_t inputs = std::min(step, cols - first);
      const std::size_t at = first / kernel->block * block_bytes;
      float* sums = scratch.sums;
      for (std::size_t p = begin + i; p < end; p += length, sums += x.rows * lanes) {
        const std::byte* panel = product->arranged + p * panel_bytes;
        for (std::size_t r = 0; r < x.rows;) {
          const std::size_t tile = tile_rows(x.rows, r);
          kernel->multiply_arranged(
              panel + at, inputs / kernel->block,
              x.groups + r * (cols / kCodedGroup) + first / kCodedGroup * tile, tile,
              r == 0 ? ahead : nothing, sums + r * lanes);
          r += tile;
        }
      }
    }
    const float* sums = scratch.sums;
    for (std::size_t p = begin + i; p < end; p += length, sums += x.rows * lanes) {
      write_outputs(*product, p, x.rows, lanes, sums);
    }
  }
}

// Inputs [at, at + count); `scratch` has room for them.
const float* read(const Inputs& inputs, std::size_t at, std::size_t count, float* scratch) {
  if (inputs.gate == nullptr) return inputs.x + at;
  inputs.gate(inputs.x + at, inputs.up + at, count, scratch);
  return scratch;
}

// Codes inputs [rows, cols]. They are gated in parts that stay in the first-level cache.
void encode(ThreadPool& pool, const Inputs& inputs, const CodeShape& shape,
            const CodedRows& coded) {
  const std::size_t cols = coded.inputs;
  const std::size_t shares = (cols + kSharedInputs - 1) / kSharedInputs;  // of a row
  pool.parallel_for(coded.rows * shares, [&](std::size_t begin, std::size_t end, std::size_t) {
    alignas(64) float scratch[kPanelInputs];
    for (std::size_t share = begin; share < end; ++share) {
      const std::size_t r = share / shares;
      const CodedRow row = coded_row(coded, r);
      const std::size_t from = share % shares * kSharedInputs;
      const std::size_t to = std::min(cols, from + kSharedInputs);
      for (std::size_t first = from; first < to; first += kPanelInputs) {
        const std::size_t count = std::min(kPanelInputs, to - first);
        code_kernels().encode(read(inputs, r * cols + first, count, scratch), count, shape,
                              {row.groups + first / kCodedGroup * row.stride, row.stride});
      }
    }
  });
}

// Products whose kernels agree in how activations are coded.
void project_coded(ThreadPool& pool, Workspace& workspace, const Inputs& inputs, std::size_t rows,
                   std::span<const CodedProduct> products) {
  const Workspace::Frame frame(workspace);
  const CodeKernels& kernels = code_kernels();
  const std::size_t cols = products.front().product->w->cols;
  const CodedRows coded_rows = {.groups = workspace.take<CodedGroup>(rows * cols / kCodedGroup),
                                .rows = rows,
                                .inputs = cols};
  encode(pool, inputs, products.front().kernel->shape, coded_rows);

  auto* panels = workspace.take<Panel>(pool.threads());
  const std::size_t sums = kStreams * rows * kernels.lanes;
  auto* all_sums = workspace.take<float>(pool.threads() * sums);
  std::size_t count = 0;
  for (const CodedProduct& product : products) count += product.panels;
  pool.parallel_for(count, [&](std::size_t begin, std::size_t end, std::size_t thread) {
    const Scratch scratch = {.panel = panels + thread, .sums = all_sums + thread * sums};
    std::size_t first = 0;  // panel of a product
    for (const CodedProduct& coded : products) {
      const bool stream = coded.product->arranged != nullptr && rows <= kStreamedRows;
      const std::size_t from = std::max(begin, first);
      const std::size_t to = std::min(end, first + coded.panels);
      if (from < to) {
        (stream ? stream_panels : multiply_panels)(coded, from - first, to - first, coded_rows,
                                                   scratch);
      }
      first += coded.panels;
    }
  });
}

// Decodes rows [first, first + count) of a matrix, as its format's decode_rows does.
using Decode = void (*)(const FloatKernels& kernels, const pack::Matrix& w, std::size_t first,
                        std::size_t count, float* out);

void decode_half(const FloatKernels& kernels, const pack::Matrix& w, std::size_t first,
                 std::size_t count, float* out) {
  kernels.widen_half(w.data.data() + first * w.cols * 2, count * w.cols, out);
}

void decode_bfloat(const FloatKernels& kernels, const pack::Matrix& w, std::size_t first,
                   std::size_t count, float* out) {
  kernels.widen_bfloat(w.data.data() + first * w.cols * 2, count * w.cols, out);
}

void decode_by_definition(const FloatKernels&, const pack::Matrix& w, std::size_t first,
                          std::size_t count, float* out) {
  pack::decode_rows(w, first, count, out);
}

// Tensors of safetensors files lie at any byte; vectors are read as arrays of their element.
template <typename T>
bool is_aligned(const pack::Matrix& w) {
  return reinterpret_cast<std::uintptr_t>(w.data.data()) % alignof(T) == 0;
}

Decode find_decode(const pack::Matrix& w) {
  if (w.format->name == "F16" && is_aligned<std::uint16_t>(w)) return decode_half;
  if (w.format->name == "BF16" && is_aligned<std::uint16_t>(w)) return decode_bfloat;
  return decode_by_definition;
}

// Rows that are decoded at a time and then multiplied with all activations. EXL3 packs 16 together.
constexpr std::size_t kDecodedRows = 16;

void project_float(ThreadPool& pool, Workspace& workspace, const float* x, std::size_t rows,
                   const pack::Matrix& w, float* y) {
  const FloatKernels& kernels = float_kernels();
  const std::size_t tiles = (w.rows + kDecodedRows - 1) / kDecodedRows;
  if (w.format->name == "F32" && is_aligned<float>(w)) {
    const auto* weights = reinterpret_cast<const float*>(w.data.data());
    pool.parallel_for(tiles, [&](std::size_t begin, std::size_t end, std::size_t) {
      for (std::size_t output = begin * kDecodedRows; output < std::min(end * kDecodedRows, w.rows);
           output += kDecodedRows) {
        kernels.multiply(x, rows, weights + output * w.cols,
                         std::min(kDecodedRows, w.rows - output), w.cols, y + output, w.rows);
      }
    });
    return;
  }

  const Workspace::Frame frame(workspace);
  auto* all_decoded = workspace.take<float>(pool.threads() * kDecodedRows * w.cols);
  const Decode decode = find_decode(w);
  pool.parallel_for(tiles, [&](std::size_t begin, std::size_t end, std::size_t thread) {
    float* decoded = all_decoded + thread * kDecodedRows * w.cols;
    for (std::size_t output = begin * kDecodedRows; output < std::min(end * kDecodedRows, w.rows);
         output += kDecodedRows) {
      const std::size_t outputs = std::min(kDecodedRows, w.rows - output);
      decode(kernels, w, output, outputs, decoded);
      kernels.multiply(x, rows, decoded, outputs, w.cols, y + output, w.rows);
    }
  });
}

// EXL3: the decoded matrix lies between two rotations, and has the padded size.
void project_rotated(ThreadPool& pool, Workspace& workspace, const float* x, std::size_t rows,
                     const pack::Matrix& w, float* y) {
  const Workspace::Frame frame(workspace);
  const pack::Matrix inner = pack::exl3_inner(w);
  float* rotated = workspace.floats(rows * inner.cols);
  float* products = workspace.floats(rows * inner.rows);
  pool.parallel_for(rows, [&](std::size_t begin, std::size_t end, std::size_t) {
    for (std::size_t r = begin; r < end; ++r) {
      pack::exl3_rotate_input(w, x + r * w.cols, rotated + r * inner.cols);
    }
  });
  project_float(pool, workspace, rotated, rows, inner, products);
  pool.parallel_for(rows, [&](std::size_t begin, std::size_t end, std::size_t) {
    for (std::size_t r = begin; r < end; ++r) {
      pack::exl3_rotate_output(w, products + r * inner.rows);
      std::copy_n(products + r * inner.rows, w.rows, y + r * w.rows);
    }
  });
}

// EXL3 with kernels of its own: each run of 128 inputs is rotated (and coded) by itself, and so is
// each run of outputs rotated by the thread that computed it.
void project_exl3(ThreadPool& pool, Workspace& workspace, const Inputs& x, std::size_t rows,
                  const Product& product) {
  const Workspace::Frame frame(workspace);
  const pack::Matrix& w = *product.w;
  const Exl3Kernels& kernels = exl3_kernels();
  constexpr std::size_t kRun = pack::kExl3Run;
  const std::size_t inputs = pack::exl3_padded(w.cols);
  const std::size_t outputs = pack::exl3_padded(w.rows);
  const std::size_t runs = inputs / kRun;
  const Exl3Tiles tiles = exl3_tiles(w, product.arranged);
  const bool coded = tiles.codebook == pack::Codebook::kMul1;
  auto* groups = coded ? workspace.take<Exl3Group>(rows * runs) : nullptr;
  float* values = workspace.floats(coded ? pool.threads() * kRun : rows * inputs);
  const auto scale_at = [](Bytes scales, std::size_t i) {
    return half_to_float(load<std::uint16_t>(scales.data() + i * 2));
  };
  pool.parallel_for(rows * runs, [&](std::size_t begin, std::size_t end, std::size_t thread) {
    for (std::size_t i = begin; i < end; ++i) {
      const std::size_t first = i % runs * kRun;
      const std::size_t count = std::min(kRun, w.cols - first);
      float* run = values + (coded ? thread : i) * kRun;
      const float* from = read(x, i / runs * w.cols + first, count, run);
      for (std::size_t c = 0; c < count; ++c) run[c] = from[c] * scale_at(w.input_scale, first + c);
      std::fill(run + count, run + kRun, 0.0f);
      kernels.hadamard(run);
      if (coded) kernels.encode(run, groups[i]);
    }
  });

  const Exl3Rows rotated = {.groups = groups, .values = values, .rows = rows, .inputs = inputs};
  const std::size_t scratch_size = exl3_scratch(rows);
  auto* all_scratch = workspace.take<float>(pool.threads() * scratch_size);
  float* products = workspace.floats(rows * outputs);
  pool.parallel_for(outputs / kRun, [&](std::size_t begin, std::size_t end, std::size_t thread) {
    for (std::size_t first = begin * kRun; first < end * kRun; first += kRun) {
      kernels.multiply(tiles, first, rotated, all_scratch + thread * scratch_size, products + first,
                       outputs);
      const std::size_t count = std::min(kRun, w.rows - first);
      for (std::size_t r = 0; r < rows; ++r) {
        float* run = products + r * outputs + first;
        kernels.hadamard(run);
        for (std::size_t o = 0; o < count; ++o) {
          product.y[r * w.rows + first + o] = run[o] * scale_at(w.output_scale, first + o);
        }
      }
    }
  });
}

// The kernel that multiplies codes with a matrix, if one is to.
const CodeKernel* coded_kernel(const pack::Matrix& w, Activations activations) {
  if (activations != Activations::kCoded || !w.input_scale.empty()) return nullptr;
  // Kernels reach the rows of a panel by 32-bit offsets.
  if (w.data.size() / w.rows > std::numeric_limits<std::int32_t>::max() / kMaxLanes) return nullptr;
  return find_code_kernel(w);
}

// A product of any other kind.
void project_one(ThreadPool& pool, Workspace& workspace, const Inputs& inputs, std::size_t rows,
                 const Product& product, Activations activations) {
  const pack::Matrix& w = *product.w;
  if (activations == Activations::kCoded && has_exl3_kernel(w)) {
    return project_exl3(pool, workspace, inputs, rows, product);
  }
  const float* x = inputs.x;
  if (inputs.gate != nullptr) {
    float* gated = workspace.floats(rows * w.cols);
    pool.parallel_for(rows, [&](std::size_t begin, std::size_t end, std::size_t) {
      read(inputs, begin * w.cols, (end - begin) * w.cols, gated + begin * w.cols);
    });
    x = gated;
  }
  if (w.input_scale.empty()) return project_float(pool, workspace, x, rows, w, product.y);
  project_rotated(pool, workspace, x, rows, w, product.y);
}

}  // namespace

void project(ThreadPool& pool, Workspace& workspace, const Inputs& inputs, std::size_t rows,
             std::span<const Product> products, Activations activations) {
  if (rows == 0) return;
  const Workspace::Frame frame(workspace);
  const std::size_t lanes = code_kernels().lanes;
  auto* together = workspace.take<CodedProduct>(products.size());
  std::size_t count = 0;
  const auto flush = [&] {
    if (count != 0) project_coded(pool, workspace, inputs, rows, {together, count});
    count = 0;
  };
  for (const Product& product : products) {
    if (product.w->rows == 0) continue;
    const CodeKernel* kernel = coded_kernel(*product.w, activations);
    if (kernel == nullptr) {
      project_one(pool, workspace, inputs, rows, product, activations);
      continue;
    }
    if (count != 0 && together->kernel->shape != kernel->shape) flush();
    together[count++] = coded_product(product, *kernel, lanes);
  }
  flush();
}

}  // namespace espalier::cpu
