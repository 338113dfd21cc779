#include "text/gguf_pre_tokenizers.h"

#include <algorithm>

namespace espalier::text {
namespace {

// The patterns, as the models' publishers give them. Where they are written differently here, the
// matches are the same and the time is linear: possessive repeats where giving back cannot help.

#define CONTRACTION R"re((?i:'s|'t|'re|'ve|'m|'ll|'d))re"
#define SPACES R"re(\s*[\r\n]+|\s+(?!\S)|\s+)re"
#define UPPER R"re([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])re"
#define LOWER R"re([\p{Ll}\p{Lm}\p{Lo}\p{M}])re"
#define ASCII_PUNCTUATION R"re([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~])re"

constexpr std::string_view kGpt2 =
    R"re('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)re";

constexpr std::string_view kDigit = R"re(\p{N})re";
constexpr std::string_view kThreeDigits = R"re(\p{N}{1,3})re";
constexpr std::string_view kNumber = R"re(\p{N}+)re";
constexpr std::string_view kThreeAsciiDigits = "[0-9][0-9][0-9]";
constexpr std::string_view kNewline = R"re([\r\n])re";
constexpr std::string_view kLines = R"re([^\n]+|[\n]+)re";

constexpr std::string_view kLlama3 =
    CONTRACTION R"re(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)re" SPACES;

constexpr std::string_view kLlama3AnyNumber =
    CONTRACTION R"re(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|)re" SPACES;

// Spaces are taken in pieces. After one of them there can be no newline ahead, so that the rest of
// the spaces need not be searched for one again.
constexpr std::string_view kJais2 = CONTRACTION
    R"re(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)re"
    R"re((?<![\p{Z}\t\x{0B}\f\x{85}])\s*[\r\n]+|)re"
    R"re(\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|)re"
    R"re(\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1})re";

constexpr std::string_view kQwen2 =
    CONTRACTION R"re(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)re" SPACES;

constexpr std::string_view kQwen2NoContraction =
    R"re([^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)re" SPACES;

constexpr std::string_view kQwen35 = CONTRACTION
    R"re(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|)re" SPACES;

constexpr std::string_view kBailing =
    R"re('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|)re"
    R"re(\s*[\r\n]|\s+(?!\S)|\s+)re";

constexpr std::string_view kSeedCoder =
    CONTRACTION R"re(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|)re" SPACES;

constexpr std::string_view kExaoneMoe =
    CONTRACTION R"re(|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*+(?: \p{L}\p{M}*+)*+)++|\p{N}|)re"
                R"re( ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+)re";

#define CASED_WORD_THEN(suffix)                                                             \
  R"re([^\r\n\p{L}\p{N}]?)re" UPPER "*" LOWER "+" suffix R"re(|[^\r\n\p{L}\p{N}]?)re" UPPER \
  "+" LOWER "*" suffix "|"

constexpr std::string_view kTekken =
    CASED_WORD_THEN("") R"re(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)re" SPACES;

constexpr std::string_view kO200k =
    CASED_WORD_THEN(CONTRACTION "?") R"re(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)re" SPACES;

constexpr std::string_view kYoutu =
    CASED_WORD_THEN(CONTRACTION "?") R"re(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)re" SPACES;

constexpr std::string_view kYoutuScripts =
    R"re([\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+|)re"
    R"re([\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}\x{FF1A}\x{FF1B}\x{FF0C})re"
    R"re(\x{3001}-\x{303F}\x{FE30}-\x{FE4F}]+|)re"
    R"re([\x{3105}-\x{312F}]+|[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)re";

// As o200k, but Chinese characters are words of their own. PCRE2 has no intersection of classes:
// "upper and not Han" is written as what is left when all else is taken away.
constexpr std::string_view kKimiK2 =
    R"re(\p{sc:Han}+|)re"
    R"re([^\r\n\p{L}\p{N}]?[^\p{Ll}\p{N}\p{P}\p{S}\p{Z}\p{C}\p{sc:Han}]*)re"
    R"re([^\p{Lu}\p{Lt}\p{N}\p{P}\p{S}\p{Z}\p{C}\p{sc:Han}]+)re" CONTRACTION
    R"re(?|[^\r\n\p{L}\p{N}]?[^\p{Ll}\p{N}\p{P}\p{S}\p{Z}\p{C}\p{sc:Han}]+)re"
    R"re([^\p{Lu}\p{Lt}\p{N}\p{P}\p{S}\p{Z}\p{C}\p{sc:Han}]*)re" CONTRACTION
    R"re(?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)re" SPACES;

constexpr std::string_view kDeepSeekCjk =
    R"re([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)re";
constexpr std::string_view kDeepSeek3 = ASCII_PUNCTUATION
    R"re([A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|)re" SPACES;
constexpr std::string_view kSpark = ASCII_PUNCTUATION
    R"re([A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+)re";

constexpr std::string_view kDeepSeekOldCjk =
    R"re([\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+)re";
constexpr std::string_view kDeepSeekLetters =
    R"re(\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF})re"
    R"re(\x{1C4}-\x{293}\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D})re"
    R"re(\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5})re"
    R"re(\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5})re"
    R"re(\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B})re"
    R"re(\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D})re"
    R"re(\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D})re"
    R"re(\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4})re"
    R"re(\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC})re"
    R"re(\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115})re"
    R"re(\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134})re"
    R"re(\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184})re"
    R"re(\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3})re"
    R"re(\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787})re"
    R"re(\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17})re"
    R"re(\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3})re"
    R"re(\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF})re"
    R"re(\x{1E900}-\x{1E943}]+)re";
constexpr std::string_view kDeepSeekPunctuation =
    R"re(\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+)re";
// \s+$, tried only where a run of spaces begins.
constexpr std::string_view kSpacesAtEnd = R"re((?<!\s)\s++\z)re";

constexpr std::string_view kAfmoeScripts =
    R"re([\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{8C48}-\x{FAFF}\x{3040}-\x{309F}\x{30A0}-\x{30FF})re"
    R"re(\x{FF65}-\x{FF9F}\x{2F00}-\x{2FDF}\x{E40}-\x{E7F}\x{E80}-\x{EFF}\x{1780}-\x{17FF})re"
    R"re(\x{1000}-\x{109F}\x{AA60}-\x{AA7F}\x{A9E0}-\x{A9FF}\x{AC00}-\x{D7AF}\x{1100}-\x{11FF}]+)re";

constexpr std::string_view kBloom =
    R"re( ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{964}\x{6D4}\x{60C})]+)re";

// A number that no letter follows, as \d{1,3}(?=(?:\d{3})*\b) finds it piece by piece.
constexpr std::string_view kWholeNumber = R"re((?<!\d)\d++(?![\p{L}\p{M}\p{Pc}]))re";

// Which names mean the same is from llama.cpp's list of them. Models that want normalization form
// C say so in their tokenizer.json.
const std::vector<PreTokenizerSpec>& table() {
  using Cut = SplitStep::Cut;
  static const std::vector<PreTokenizerSpec> specs = {
      {.names = {"default"},
       .steps = {{R"re([\p{P}\$\+<=>\^~\|]+)re"}, {kGpt2}, {kNumber}, {kThreeAsciiDigits}}},
      {.names = {"gpt-2", "phi-2", "jais", "jina-es", "jina-de", "jina-v1-en", "jina-v2-es",
                 "jina-v2-de", "jina-v2-code", "roberta-bpe", "gigachat", "a.x-4.0", "mellum",
                 "exaone4", "trillion", "granite-docling"},
       .steps = {{kGpt2}}},
      {.names = {"mpt", "olmo", "modern-bert"}, .steps = {{kGpt2}}, .nfc = true},
      {.names = {"starcoder", "refact", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"},
       .steps = {{kDigit}, {kGpt2}}},
      {.names = {"command-r"}, .steps = {{kDigit}, {kGpt2}}, .nfc = true},
      {.names = {"falcon"},
       .steps = {{R"re([\p{P}\$\+<=>\^~\|`]+)re"}, {kGpt2}, {kThreeAsciiDigits}}},
      {.names = {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0",
                 "lfm2", "jina-v5-nano"},
       .steps = {{kLlama3}},
       .ignore_merges = true,
       .add_bos = true},
      {.names = {"glm4", "glm5"}, .steps = {{kLlama3}}, .ignore_merges = true},
      {.names = {"dbrx", "smaug-bpe", "chatglm-bpe"}, .steps = {{kLlama3}}},
      {.names = {"minicpm5"}, .steps = {{kThreeDigits}, {kLlama3AnyNumber}}, .ignore_merges = true},
      {.names = {"jais-2"}, .steps = {{kJais2}}},
      {.names = {"qwen2", "deepseek-r1-qwen", "megrez"}, .steps = {{kQwen2}}, .nfc = true},
      {.names = {"stablelm2", "kormo", "f2llmv2", "hunyuan", "grok-2", "solar-open"},
       .steps = {{kQwen2}}},
      {.names = {"qwen35"}, .steps = {{kQwen35}}, .nfc = true},
      {.names = {"ufakzeka"}, .steps = {{kQwen2NoContraction}}},
      {.names = {"laguna"}, .steps = {{kLines}, {kQwen2}}},
      {.names = {"bailingmoe", "bailingmoe2", "llada-moe"}, .steps = {{kBailing}}},
      {.names = {"seed-coder"}, .steps = {{kSeedCoder}}},
      {.names = {"exaone-moe"}, .steps = {{kExaoneMoe}}},
      {.names = {"tekken"}, .steps = {{kTekken}}, .ignore_merges = true, .add_bos = true},
      {.names = {"gpt-4o", "o200k", "llama4", "kanana2", "talkie", "minimax-m2"},
       .steps = {{kO200k}}},
      {.names = {"granite-embed-multi-97m"}, .steps = {{kO200k}}, .ignore_merges = true},
      {.names = {"tiny_aya", "cohere2moe"},
       .steps = {{kWholeNumber, Cut::kThreesFromRight}, {kO200k}}},
      {.names = {"kimi-k2"}, .steps = {{kKimiK2}}},
      {.names = {"youtu"}, .steps = {{kYoutuScripts}, {kYoutu}}, .ignore_merges = true},
      {.names = {"deepseek-llm"},
       .steps = {{kNewline},
                 {kDeepSeekLetters},
                 {kDeepSeekPunctuation},
                 {kSpacesAtEnd},
                 {kDeepSeekOldCjk},
                 {kNumber}}},
      {.names = {"deepseek-coder"},
       .steps =
           {{kNewline}, {R"re(\s?\p{L}+)re"}, {R"re(\s?\p{P}+)re"}, {kDeepSeekOldCjk}, {kDigit}}},
      {.names = {"deepseek-v3", "hunyuan-dense", "hy_v4", "joyai-llm"},
       .steps = {{kThreeDigits}, {kDeepSeekCjk}, {kDeepSeek3}}},
      {.names = {"spark2_5"}, .steps = {{kThreeDigits}, {kDeepSeekCjk}, {kSpark}, {kDigit}}},
      {.names = {"afmoe"},
       .steps = {{kNumber, Cut::kThreesFromRight}, {kAfmoeScripts}, {kDeepSeek3}}},
      {.names = {"superbpe"}, .steps = {{kNumber}, {R"re(\d+)re", Cut::kThreesFromRight}}},
      {.names = {"bloom", "poro-chat", "gpt3-finnish"}, .steps = {{kBloom}}},
      {.names = {"viking"}, .steps = {{kBloom}, {kDigit}}},
      {.names = {"chameleon"},
       .steps = {{"<sentinel:[0-9]++>"},
                 {"IMGIMG[A-I]{1,4}Z"},
                 {R"re([\t\n]|    |  )re"},
                 {kDigit},
                 {R"re([\p{P}!-/:-@\[-`{-~])re"},
                 {kGpt2}},
       .add_bos = true},
      {.names = {"gemma4", "granite-embed-multi-311m"},
       .steps = {{kLines}},
       .newline_tokens = true,
       .spelling = Spelling::kSentencePiece},
      {.names = {"sarvam-moe"}, .steps = {{kLines}}, .spelling = Spelling::kSentencePiece},
  };
  return specs;
}

}  // namespace

std::span<const PreTokenizerSpec> pre_tokenizers() { return table(); }

const PreTokenizerSpec* find_pre_tokenizer(std::string_view name) {
  for (const PreTokenizerSpec& spec : table()) {
    if (std::find(spec.names.begin(), spec.names.end(), name) != spec.names.end()) return &spec;
  }
  return nullptr;
}

Result<PreTokenizer> compile(const PreTokenizerSpec& spec) {
  std::vector<PreTokenizer::Step> steps;
  for (const SplitStep& step : spec.steps) {
    ESPALIER_TRY(Regex regex, Regex::compile(step.pattern));
    auto pattern = std::make_shared<const Regex>(std::move(regex));
    if (step.cut == SplitStep::Cut::kThreesFromRight) {
      steps.emplace_back(CutThrees{std::move(pattern)});
    } else {
      steps.emplace_back(Split{std::move(pattern)});
    }
  }
  return PreTokenizer(std::move(steps));
}

}  // namespace espalier::text
