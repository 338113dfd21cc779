#include "support/command.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <stdexcept>

namespace espalier::test {
namespace {

// The program's streams are files without a name: nobody has to read one pipe while it waits on
// another.
using Stream = std::unique_ptr<std::FILE, decltype(&std::fclose)>;

Stream make_stream() {
  Stream stream(std::tmpfile(), &std::fclose);
  if (!stream) throw std::runtime_error("cannot make a temporary file");
  return stream;
}

std::string content(std::FILE* stream) {
  std::string text;
  std::rewind(stream);
  char buffer[4096];
  while (const std::size_t count = std::fread(buffer, 1, sizeof buffer, stream)) {
    text.append(buffer, count);
  }
  return text;
}

}  // namespace

CommandResult run_command(const std::vector<std::string>& argv, std::string_view input) {
  const Stream in = make_stream();
  const Stream out = make_stream();
  const Stream err = make_stream();
  std::fwrite(input.data(), 1, input.size(), in.get());
  std::rewind(in.get());

  std::vector<char*> arguments;
  for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.data()));
  arguments.push_back(nullptr);

  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("cannot fork");
  if (child == 0) {
    dup2(fileno(in.get()), STDIN_FILENO);
    dup2(fileno(out.get()), STDOUT_FILENO);
    dup2(fileno(err.get()), STDERR_FILENO);
    execv(arguments[0], arguments.data());
    _exit(127);  // as a shell says that there is no such program
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) throw std::runtime_error("cannot wait for " + argv[0]);
  }
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), content(out.get()),
          content(err.get())};
}

}  // namespace espalier::test
