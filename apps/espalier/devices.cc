// espalier devices: what this machine has to compute with.
#include "compute/gpu/devices.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "base/machine.h"
#include "base/thread_pool.h"
#include "compute/cpu/cpu_ops.h"
#include "output.h"
#include "verbs.h"

namespace espalier::app {
namespace {

using Json = nlohmann::ordered_json;

struct Processor {
  std::string name = processor_name();
  std::vector<std::string> instruction_sets = cpu::instruction_sets();
  std::size_t threads = ThreadPool(0).threads();  // that this process may use at once
  std::uint64_t memory_bytes = total_memory().value_or(0);
  std::uint64_t free_bytes = available_memory().value_or(0);
};

std::string in_json(const Processor& cpu, const gpu::Devices& gpus) {
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  const auto version = [](int v) { return v == 0 ? Json() : Json(gpu::cuda_version(v)); };
  Json list = Json::array();
  for (const gpu::Device& device : gpus.list) {
    list.push_back({{"index", device.index},
                    {"name", device.name},
                    {"compute_capability", fmt::format("{}.{}", device.major, device.minor)},
                    {"multiprocessors", device.multiprocessors},
                    {"l2_bytes", device.l2_bytes},
                    {"memory_bytes", device.memory_bytes},
                    {"free_bytes", device.free_bytes},
                    {"problem", or_null(device.problem)}});
  }
  const Json json = {{"cpu",
                      {{"name", cpu.name},
                       {"instruction_sets", cpu.instruction_sets},
                       {"threads", cpu.threads},
                       {"memory_bytes", cpu.memory_bytes},
                       {"free_bytes", cpu.free_bytes}}},
                     {"cuda",
                      {{"built", gpus.runtime != 0},
                       {"driver", version(gpus.driver)},
                       {"runtime", version(gpus.runtime)},
                       {"problem", or_null(gpus.problem)}}},
                     {"gpus", list}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string in_table(const Processor& cpu, const gpu::Devices& gpus) {
  std::string text;
  const auto add = [&](const auto&... cells) {
    text += fmt::format("{:6}  {:40}  {:>8}  {:>8}  {}\n", cells...);
  };
  add("device", "name", "memory", "free", "details");
  add("cpu", cpu.name, gpu::gigabytes(cpu.memory_bytes), gpu::gigabytes(cpu.free_bytes),
      fmt::format("{} thread{}; {}", cpu.threads, cpu.threads == 1 ? "" : "s",
                  fmt::join(cpu.instruction_sets, ", ")));
  for (const gpu::Device& device : gpus.list) {
    add(fmt::format("cuda:{}", device.index), device.name, gpu::gigabytes(device.memory_bytes),
        gpu::gigabytes(device.free_bytes),
        !device.problem.empty() ? "cannot be used: " + device.problem
                                : fmt::format("compute capability {}.{}; {} SMs; L2 {:.0f} MB",
                                              device.major, device.minor, device.multiprocessors,
                                              static_cast<double>(device.l2_bytes) / 1e6));
  }
  if (!gpus.problem.empty()) return text + fmt::format("\nno GPUs: {}\n", gpus.problem);
  return text + fmt::format("\nCUDA {}; the driver knows {}\n", gpu::cuda_version(gpus.runtime),
                            gpu::cuda_version(gpus.driver));
}

}  // namespace

void add_devices(CLI::App& app, Verb& run) {
  CLI::App* verb = app.add_subcommand("devices", "List the processor and the GPUs of this machine");
  auto output = std::make_shared<std::string>("table");
  verb->add_option("-o,--output", *output, "How to print: table or json")
      ->check(CLI::IsMember({"table", "json"}))
      ->capture_default_str();
  verb->callback([&run, output] {
    run = [output] {
      const Processor cpu;
      const gpu::Devices gpus = gpu::find_devices();
      return write_stdout(*output == "json" ? in_json(cpu, gpus) : in_table(cpu, gpus));
    };
  });
}

}  // namespace espalier::app
