// Errors as values. Every function that can fail on account of a file, a request or the machine
// returns Result<T>; the message says which file, which key or tensor, what was found and what was
// expected, in one line.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <variant>

namespace espalier {

// Whose fault it is. The command line turns it into the exit code.
enum class ErrorKind {
  kWork = 1,   // the work failed: a disk full, a write refused, no memory
  kInput = 2,  // a file, a request or the command line is wrong
};

struct Error {
  ErrorKind kind = ErrorKind::kInput;
  std::string message;
};

// Error that the input is to blame for, with an fmt format.
template <typename... Args>
[[nodiscard]] Error input_error(fmt::format_string<Args...> format, Args&&... args) {
  return {ErrorKind::kInput, fmt::format(format, std::forward<Args>(args)...)};
}

// Error of the work itself, with an fmt format.
template <typename... Args>
[[nodiscard]] Error work_error(fmt::format_string<Args...> format, Args&&... args) {
  return {ErrorKind::kWork, fmt::format(format, std::forward<Args>(args)...)};
}

// A value or an Error. Like std::expected of C++23, cut down to what is used.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT: implicit
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT: implicit

  explicit operator bool() const { return state_.index() == 0; }
  T& operator*() & { return std::get<0>(state_); }
  const T& operator*() const& { return std::get<0>(state_); }
  T&& operator*() && { return std::get<0>(std::move(state_)); }
  T* operator->() { return &std::get<0>(state_); }
  const T* operator->() const { return &std::get<0>(state_); }
  Error& error() { return std::get<1>(state_); }
  const Error& error() const { return std::get<1>(state_); }

 private:
  std::variant<T, Error> state_;
};

// Success without a value, or an Error.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)), ok_(false) {}  // NOLINT: implicit

  explicit operator bool() const { return ok_; }
  Error& error() { return error_; }
  const Error& error() const { return error_; }

 private:
  Error error_;
  bool ok_ = true;
};

using Status = Result<void>;

}  // namespace espalier

#define ESPALIER_CONCAT_INNER(a, b) a##b
#define ESPALIER_CONCAT(a, b) ESPALIER_CONCAT_INNER(a, b)

// ESPALIER_TRY(auto x, f()): declares x as the value of f(), or returns f()'s error to the caller.
#define ESPALIER_TRY(declaration, ...) \
  ESPALIER_TRY_INNER(ESPALIER_CONCAT(try_, __LINE__), declaration, __VA_ARGS__)
#define ESPALIER_TRY_INNER(name, declaration, ...) \
  auto name = (__VA_ARGS__);                       \
  if (!(name)) return std::move((name).error());   \
  declaration = std::move(*(name))

// ESPALIER_CHECK(f()): returns f()'s error to the caller, if it has one.
#define ESPALIER_CHECK(...)                                                     \
  do {                                                                          \
    if (auto status = (__VA_ARGS__); !status) return std::move(status.error()); \
  } while (false)
