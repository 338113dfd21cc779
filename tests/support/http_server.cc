#include "support/http_server.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <sstream>
#include <stdexcept>

namespace espalier::test {
namespace {

constexpr std::size_t kMaxRequest = 1 << 16;

HttpRequest parse_request(const std::string& text) {
  HttpRequest request;
  std::istringstream lines(text);
  std::string line;
  std::getline(lines, line);
  std::istringstream(line) >> line >> request.target;
  while (std::getline(lines, line) && line.size() > 1) {
    const std::size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    std::string name = line.substr(0, colon);
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    request.headers[name] = line.substr(colon + 2, line.find_last_not_of("\r\n") - colon - 1);
  }
  return request;
}

}  // namespace

HttpServer::HttpServer(std::function<std::string(const HttpRequest&)> answer)
    : answer_(std::move(answer)), listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* any = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener_, any, size) != 0 || ::listen(listener_, 64) != 0 ||
      ::getsockname(listener_, any, &size) != 0) {
    throw std::runtime_error("no port to listen on");
  }
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] {
    for (;;) {
      const int connection = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (connection < 0) return;  // the destructor shut the listener down
      const std::scoped_lock lock(mutex_);
      connections_.emplace_back([this, connection] { serve(connection); });
    }
  });
}

HttpServer::~HttpServer() {
  ::shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  for (std::thread& connection : connections_) connection.join();
  ::close(listener_);
}

std::string HttpServer::url() const { return "http://127.0.0.1:" + std::to_string(port_); }

void HttpServer::serve(int connection) {
  std::string request;
  char buffer[4096];
  while (request.find("\r\n\r\n") == std::string::npos && request.size() < kMaxRequest) {
    const ssize_t count = ::recv(connection, buffer, sizeof(buffer), 0);
    if (count <= 0) break;
    request.append(buffer, static_cast<std::size_t>(count));
  }
  const std::string answer = answer_(parse_request(request));
  for (std::size_t sent = 0; sent < answer.size();) {
    const ssize_t count =
        ::send(connection, answer.data() + sent, answer.size() - sent, MSG_NOSIGNAL);
    if (count <= 0) break;
    sent += static_cast<std::size_t>(count);
  }
  ::shutdown(connection, SHUT_WR);
  while (::recv(connection, buffer, sizeof(buffer), 0) > 0) {
  }
  ::close(connection);
}

std::string http_answer(int status, const std::string& body, const std::string& headers) {
  return "HTTP/1.1 " + std::to_string(status) +
         " Answer\r\nContent-Length: " + std::to_string(body.size()) + "\r\nConnection: close\r\n" +
         headers + "\r\n" + body;
}

}  // namespace espalier::test
