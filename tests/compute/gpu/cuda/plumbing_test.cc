// Memory, streams, graphs and launches on a real GPU: what comes back is what was sent, and what
// cannot be is an error that says so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <random>

#include "base/mapped_file.h"
#include "compute/gpu/cuda/device.h"
#include "compute/gpu/cuda/project.h"
#include "compute/reference/reference.h"
#include "pack/exl3.h"

namespace espalier::gpu::cuda {
namespace {

using testing::HasSubstr;

template <typename T>
std::string error(const Result<T>& result) {
  return result ? "no error" : result.error().message;
}

class CudaPlumbing : public testing::Test {
 protected:
  void SetUp() override {
    const auto device = use_device(0);
    ASSERT_TRUE(device) << device.error().message;
    stream_.emplace(*Stream::create());
  }

  std::vector<float> normals(std::size_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    for (float& value : values) value = normal(random_);
    return values;
  }
  std::vector<std::byte> bytes(std::size_t count) {
    std::vector<std::byte> values(count);
    for (std::byte& value : values) value = static_cast<std::byte>(random_());
    return values;
  }
  DeviceMemory on_device(const std::vector<float>& values) {
    DeviceMemory memory = *DeviceMemory::allocate(values.size() * sizeof(float), "values");
    EXPECT_TRUE(copy_to_device(*stream_, std::as_bytes(std::span(values)), memory.at<void>()));
    return memory;
  }
  std::vector<float> floats(const DeviceMemory& memory) {
    std::vector<float> values(memory.size() / sizeof(float));
    EXPECT_TRUE(
        copy_to_host(*stream_, memory.at<void>(), std::as_writable_bytes(std::span(values))));
    return values;
  }

  std::mt19937 random_{11};
  std::optional<Stream> stream_;
};

TEST_F(CudaPlumbing, SaysWhichDevicesThereAre) {
  const Devices devices = find_devices();
  ASSERT_FALSE(devices.list.empty()) << devices.problem;
  for (const Device& device : devices.list) {
    EXPECT_THAT(device.name, testing::Not(testing::IsEmpty()));
    EXPECT_GT(device.multiprocessors, 0);
    EXPECT_GT(device.l2_bytes, 0u);
    EXPECT_GT(device.free_bytes, 0u);
    EXPECT_LE(device.free_bytes, device.memory_bytes);
  }
  const std::size_t count = devices.list.size();
  EXPECT_EQ(
      error(use_device(static_cast<int>(count))),
      fmt::format("GPU {}: found {} GPU{}, numbered from 0", count, count, count == 1 ? "" : "s"));
  EXPECT_THAT(error(use_device(-1)), HasSubstr("GPU -1: found"));
}

TEST_F(CudaPlumbing, UploadsWhatDoesNotFillPieces) {
  constexpr std::size_t kPiece = 4096;
  auto uploader = Uploader::create(kPiece);
  ASSERT_TRUE(uploader) << error(uploader);
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, kPiece - 1, kPiece, kPiece + 1, 7 * kPiece + 13}) {
    auto from = bytes(size);
    const auto sent = from;
    const DeviceMemory memory = *DeviceMemory::allocate(size + 1, "bytes");
    ASSERT_TRUE(fill(uploader->stream(), memory.at<void>(), size + 1, 0xa5));
    ASSERT_TRUE(uploader->upload(from, memory.at<void>()));
    std::fill(from.begin(), from.end(), std::byte{0});  // it was read already
    ASSERT_TRUE(uploader->finish());
    std::vector<std::byte> back(size + 1);
    ASSERT_TRUE(copy_to_host(*stream_, memory.at<void>(), back));
    EXPECT_TRUE(std::equal(sent.begin(), sent.end(), back.begin())) << size;
    EXPECT_EQ(back[size], std::byte{0xa5}) << "beyond the end of " << size;
  }
}

TEST_F(CudaPlumbing, UploadsStraightFromMappedFiles) {
  const auto content = bytes(100001);
  const std::string path = testing::TempDir() + "espalier_mapped";
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(content.data()), std::ssize(content));
  auto uploader = Uploader::create(4096);
  ASSERT_TRUE(uploader) << error(uploader);
  const DeviceMemory memory = *DeviceMemory::allocate(content.size(), "the file");
  {
    const auto file = MappedFile::open(path);
    ASSERT_TRUE(file) << error(file);
    ASSERT_TRUE(uploader->upload(file->bytes(), memory.at<void>()));
  }  // and the file is mapped no more
  std::remove(path.c_str());
  ASSERT_TRUE(uploader->finish());
  std::vector<std::byte> back(content.size());
  ASSERT_TRUE(copy_to_host(*stream_, memory.at<void>(), back));
  EXPECT_EQ(back, content);
}

