// Token ids as users write them: "1,2,3", or numbers in a file with commas or white space between.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace espalier::app {

// `where` names the list in messages: "--tokens", or a file.
[[nodiscard]] Result<std::vector<std::int32_t>> parse_token_list(std::string_view list,
                                                                 const std::string& where);

}  // namespace espalier::app
