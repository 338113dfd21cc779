// libFuzzer target of the tokenizers. The first byte says what the others are:
//   below 0x80  a text, for one of the pre-tokenizers or SentencePiece with a small vocabulary: it
//               must come back as it was
//   below 0xc0  a vocabulary, as a list of records, and a text for it
//   from 0xc0   a GGUF file with a vocabulary
#include <spdlog/spdlog.h>

#include <cstdlib>

#include "support/vocabularies.h"
#include "text/encoder.h"
#include "text/gguf_pre_tokenizers.h"
#include "text/tokenizer.h"

namespace {

using namespace espalier;
using namespace espalier::text;

void require(bool condition) {
  if (!condition) std::abort();
}

struct SmallEncoder {
  const PreTokenizerSpec* pre = nullptr;  // null for SentencePiece
  std::vector<std::string> pieces;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::unique_ptr<TextEncoder> encoder;

  std::vector<TokenId> encode(std::string_view text) const {
    std::vector<TokenId> ids;
    const std::string prepared = normalize(normalizer, {std::string(text), {}}).text;
    pre_tokenizer.split(prepared, Place::kTextBegin,
                        [&](std::string_view word) { encoder->encode(word, ids); });
    return ids;
  }
};

Result<SmallEncoder> make_encoder(const Vocabulary& vocabulary, const PreTokenizerSpec* pre) {
  SmallEncoder small;
  small.pre = pre;
  const Spelling spelling = pre != nullptr ? pre->spelling : Spelling::kSentencePiece;
  if (spelling == Spelling::kSentencePiece) {
    small.normalizer.push_back(replace(std::string(kSpaceMark), " "));
  }
  if (pre != nullptr && pre->nfc) small.normalizer.push_back(normal_form(NormalForm::kC));
  if (pre != nullptr) {
    ESPALIER_TRY(small.pre_tokenizer, compile(*pre));
  }
  ESPALIER_TRY(small.pieces, token_pieces(vocabulary, spelling));
  ESPALIER_TRY(small.encoder, pre != nullptr
                                  ? byte_pair_encoder(vocabulary, small.pieces,
                                                      {.spelling = spelling,
                                                       .ignore_merges = pre->ignore_merges,
                                                       .newline_tokens = pre->newline_tokens})
                                  : sentence_piece_encoder(vocabulary, small.pieces));
  return small;
}

std::vector<SmallEncoder> make_small_encoders() {
  const test::OwnedVocabulary bytes = test::small_byte_pair_vocabulary();
  const test::OwnedVocabulary words = test::small_sentence_piece_vocabulary();
  std::vector<SmallEncoder> encoders;
  for (const PreTokenizerSpec& pre : pre_tokenizers()) {
    const bool is_bytes = pre.spelling == Spelling::kByteLevel;
    auto encoder = make_encoder((is_bytes ? bytes : words).view(), &pre);
    require(static_cast<bool>(encoder));
    encoders.push_back(std::move(*encoder));
  }
  auto encoder = make_encoder(words.view(), nullptr);
  require(static_cast<bool>(encoder));
  encoders.push_back(std::move(*encoder));
  return encoders;
}

void round_trip(std::size_t index, std::string_view text) {
  static const std::vector<SmallEncoder> encoders = make_small_encoders();
  const SmallEncoder& small = encoders[index % encoders.size()];
  const std::vector<TokenId> ids = small.encode(text);
  std::string decoded;
  for (const TokenId id : ids) decoded += small.pieces.at(static_cast<std::size_t>(id));
  require(decoded == normalize(small.normalizer, {std::string(text), {}}).text);
  const std::string nfc = normalized(NormalForm::kC, text);
  require(normalized(NormalForm::kC, nfc) == nfc);
}

// The bytes up to the next 0xfe, and takes them off.
std::string_view next_field(std::string_view& rest) {
  const std::string_view field = rest.substr(0, rest.find('\xfe'));
  rest.remove_prefix(std::min(rest.size(), field.size() + 1));
  return field;
}

// Fields: a text; then tokens, each with its type in the first byte and a score in the second; a
// first byte of 'm' makes the field a merge.
void hostile_vocabulary(std::size_t index, std::string_view rest) {
  const std::string text(next_field(rest));
  test::OwnedVocabulary vocabulary;
  while (!rest.empty()) {
    const std::string_view field = next_field(rest);
    if (field.starts_with('m')) {
      if (split_merge(field.substr(1))) vocabulary.merges.emplace_back(field.substr(1));
    } else if (field.size() >= 2) {
      vocabulary.add(std::string(field.substr(2)),
                     static_cast<TokenType>(1 + static_cast<unsigned char>(field[0]) % 6),
                     static_cast<signed char>(field[1]));
    }
  }
  if (vocabulary.tokens.empty()) return;
  const auto specs = pre_tokenizers();
  const std::size_t which = index % (specs.size() + 1);
  Vocabulary view = vocabulary.view();
  view.unknown = 0;
  const auto small = make_encoder(view, which < specs.size() ? &specs[which] : nullptr);
  if (!small) return require(!small.error().message.empty());
  for (const TokenId id : small->encode(text)) {
    require(id >= 0 && static_cast<std::size_t>(id) < vocabulary.tokens.size());
    // Only the unknown token may be a control token, which stands for bytes that have none.
    require(id == view.unknown ||
            vocabulary.types[static_cast<std::size_t>(id)] != TokenType::kControl);
  }
}

void gguf_vocabulary(std::string_view bytes) {
  const auto gguf = file::Gguf::parse(as_bytes(bytes), "fuzz.gguf");
  if (!gguf) return;
  const auto tokenizer = tokenizer_from_gguf(*gguf);
  if (!tokenizer) return require(!tokenizer.error().message.empty());
  const std::string_view tail =
      bytes.substr(bytes.size() - std::min<std::size_t>(256, bytes.size()));
  for (const std::string_view text : {std::string_view("the <s>中\xff  12345<tag> x"), tail}) {
    for (const ParseSpecial parse : {ParseSpecial::kNo, ParseSpecial::kYes}) {
      const auto ids = (*tokenizer)->encode(text, AddSpecial::kYes, parse);
      require(static_cast<bool>((*tokenizer)->decode(ids, ControlTokens::kSkip)));
      require(static_cast<bool>((*tokenizer)->detokenize(ids)));
      for (const TokenId id : ids) (void)(*tokenizer)->ends_generation(id);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  spdlog::set_level(spdlog::level::off);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] < 0x80) {
    round_trip(data[0], rest);
  } else if (data[0] < 0xc0) {
    hostile_vocabulary(data[0] - 0x80u, rest);
  } else {
    gguf_vocabulary(rest);
  }
  return 0;
}