TEST_F(CudaPlumbing, SaysHowMuchMemoryThereIsWhereItIsTooLittle) {
  const auto memory = DeviceMemory::allocate(std::size_t{1} << 50, "the weights");
  EXPECT_THAT(error(memory), testing::ContainsRegex(
                                 "^taking 1125899906842624 bytes of GPU memory for the weights, "
                                 "where [0-9.]+ GB of [0-9.]+ GB are free: CUDA says: out of "
                                 "memory \\(cudaErrorMemoryAllocation\\)$"));
  EXPECT_TRUE(DeviceMemory::allocate(1000, "less")) << "the error is over";
}

TEST_F(CudaPlumbing, RefusesLaunchesThatCannotBe) {
  EXPECT_EQ(error(find_kernel("no_such")), "no_such: there is no GPU kernel of that name");
  const KernelEntry& add = **find_kernel("add");
  const UnaryArguments args = {};
  EXPECT_EQ(error(enqueue(*stream_, add, {0, 1, 32}, args)),
            "add: 0 × 1 blocks of 32 threads are no grid that GPUs take");
  EXPECT_THAT(error(enqueue(*stream_, add, {1, 65536, 32}, args)), HasSubstr("no grid"));
  EXPECT_THAT(error(enqueue(*stream_, add, {1, 1, 2048}, args)), HasSubstr("no grid"));
  EXPECT_THAT(error(enqueue(*stream_, add, {1, 1, 48}, args)), HasSubstr("no grid"));
  EXPECT_THAT(error(enqueue(*stream_, add, {1, 1, 32}, RopeArguments{})),
              HasSubstr("bytes of arguments, expected"));
  EXPECT_TRUE(stream_->wait()) << "nothing was launched";
}

// y += x three times, after y = rms_norm(y).
TEST_F(CudaPlumbing, GraphsRepeatWhatLaunchesDo) {
  const std::uint32_t width = 1000;
  const auto x = normals(width);
  const auto y = normals(width);
  const DeviceMemory x_device = on_device(x);
  const DeviceMemory y_device = on_device(y);
  const auto work = [&]() -> Status {
    ESPALIER_CHECK(enqueue(*stream_, **find_kernel("rms_norm"), *row_grid("rms_norm", 1, width),
                           RmsNormArguments{y_device.at<float>(), x_device.at<float>(),
                                            y_device.at<float>(), width, 1e-5f}));
    for (int i = 0; i < 3; ++i) {
      ESPALIER_CHECK(enqueue(*stream_, **find_kernel("add"), *element_grid("add", width),
                             UnaryArguments{x_device.at<float>(), y_device.at<float>(), width, 0}));
    }
    return {};
  };
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(work());
  const auto direct = floats(y_device);
  EXPECT_NE(direct, y);

  const auto graph = Graph::capture(*stream_, work);
  ASSERT_TRUE(graph) << error(graph);
  EXPECT_EQ(floats(y_device), direct) << "recording runs nothing";
  ASSERT_TRUE(copy_to_device(*stream_, std::as_bytes(std::span(y)), y_device.at<void>()));
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(graph->replay(*stream_));
  EXPECT_EQ(floats(y_device), direct);
}

TEST_F(CudaPlumbing, AStreamSurvivesWorkThatCannotBeRecorded) {
  const auto graph = Graph::capture(*stream_, [] { return work_error("not today"); });
  EXPECT_EQ(error(graph), "not today");
  EXPECT_FALSE(Graph::capture(*stream_, [this] { return stream_->wait(); }))
      << "nothing to wait for";
  const auto x = normals(10);
  EXPECT_EQ(floats(on_device(x)), x);
}

