// espalier bench: how fast a model, or one operator, runs on this machine, and how far that is from
// what the machine's memory allows.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/machine.h"
#include "compute/cpu/cpu_ops.h"
#include "gpu_bench_report.h"
#include "load.h"
#include "measure/bandwidth.h"
#include "measure/bench.h"
#include "measure/gpu_bench.h"
#include "measure/tuning.h"
#include "output.h"
#include "verbs.h"

namespace espalier::app {
namespace {

struct BenchOptions {
  std::string model;
  std::string op;
  std::string device = "cpu";
  std::vector<std::string> formats;
  std::vector<std::string> shapes;
  std::vector<std::uint64_t> rows = {1};
  std::string kernel;
  bool check = false;
  bool tune = false;
  BackendOptions backend;
  std::string output = "table";
  measure::ModelBenchOptions bench;
};

// One line of the report. Speeds are units a second.
struct Line {
  std::string test;
  std::string unit;
  measure::Spread speed;
  double bytes_per_second;  // of weights; 0 where reading them is not what takes the time
};

struct Report {
  std::string subject;
  std::size_t threads;
  double weight_bytes;  // that one token or product reads
  double bandwidth;     // bytes a second that reading alone reaches
  std::vector<Line> lines;
};

measure::Spread speed(double work, const measure::Spread& seconds) {
  return {
      .median = work / seconds.median, .least = work / seconds.most, .most = work / seconds.least};
}

std::string in_json(const Report& report) {
  nlohmann::ordered_json lines = nlohmann::json::array();
  for (const Line& line : report.lines) {
    nlohmann::ordered_json entry = {{"test", line.test},
                                    {"unit", line.unit},
                                    {"median", line.speed.median},
                                    {"least", line.speed.least},
                                    {"most", line.speed.most}};
    if (line.bytes_per_second != 0) {
      entry["weight_bytes_per_second"] = line.bytes_per_second;
      entry["share_of_bandwidth"] = line.bytes_per_second / report.bandwidth;
    }
    lines.push_back(entry);
  }
  const nlohmann::ordered_json json = {{"subject", report.subject},
                                       {"processor", processor_name()},
                                       {"instructions", cpu::instructions()},
                                       {"threads", report.threads},
                                       {"weight_bytes", report.weight_bytes},
                                       {"read_bandwidth", report.bandwidth},
                                       {"results", lines}};
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string in_text(const Report& report, bool markdown) {
  std::string text =
      fmt::format("{}: {:.1f} MB of weights; {}, {}, {} threads; memory read at {:.1f} GB/s\n\n",
                  report.subject, report.weight_bytes / 1e6, processor_name(), cpu::instructions(),
                  report.threads, report.bandwidth / 1e9);
  const auto* const row =
      markdown ? "| {} | {} | {} | {} | {} |\n" : "{:12} {:>22} {:>24} {:>14} {:>14}\n";
  const auto add = [&](const auto&... cells) { text += fmt::format(fmt::runtime(row), cells...); };
  add("test", "median", "spread", "weights", "of bandwidth");
  if (markdown) text += "| --- | ---: | ---: | ---: | ---: |\n";
  for (const Line& line : report.lines) {
    const bool reads = line.bytes_per_second != 0;
    add(line.test, fmt::format("{:.1f} {}", line.speed.median, line.unit),
        fmt::format("{:.1f} – {:.1f}", line.speed.least, line.speed.most),
        reads ? fmt::format("{:.1f} GB/s", line.bytes_per_second / 1e9) : "–",
        reads ? fmt::format("{:.0f}%", 100 * line.bytes_per_second / report.bandwidth) : "–");
  }
  return text;
}

Status print(const Report& report, const std::string& output) {
  if (output == "json") return write_stdout(in_json(report));
  return write_stdout(in_text(report, output == "md"));
}

std::size_t thread_count(const BenchOptions& options) {
  if (options.backend.name == "reference") return 1;
  return ThreadPool(static_cast<std::size_t>(options.backend.threads)).threads();
}

Status bench_model(const BenchOptions& options) {
  ESPALIER_TRY(LoadedModel loaded, load(options.model));
  const std::unique_ptr<compute::Ops> ops = make_backend(options.backend, loaded);
  ESPALIER_TRY(
      const measure::ModelBench bench,
      measure::bench_model(*loaded.model, *ops, cache_type(options.backend), options.bench));

  Report report = {.subject = options.model,
                   .threads = thread_count(options),
                   .weight_bytes = bench.bytes_per_token,
                   .bandwidth = 0,
                   .lines = {}};
  ThreadPool pool(report.threads);
  const std::vector<std::byte> buffer(static_cast<std::size_t>(bench.bytes_per_token),
                                      std::byte{1});
  report.bandwidth = measure::read_bandwidth(pool, buffer);
  const std::string depth =
      options.bench.depth == 0 ? "" : fmt::format(" @ {}", options.bench.depth);
  if (const std::size_t tokens = options.bench.prompt_tokens; tokens != 0) {
    report.lines.push_back({fmt::format("pp{}{}", tokens, depth), "tokens/s",
                            speed(static_cast<double>(tokens), bench.prefill_seconds), 0});
  }
  if (const std::size_t tokens = options.bench.decode_tokens; tokens != 0) {
    const measure::Spread decode = speed(static_cast<double>(tokens), bench.decode_seconds);
    report.lines.push_back({fmt::format("tg{}{}", tokens, depth), "tokens/s", decode,
                            decode.median * bench.bytes_per_token});
  }
  return print(report, options.output);
}

// As many numbers as `usual` has, with an x between them; of several matrices with a + between
// theirs.
Result<measure::Shape> parse_shape(const std::string& text, const measure::GpuOperator& op) {
  const std::size_t numbers = op.usual.size();
  measure::Shape shape;
  const char* at = text.data();
  const char* end = at + text.size();
  for (;;) {
    std::uint64_t number = 0;
    const auto [rest, read] = std::from_chars(at, end, number);
    if (read != std::errc()) break;
    shape.push_back(number);
    const bool complete = shape.size() % numbers == 0;
    if (shape.size() > numbers && complete && number != shape[numbers - 1]) {
      return input_error("--shape '{}': found matrices of {} and {} inputs, expected the same",
                         text, shape[numbers - 1], number);
    }
    if (rest == end && complete) return shape;
    if (rest == end || *rest != (complete ? '+' : 'x')) break;
    if (shape.size() == op.most_parts * numbers) break;
    at = rest + 1;
  }
  return input_error(
      "--shape '{}': expected {}, as {}{}", text, op.shape, shape_text(op.usual),
      op.most_parts == 1 ? "" : fmt::format(", or up to {} with a + between them", op.most_parts));
}

const measure::GpuOperator& operator_of(const BenchOptions& options) {
  const auto& all = measure::gpu_operators();
  return *std::find_if(all.begin(), all.end(),
                       [&](const measure::GpuOperator& op) { return op.name == options.op; });
}

Result<std::vector<measure::Shape>> parse_shapes(const BenchOptions& options) {
  const measure::GpuOperator& op = operator_of(options);
  std::vector<measure::Shape> shapes;
  for (const std::string& text : options.shapes) {
    ESPALIER_TRY(measure::Shape shape, parse_shape(text, op));
    shapes.push_back(std::move(shape));
  }
  if (shapes.empty()) shapes.push_back(op.usual);
  return shapes;
}

// What takes one matrix at a time.
Status check_single(std::string_view what, const std::vector<measure::Shape>& shapes) {
  for (const measure::Shape& shape : shapes) {
    if (shape.size() > 2) return input_error("{}: expected shapes of one matrix", what);
  }
  return {};
}

// The number in cuda:N, 0 of cuda.
Result<int> parse_device(const std::string& device) {
  constexpr std::string_view kName = "cuda";
  int index = 0;
  if (device == kName) return index;
  if (device.starts_with(kName) && device[kName.size()] == ':') {
    const char* const end = device.data() + device.size();
    const auto [rest, read] = std::from_chars(device.data() + kName.size() + 1, end, index);
    if (read == std::errc() && rest == end) return index;
  }
  return input_error("--device '{}': expected cpu, cuda or cuda:N", device);
}

// Formats as they are asked for; "all" is each that weights can be made in.
Result<std::vector<std::string>> chosen_formats(const BenchOptions& options) {
  const measure::GpuOperator& op = operator_of(options);
  const bool packed = op.name == "project";
  if (!packed && op.formats.empty() && !options.formats.empty()) {
    return input_error("--format: {} has none", op.name);
  }
  std::vector<std::string> names;
  for (const std::string& name : options.formats) {
    if (packed && name == "all") {
      for (const pack::Format& format : pack::formats()) {
        if (measure::can_make_weights(format)) names.emplace_back(format.name);
      }
      continue;
    }
    const bool known = packed ? pack::find_format(name) != nullptr
                              : std::count(op.formats.begin(), op.formats.end(), name) != 0;
    if (!known) return input_error("--format '{}': no such format", name);
    names.push_back(name);
  }
  if (packed && names.empty()) names.emplace_back("Q4_0");
  return names;
}

// Times every kernel of project on what stands for all, or on the formats and shapes that are
// given.
Status tune(const BenchOptions& options) {
  if (options.op != "project" || options.device == "cpu") {
    return input_error("--tune: expected --op project and --device cuda");
  }
  measure::GpuBenchOptions gpu = measure::tuning_options();
  gpu.check = options.check;
  ESPALIER_TRY(gpu.device, parse_device(options.device));
  if (!options.formats.empty()) {
    ESPALIER_TRY(gpu.formats, chosen_formats(options));
  }
  if (!options.shapes.empty()) {
    ESPALIER_TRY(gpu.shapes, parse_shapes(options));
    ESPALIER_CHECK(check_single("--tune", gpu.shapes));
  }
  ESPALIER_TRY(const measure::GpuBench bench, measure::bench_gpu(gpu));
  return write_stdout(measure::tuned_lines(bench.device.name, bench.lines));
}

Status bench_gpu(const BenchOptions& options) {
  if (!options.model.empty()) {
    return input_error("--device {}: models run on the CPU only; --op times operators on GPUs",
                       options.device);
  }
  measure::GpuBenchOptions gpu = {.op = options.op,
                                  .rows = options.rows,
                                  .kernel = options.kernel,
                                  .check = options.check,
                                  .repeats = options.bench.repeats};
  ESPALIER_TRY(gpu.device, parse_device(options.device));
  ESPALIER_TRY(gpu.formats, chosen_formats(options));
  ESPALIER_TRY(gpu.shapes, parse_shapes(options));
  ESPALIER_TRY(const measure::GpuBench bench, measure::bench_gpu(gpu));
  ESPALIER_CHECK(write_stdout(gpu_bench_report(bench, options.output)));
  const auto wrong =
      std::count_if(bench.lines.begin(), bench.lines.end(), [](const measure::GpuLine& line) {
        return line.difference && !(line.difference->found <= line.difference->allowed);
      });
  if (wrong == 0) return {};
  return work_error("{} of {} results are not what the oracle computes", wrong, bench.lines.size());
}

Status bench_op(const BenchOptions& options) {
  if (options.op != "project") {
    return input_error("--op {}: on the CPU there is only project; give --device cuda", options.op);
  }
  ESPALIER_TRY(const auto formats, chosen_formats(options));
  ESPALIER_TRY(const auto shapes, parse_shapes(options));
  ESPALIER_CHECK(check_single("bench: on the CPU", shapes));
  if (formats.size() != 1 || shapes.size() != 1 || options.rows.size() != 1) {
    return input_error("bench: on the CPU one --format, --shape and --rows at a time");
  }
  if (options.check || !options.kernel.empty()) {
    return input_error("bench: --check and --kernel are for GPUs");
  }
  const pack::Format* format = pack::find_format(formats[0]);
  const measure::Shape& shape = shapes[0];
  const std::uint64_t rows = options.rows[0];
  const std::unique_ptr<compute::Ops> ops = make_backend(options.backend);
  const std::size_t threads = thread_count(options);
  ESPALIER_TRY(const measure::ProjectBench bench,
               measure::bench_project(*ops, threads, *format, shape[0], shape[1], rows,
                                      options.bench.repeats));
  const auto bytes = static_cast<double>(bench.bytes);
  const measure::Spread& seconds = bench.seconds;
  const auto in_us = [](double s) { return 1e6 * s; };
  const double work = static_cast<double>(rows * shape[0]) * static_cast<double>(shape[1]);
  return print({.subject = fmt::format("project {} {}", format->name, shape_text(shape)),
                .threads = threads,
                .weight_bytes = bytes,
                .bandwidth = bench.bandwidth,
                .lines = {{fmt::format("rows {}", rows),
                           "µs",
                           {in_us(seconds.median), in_us(seconds.least), in_us(seconds.most)},
                           bytes / seconds.median},
                          {"floor", "µs", {in_us(bytes / bench.bandwidth), 0, 0}, 0},
                          {"multiply-adds", "G/s", speed(work / 1e9, seconds), 0}}},
               options.output);
}

Status bench(const BenchOptions& options) {
  if (options.op.empty() == options.model.empty()) {
    return input_error("bench: give either --model or --op");
  }
  if (options.tune) return tune(options);
  if (options.device != "cpu") return bench_gpu(options);
  return options.op.empty() ? bench_model(options) : bench_op(options);
}

}  // namespace

void add_bench(CLI::App& app, Verb& run) {
  CLI::App* verb = app.add_subcommand("bench", "Measure speed, against what memory allows");
  auto options = std::make_shared<BenchOptions>();
  const auto tokens = CLI::Range(std::size_t{0}, std::size_t{1} << 24);
  verb->add_option("-m,--model", options->model, "Model file or directory");
  verb->add_option("-p,--prompt-tokens", options->bench.prompt_tokens, "Tokens of prefill")
      ->check(tokens)
      ->capture_default_str();
  verb->add_option("-n,--tokens", options->bench.decode_tokens, "Tokens to decode")
      ->check(tokens)
      ->capture_default_str();
  verb->add_option("-d,--depth", options->bench.depth, "Tokens that are in the cache before")
      ->check(tokens)
      ->capture_default_str();
  verb->add_option("-r,--repeats", options->bench.repeats, "How often to measure")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  verb->add_option("-o,--output", options->output, "How to print: table, json or md")
      ->check(CLI::IsMember({"table", "json", "md"}))
      ->capture_default_str();
  std::vector<std::string> names;
  for (const measure::GpuOperator& op : measure::gpu_operators()) names.emplace_back(op.name);
  verb->add_option("--op", options->op, "One operator instead of a model; on the CPU: project")
      ->check(CLI::IsMember(names));
  verb->add_option("--device", options->device, "Where an operator runs: cpu, cuda or cuda:N")
      ->capture_default_str();
  verb->add_option("--format", options->formats,
                   "The weights' format (Q4_0); on GPUs several, with commas, or all")
      ->delimiter(',');
  verb->add_option(
          "--shape", options->shapes,
          "Sizes: of project, outputs x inputs (4096x14336); on GPUs several, and with a + "
          "between them matrices that multiply the same rows")
      ->delimiter(',');
  verb->add_option("--rows", options->rows, "Rows of activations; on GPUs several")
      ->delimiter(',')
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  verb->add_option("--kernel", options->kernel,
                   "Of project on GPUs: portable, or the name of another (the fastest)");
  verb->add_flag("--check", options->check, "On GPUs: compare results with the oracle's");
  verb->add_flag(
      "--tune", options->tune,
      "Time every kernel of project on a GPU and print src/compute/gpu/tuned_kernels.inc");
  add_backend_options(*verb, options->backend);
  verb->callback([&run, options] { run = [options] { return bench(*options); }; });
}

}  // namespace espalier::app
