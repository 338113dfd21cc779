// espalier convert: a model in the other container, its weights unchanged.
#include "convert/convert.h"

#include <spdlog/spdlog.h>

#include <map>

#include "base/interrupt.h"
#include "file/container.h"
#include "load.h"
#include "verbs.h"

namespace espalier::app {
namespace {

struct ConvertOptions {
  std::string input, output;
  std::string target, plain;
  convert::Options options;
};

const std::map<std::string, convert::Target> kTargets = {
    {"gguf", convert::Target::kGguf}, {"safetensors", convert::Target::kSafetensors}};

// Names of the plain types on the command line, and in the table of formats.
const std::map<std::string, std::string> kPlainTypes = {
    {"f32", "F32"}, {"f16", "F16"}, {"bf16", "BF16"}};

Status convert_model(ConvertOptions& chosen) {
  const std::atomic<bool>& stop = interrupted();
  chosen.options.target = kTargets.at(chosen.target);
  if (!chosen.plain.empty()) chosen.options.plain = pack::find_format(kPlainTypes.at(chosen.plain));
  ESPALIER_TRY(const file::Container input, open_model(chosen.input));
  ESPALIER_TRY(const convert::Report report,
               convert::convert(input, chosen.output, chosen.options, stop));
  if (report.unpacked != 0) {
    spdlog::info("{} of {} tensors became {} numbers", report.unpacked, report.tensors,
                 chosen.options.plain->name);
  }
  return {};
}

}  // namespace

void add_convert(CLI::App& app, Verb& run) {
  CLI::App* verb = app.add_subcommand(
      "convert", "Repack a model into the other container without changing its weights");
  auto chosen = std::make_shared<ConvertOptions>();
  verb->add_option("IN", chosen->input, "A GGUF file or a Hugging Face directory")->required();
  verb->add_option("OUT", chosen->output, "What to write; it must not exist")->required();
  verb->add_option("--to", chosen->target,
                   "gguf: one file; safetensors: a directory with MLX's packed formats")
      ->required()
      ->check(CLI::IsMember(kTargets));
  verb->add_option("--unpack", chosen->plain,
                   "Write tensors whose format OUT cannot carry as plain numbers of this type "
                   "(f32, f16 or bf16) instead of refusing")
      ->check(CLI::IsMember(kPlainTypes));
  verb->add_flag_callback(
      "--no-tokenizer", [chosen] { chosen->options.tokenizer = convert::TokenizerPart::kLeaveOut; },
      "Leave the tokenizer out, where OUT cannot express it");
  verb->add_option("--shard-size", chosen->options.shard_bytes,
                   "The most in one safetensors file, such as 5GB")
      ->transform(CLI::AsSizeValue(true))
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 50))
      ->capture_default_str();
  verb->add_option("--threads", chosen->options.threads, "Threads; 0: one per processor")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  verb->callback([&run, chosen] { run = [chosen] { return convert_model(*chosen); }; });
}

}  // namespace espalier::app
