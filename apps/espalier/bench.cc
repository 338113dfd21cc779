// espalier bench: how fast a model, or one operator, runs on this machine, and how far that is from
// what the machine's memory allows.
#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/machine.h"
#include "compute/cpu/cpu_ops.h"
#include "load.h"
#include "measure/bandwidth.h"
#include "measure/bench.h"
#include "output.h"
#include "verbs.h"

namespace espalier::app {
namespace {

struct BenchOptions {
  std::string model;
  std::string op;
  std::string format = "Q4_0";
  std::string shape = "4096x14336";
  std::size_t rows = 1;
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

Result<std::pair<std::uint64_t, std::uint64_t>> parse_shape(const std::string& shape) {
  std::uint64_t outputs = 0;
  std::uint64_t inputs = 0;
  const char* end = shape.data() + shape.size();
  const auto [x, first] = std::from_chars(shape.data(), end, outputs);
  if (first == std::errc() && x != end && *x == 'x') {
    const auto [rest, second] = std::from_chars(x + 1, end, inputs);
    if (second == std::errc() && rest == end) return std::pair(outputs, inputs);
  }
  return input_error("--shape '{}': expected OUTPUTSxINPUTS, as 4096x14336", shape);
}

Status bench_op(const BenchOptions& options) {
  const pack::Format* format = pack::find_format(options.format);
  if (format == nullptr) return input_error("--format '{}': no such format", options.format);
  ESPALIER_TRY(const auto shape, parse_shape(options.shape));
  const std::unique_ptr<compute::Ops> ops = make_backend(options.backend);
  const std::size_t threads = thread_count(options);
  ESPALIER_TRY(const measure::ProjectBench bench,
               measure::bench_project(*ops, threads, *format, shape.first, shape.second,
                                      options.rows, options.bench.repeats));
  const auto bytes = static_cast<double>(bench.bytes);
  const measure::Spread& seconds = bench.seconds;
  const auto in_us = [](double s) { return 1e6 * s; };
  const double work =
      static_cast<double>(options.rows * shape.first) * static_cast<double>(shape.second);
  return print({.subject = fmt::format("project {} {}", options.format, options.shape),
                .threads = threads,
                .weight_bytes = bytes,
                .bandwidth = bench.bandwidth,
                .lines = {{fmt::format("rows {}", options.rows),
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
  verb->add_option("--op", options->op, "One operator instead of a model: project")
      ->check(CLI::IsMember({"project"}));
  verb->add_option("--format", options->format, "The weights' format")->capture_default_str();
  verb->add_option("--shape", options->shape, "Outputs x inputs of the weights")
      ->capture_default_str();
  verb->add_option("--rows", options->rows, "Rows of activations")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  add_backend_options(*verb, options->backend);
  verb->callback([&run, options] { run = [options] { return bench(*options); }; });
}

}  // namespace espalier::app
