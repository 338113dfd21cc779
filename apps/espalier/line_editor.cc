#include "line_editor.h"

#include <histedit.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdlib>
#include <cwchar>

#include "base/interrupt.h"

namespace espalier::app {
namespace {

constexpr int kHistoryLines = 1000;

// One character for libedit: 1, or 0 at the end of the input, or -1 when Ctrl+C was pressed, for
// which libedit's own function would go on reading.
int read_character(EditLine* /*editor*/, wchar_t* character) {
  std::mbstate_t state = {};
  while (true) {
    pollfd input = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    if (interrupted() || (poll(&input, 1, -1) < 0 && errno == EINTR && interrupted())) return -1;
    char byte = 0;
    const ssize_t count = ::read(STDIN_FILENO, &byte, 1);
    if (count == 0) return 0;
    if (count < 0) {
      if (errno == EINTR) continue;
      return -1;
    }
    const std::size_t length = std::mbrtowc(character, &byte, 1, &state);
    if (length == static_cast<std::size_t>(-2)) continue;  // more bytes to come
    if (length == static_cast<std::size_t>(-1)) {          // not UTF-8: left out
      state = {};
      continue;
    }
    return 1;
  }
}

}  // namespace

struct LineEditor::State {
  EditLine* editor = nullptr;
  History* history = nullptr;
  std::string history_file;
  std::string prompt;
  HistEvent event = {};
};

LineEditor::LineEditor(std::filesystem::path history_file) : state_(std::make_unique<State>()) {
  // Dates and numbers stay those of the C locale.
  if (std::setlocale(LC_CTYPE, "") == nullptr || MB_CUR_MAX == 1) {
    std::setlocale(LC_CTYPE, "C.UTF-8");
  }
  state_->history_file = history_file.string();
  state_->history = history_init();
  history(state_->history, &state_->event, H_SETSIZE, kHistoryLines);
  history(state_->history, &state_->event, H_SETUNIQUE, 1);
  if (!history_file.empty()) {
    std::error_code ignored;
    std::filesystem::create_directories(history_file.parent_path(), ignored);
    history(state_->history, &state_->event, H_LOAD, state_->history_file.c_str());
  }
  state_->editor = el_init("espalier", stdin, stderr, stderr);
  el_set(state_->editor, EL_CLIENTDATA, state_.get());
  el_set(
      state_->editor, EL_PROMPT, +[](EditLine* editor) {
        State* state = nullptr;
        el_get(editor, EL_CLIENTDATA, &state);
        return state->prompt.data();
      });
  el_set(state_->editor, EL_EDITOR, "emacs");
  el_set(state_->editor, EL_HIST, history, state_->history);
  el_set(state_->editor, EL_GETCFN, read_character);
  el_source(state_->editor, nullptr);  // the user's ~/.editrc
}

LineEditor::~LineEditor() {
  el_end(state_->editor);
  history_end(state_->history);
}

std::optional<std::string> LineEditor::read(const std::string& prompt) {
  state_->prompt = prompt;
  int count = 0;
  const char* line = el_gets(state_->editor, &count);
  if (line == nullptr || count <= 0) return std::nullopt;
  std::string text(line, static_cast<std::size_t>(count));
  while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
  if (!text.empty()) {
    history(state_->history, &state_->event, H_ENTER, text.c_str());
    if (!state_->history_file.empty()) {
      history(state_->history, &state_->event, H_SAVE, state_->history_file.c_str());
    }
  }
  return text;
}

std::filesystem::path default_history_file() {
  if (const char* state = std::getenv("XDG_STATE_HOME"); state != nullptr && state[0] == '/') {
    return std::filesystem::path(state) / "espalier" / "history";
  }
  const char* home = std::getenv("HOME");
  if (home == nullptr || home[0] == '\0') return {};
  return std::filesystem::path(home) / ".local" / "state" / "espalier" / "history";
}

}  // namespace espalier::app
