// A server on the loopback address that answers as a test tells it to, rightly or wrongly.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace espalier::test {

struct HttpRequest {
  std::string target;                          // "/api/models/a/b"
  std::map<std::string, std::string> headers;  // names in lower case
};

class HttpServer {
 public:
  // `answer` gives the bytes to send, status line and all; the connection ends behind them. It is
  // called by several threads.
  explicit HttpServer(std::function<std::string(const HttpRequest&)> answer);
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  ~HttpServer();

  [[nodiscard]] std::string url() const;  // "http://127.0.0.1:PORT"

 private:
  void serve(int connection);

  std::function<std::string(const HttpRequest&)> answer_;
  int listener_ = -1;
  int port_ = 0;
  std::mutex mutex_;
  std::vector<std::thread> connections_;
  std::thread acceptor_;
};

// An answer with a body and its right length; `headers` are whole lines that end in \r\n.
[[nodiscard]] std::string http_answer(int status, const std::string& body,
                                      const std::string& headers = "");

}  // namespace espalier::test