TEST_F(CudaPlumbing, EventsTellTheTimeBetweenThem) {
  Event begin = *Event::create();
  Event end = *Event::create();
  const DeviceMemory memory = *DeviceMemory::allocate(std::size_t{64} << 20, "bytes");
  ASSERT_TRUE(begin.record(*stream_));
  ASSERT_TRUE(fill(*stream_, memory.at<void>(), memory.size(), 1));
  ASSERT_TRUE(end.record(*stream_));
  ASSERT_TRUE(end.wait());
  const auto seconds = Event::seconds_between(begin, end);
  ASSERT_TRUE(seconds) << error(seconds);
  EXPECT_GT(*seconds, 0);
}

// After such a fault a process can use CUDA no more, and so it is another one.
TEST(CudaDeathTest, FaultsOfKernelsAreErrorsOfTheStream) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto fault = [] {
    ASSERT_TRUE(use_device(0));
    Stream stream = *Stream::create();
    const UnaryArguments args = {.x = nullptr, .y = nullptr, .count = 1};
    ASSERT_TRUE(enqueue(stream, **find_kernel("add"), {1, 1, 32}, args));
    std::cerr << error(stream.wait());
    std::_Exit(3);
  };
  EXPECT_EXIT(fault(), testing::ExitedWithCode(3),
              "^waiting for the GPU's work: CUDA says: an illegal memory access was encountered "
              "\\(cudaErrorIllegalAddress\\)");
}

// A packed matrix, uploaded in small pieces, times rows, against the definition of the product.
TEST_F(CudaPlumbing, MultipliesByPackedMatrices) {
  const std::size_t rows = 3;
  const std::uint64_t outputs = 40;
  const std::uint64_t inputs = 160;
  auto uploader = Uploader::create(1000);
  ASSERT_TRUE(uploader) << error(uploader);
  const pack::Format& blocks = *pack::find_format("Q5_1");
  const auto packed = blocks.encode(blocks, normals(outputs * inputs), outputs, inputs);
  const pack::Format& trellis = *pack::find_format("EXL3-MUL1-4");
  const auto tiles = bytes(128 * 256 / 256 * trellis.block_bytes);
  const std::vector<std::byte> scales(256 * 2, std::byte{0x2c});  // 2⁻⁴ and a bit
  const pack::Matrix matrices[] = {packed->view,
                                   *pack::exl3_matrix(trellis, outputs, inputs, tiles, scales,
                                                      std::span(scales).first(128 * 2))};
  for (const pack::Matrix& matrix : matrices) {
    const auto device = DeviceMatrix::upload(*uploader, matrix, "the matrix");
    ASSERT_TRUE(device) << error(device);
    ASSERT_TRUE(uploader->finish());
    const auto kernel = choose_project_kernel(*device, rows, "portable");
    ASSERT_TRUE(kernel) << error(kernel);
    const auto x = normals(rows * inputs);
    const auto bias = normals(outputs);
    const DeviceMemory x_device = on_device(x);
    const DeviceMemory bias_device = on_device(bias);
    const DeviceMemory y = *DeviceMemory::allocate(rows * outputs * sizeof(float), "y");
    const Part part = {.weights = &*device, .bias = bias_device.at<float>(), .y = y.at<float>()};
    const DeviceMemory workspace =
        *DeviceMemory::allocate(workspace_bytes(**kernel, {&part, 1}, rows), "workspace");
    const Status added = project(*stream_, **kernel,
                                 {.parts = {&part, 1},
                                  .x = x_device.at<float>(),
                                  .rows = rows,
                                  .workspace = workspace.at<void>()});
    ASSERT_TRUE(added) << error(added);
    std::vector<float> expected(rows * outputs);
    reference::project(rows, x.data(), matrix, expected.data());
    const auto found = floats(y);
    for (std::size_t i = 0; i < found.size(); ++i) {
      ASSERT_NEAR(found[i], expected[i] + bias[i % outputs], 1e-4) << matrix.format->name << i;
    }
    EXPECT_EQ(error(choose_project_kernel(*device, 0)),
              fmt::format("project: found no kernel for 0 rows of 160 to 40 features in {}",
                          matrix.format->name));
    EXPECT_THAT(error(choose_project_kernel(*device, 1000000)), HasSubstr("for 1000000 rows"));
    EXPECT_THAT(error(choose_project_kernel(*device, 1, "no-such")),
                HasSubstr("found no no-such kernel"));
  }
}

}  // namespace
}  // namespace espalier::gpu::cuda
