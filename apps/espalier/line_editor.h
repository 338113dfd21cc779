// Lines from a person at a terminal, with editing and a history that outlives the program.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

namespace espalier::app {

class LineEditor {
 public:
  // Reads standard input and shows what is typed on standard error. The history is kept in
  // `history_file`; where that cannot be read or written, it lasts as long as the program.
  explicit LineEditor(std::filesystem::path history_file);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  // The next line without its end; nothing after Ctrl+D or Ctrl+C.
  [[nodiscard]] std::optional<std::string> read(const std::string& prompt);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// $XDG_STATE_HOME/espalier/history, by default under ~/.local/state. Empty without a home.
[[nodiscard]] std::filesystem::path default_history_file();

}  // namespace espalier::app
