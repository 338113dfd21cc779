// The chat of `espalier run`: one answer, or a conversation.
#pragma once

#include <functional>
#include <string>

#include "base/result.h"
#include "load.h"
#include "run/conversation.h"
#include "run_options.h"

namespace espalier::app {

// Answers options.prompt once.
[[nodiscard]] Status answer_once(const RunOptions& options, const LoadedModel& loaded,
                                 run::Conversation& conversation);

// Answers what a person types at a terminal, or every line of standard input, until it ends.
[[nodiscard]] Status converse(const RunOptions& options, const LoadedModel& loaded,
                              run::Conversation& conversation);

// Calls `use` with each message of standard input: with editing at a terminal, otherwise line by
// line without a word. A line that ends in a backslash goes on in the next one, and """ begins a
// message of several lines that ends with """. Stops when `use` gives false.
[[nodiscard]] Status for_each_message(const std::function<Result<bool>(const std::string&)>& use);

}  // namespace espalier::app
