// The little HTTP that fetching models takes, on libcurl.
#pragma once

#include <curl/curl.h>

#include <memory>
#include <string>

#include "base/result.h"

namespace espalier::hub {

struct EasyDeleter {
  void operator()(CURL* handle) const { curl_easy_cleanup(handle); }
};
using Easy = std::unique_ptr<CURL, EasyDeleter>;

// A request for `url`, following redirections. The bearer token, if not empty, goes to the host of
// `url` alone, never to one that it redirects to.
[[nodiscard]] Easy make_request(const std::string& url, const std::string& token);

// Whether trying again may help: the connection broke, or the server is overloaded.
[[nodiscard]] bool is_transient(CURLcode code, long status);

// What went wrong, for people, naming the URL: the status of the answer, or curl's reason.
[[nodiscard]] Error request_error(const std::string& url, CURLcode code, long status);

// The body of the answer. Errors: any answer but 200, a body above `max_bytes`.
[[nodiscard]] Result<std::string> http_get(const std::string& url, const std::string& token,
                                           std::size_t max_bytes);

// Seconds before try `failures` + 1: twice as long each time, or what the server asked for.
[[nodiscard]] double retry_pause(double first_pause, int failures, CURL* handle);

}  // namespace espalier::hub
