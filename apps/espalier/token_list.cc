#include "token_list.h"

#include <charconv>

namespace espalier::app {

Result<std::vector<std::int32_t>> parse_token_list(std::string_view list,
                                                   const std::string& where) {
  constexpr std::string_view kSeparators = ", \t\r\n";
  std::vector<std::int32_t> tokens;
  while (true) {
    list.remove_prefix(std::min(list.find_first_not_of(kSeparators), list.size()));
    if (list.empty()) return tokens;
    const std::string_view word = list.substr(0, list.find_first_of(kSeparators));
    std::int32_t token = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), token);
    if (error != std::errc() || end != word.data() + word.size()) {
      return input_error("{}: found '{}', expected a token id", where, word.substr(0, 40));
    }
    tokens.push_back(token);
    list.remove_prefix(word.size());
  }
}

}  // namespace espalier::app
