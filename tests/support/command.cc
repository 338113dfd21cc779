#include "support/command.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
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

// A program under way.
struct Child {
  pid_t id;
  Stream out, err;
};

Child start(const std::vector<std::string>& argv, int input) {
  Child child = {.id = 0, .out = make_stream(), .err = make_stream()};
  std::vector<char*> arguments;
  for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.data()));
  arguments.push_back(nullptr);
  child.id = fork();
  if (child.id < 0) throw std::runtime_error("cannot fork");
  if (child.id == 0) {
    dup2(input, STDIN_FILENO);
    dup2(fileno(child.out.get()), STDOUT_FILENO);
    dup2(fileno(child.err.get()), STDERR_FILENO);
    execv(arguments[0], arguments.data());
    _exit(127);  // as a shell says that there is no such program
  }
  return child;
}

CommandResult finish(const Child& child) {
  int status = 0;
  while (waitpid(child.id, &status, 0) < 0) {
    if (errno != EINTR) throw std::runtime_error("cannot wait for a program");
  }
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
          content(child.out.get()), content(child.err.get())};
}

bool has_ended(const Child& child) {
  siginfo_t info = {};
  return waitid(P_PID, static_cast<id_t>(child.id), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid != 0;
}

}  // namespace

CommandResult run_command(const std::vector<std::string>& argv, std::string_view input) {
  const Stream in = make_stream();
  std::fwrite(input.data(), 1, input.size(), in.get());
  std::rewind(in.get());
  return finish(start(argv, fileno(in.get())));
}

CommandResult signal_command(const std::vector<std::string>& argv, std::string_view input,
                             int signal) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("cannot make a pipe");
  const Stream reading(fdopen(ends[0], "r"), &std::fclose);
  Stream writing(fdopen(ends[1], "w"), &std::fclose);
  std::fwrite(input.data(), 1, input.size(), writing.get());
  std::fflush(writing.get());
  const Child child = start(argv, fileno(reading.get()));
  int unread = 1;
  while (unread != 0 && !has_ended(child)) {
    if (ioctl(fileno(reading.get()), FIONREAD, &unread) != 0) {
      throw std::runtime_error("cannot tell what was read of a pipe");
    }
    if (unread != 0) usleep(1000);
  }
  kill(child.id, signal);
  writing.reset();
  return finish(child);
}

}  // namespace espalier::test
