#include "text/normalizer.h"

#include <cstdint>
#include <optional>

#include "base/bytes.h"
#include "text/utf8.h"

namespace espalier::text {
namespace {

// Calls visit(begin, length, code) for every character; bytes that are none are kept.
template <typename Visit>
void for_each_character(const std::string& text, Rewriter& out, const Visit& visit) {
  for (std::size_t begin = 0; begin < text.size();) {
    const std::string_view rest = std::string_view(text).substr(begin);
    const std::size_t length = utf8_character(rest);
    if (length == 0) {
      out.keep(begin, 1);
    } else {
      visit(begin, length, utf8_code_point(rest, length));
    }
    begin += std::max<std::size_t>(length, 1);
  }
}

// A double array (Aoe 1989) in the form that darts-clone writes it: a unit has a byte as its label,
// the offset of its children relative to its own place, and whether a value is among them.
class CharacterMap {
 public:
  CharacterMap(std::string blob, std::size_t units)
      : blob_(std::move(blob)),
        units_(units),
        texts_(std::string_view(blob_).substr(sizeof(std::uint32_t) * (1 + units))) {}
  CharacterMap(const CharacterMap&) = delete;
  CharacterMap& operator=(const CharacterMap&) = delete;

  // What stands for the shortest beginning of `text` that is in the map.
  [[nodiscard]] std::optional<std::string_view> find(std::string_view text) const {
    std::size_t place = 0;
    std::uint32_t unit = this->unit(place);
    place ^= offset(unit);
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte == 0) break;
      place ^= byte;
      if (place >= units_) break;
      unit = this->unit(place);
      if ((unit & 0x800000ffu) != byte) break;
      place ^= offset(unit);
      if ((unit >> 8 & 1) == 0) continue;
      if (place >= units_) break;
      const std::size_t begin = this->unit(place) & 0x7fffffffu;
      if (begin > texts_.size()) break;
      const std::string_view found = texts_.substr(begin, texts_.find('\0', begin) - begin);
      return found.size() <= kMaxMappedBytes ? std::optional(found) : std::nullopt;
    }
    return std::nullopt;
  }

 private:
  [[nodiscard]] std::uint32_t unit(std::size_t place) const {
    return load<std::uint32_t>(blob_.data() + sizeof(std::uint32_t) * (1 + place));
  }
  static std::size_t offset(std::uint32_t unit) {
    return static_cast<std::size_t>(unit >> 10) << ((unit & (1u << 9)) >> 6);
  }

  std::string blob_;
  std::size_t units_;
  std::string_view texts_;  // of blob_
};

}  // namespace

void for_each_match(const Pattern& pattern, std::string_view text,
                    const std::function<void(std::size_t, std::size_t, bool)>& visit) {
  std::size_t done = 0;
  const auto found = [&](std::size_t begin, std::size_t end) {
    if (done < begin) visit(done, begin - done, false);
    visit(begin, end - begin, true);
    done = end;
  };
  if (const auto* plain = std::get_if<std::string>(&pattern)) {
    for (std::size_t at = 0;
         !plain->empty() && (at = text.find(*plain, done)) != std::string::npos;) {
      found(at, at + plain->size());
    }
  } else {
    const Regex& regex = *std::get<std::shared_ptr<const Regex>>(pattern);
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t length = utf8_run(text.substr(begin));
      if (utf8_character(text.substr(begin)) > 0) {
        RegexSearch search(regex, text.substr(begin, length));
        while (const auto match = search.next()) found(begin + match->begin, begin + match->end);
      }
      begin += length;
    }
  }
  if (done < text.size()) visit(done, text.size() - done, false);
}

NormalizerStep normal_form(NormalForm form) {
  return [form](const std::string& text, Rewriter& out) { normalize(form, text, out); };
}

NormalizerStep lowercase() {
  return [](const std::string& text, Rewriter& out) {
    for_each_character(text, out, [&](std::size_t begin, std::size_t length, char32_t code) {
      out.replace(begin, length, lower_case(code));
    });
  };
}

NormalizerStep prepend(std::string prefix) {
  return [prefix = std::move(prefix)](const std::string& text, Rewriter& out) {
    if (!text.empty()) out.replace(0, 0, prefix);
    out.keep(0, text.size());
  };
}

NormalizerStep replace(Pattern pattern, std::string replacement) {
  return [pattern = std::move(pattern), replacement = std::move(replacement)](
             const std::string& text, Rewriter& out) {
    for_each_match(pattern, text, [&](std::size_t begin, std::size_t length, bool is_match) {
      is_match ? out.replace(begin, length, replacement) : out.keep(begin, length);
    });
  };
}

NormalizerStep strip_accents() {
  return [](const std::string& text, Rewriter& out) {
    for_each_character(text, out, [&](std::size_t begin, std::size_t length, char32_t code) {
      if (!is_mark(code)) out.keep(begin, length);
    });
  };
}

NormalizerStep strip(Side side) {
  return [side](const std::string& text, Rewriter& out) {
    const std::size_t left = side == Side::kLeft ? leading_space(text) : 0;
    const std::size_t right = side == Side::kRight ? trailing_space(text) : 0;
    out.keep(left, text.size() - left - right);
  };
}

Result<NormalizerStep> character_map(std::string blob) {
  if (blob.size() < sizeof(std::uint32_t)) {
    return input_error("it has {} bytes, expected at least 4", blob.size());
  }
  const auto bytes = load<std::uint32_t>(blob.data());
  if (bytes == 0 || bytes % sizeof(std::uint32_t) != 0 ||
      bytes > blob.size() - sizeof(std::uint32_t)) {
    return input_error("its trie has {} bytes, expected a multiple of 4 from 4 to {}", bytes,
                       blob.size() - sizeof(std::uint32_t));
  }
  // Shared, so that the step can be copied as a std::function must be.
  const auto map =
      std::make_shared<const CharacterMap>(std::move(blob), bytes / sizeof(std::uint32_t));
  return NormalizerStep([map](const std::string& text, Rewriter& out) {
    constexpr std::size_t kLongCluster = 6;
    const std::string_view all = text;
    for (std::size_t begin = 0; begin < all.size();) {
      const std::size_t cluster = grapheme_cluster(all.substr(begin));
      if (cluster == 0) {
        out.keep(begin++, 1);
        continue;
      }
      if (cluster < kLongCluster) {
        if (const auto found = map->find(all.substr(begin, cluster))) {
          out.replace(begin, cluster, *found);
          begin += cluster;
          continue;
        }
      }
      for (const std::size_t end = begin + cluster; begin < end;) {
        const std::size_t length = utf8_character(all.substr(begin));
        if (const auto found = map->find(all.substr(begin, length))) {
          out.replace(begin, length, *found);
        } else {
          out.keep(begin, length);
        }
        begin += length;
      }
    }
  });
}

MarkedText normalize(const Normalizer& normalizer, MarkedText text) {
  for (const NormalizerStep& step : normalizer) {
    Rewriter out(text);
    step(text.text, out);
    MarkedText next = out.take();
    text = std::move(next);
  }
  return text;
}

}  // namespace espalier::text
