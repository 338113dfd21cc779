// Runs a program as a user would.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace espalier::test {

struct CommandResult {
  int exit_code = 0;  // of a program that a signal ended: 128 + the signal's number
  std::string out;    // standard output
  std::string err;    // standard error
};

// Runs argv[0], a path, with these arguments and waits for its end. `input` is its standard input.
CommandResult run_command(const std::vector<std::string>& argv, std::string_view input = "");

// The same, but once the program has read all of `input` and waits for more, it gets `signal`; only
// then does its input end.
CommandResult signal_command(const std::vector<std::string>& argv, std::string_view input,
                             int signal);

}  // namespace espalier::test
