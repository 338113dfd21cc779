#include "hub/http.h"

#include <algorithm>
#include <cmath>

namespace espalier::hub {
namespace {

constexpr long kConnectSeconds = 30;
constexpr long kStallSeconds = 60;  // without a byte: the connection is given up
constexpr long kMaxRedirects = 10;
constexpr double kMaxPause = 60;  // seconds

struct Body {
  std::string text;
  std::size_t max_bytes;
};

std::size_t append(char* data, std::size_t, std::size_t size, void* user) {
  auto* body = static_cast<Body*>(user);
  if (size > body->max_bytes - body->text.size()) return 0;  // curl: CURLE_WRITE_ERROR
  body->text.append(data, size);
  return size;
}

}  // namespace

Easy make_request(const std::string& url, const std::string& token) {
  [[maybe_unused]] static const CURLcode once = curl_global_init(CURL_GLOBAL_DEFAULT);
  Easy easy(curl_easy_init());
  CURL* handle = easy.get();
  if (handle == nullptr) return easy;
  curl_easy_setopt(handle, CURLOPT_URL, url.c_str());
  curl_easy_setopt(handle, CURLOPT_USERAGENT, "espalier/" ESPALIER_VERSION);
  curl_easy_setopt(handle, CURLOPT_PROTOCOLS_STR, "http,https");
  // A secure address may not lead to one that is not.
  curl_easy_setopt(handle, CURLOPT_REDIR_PROTOCOLS_STR,
                   url.starts_with("https:") ? "https" : "http,https");
  curl_easy_setopt(handle, CURLOPT_FOLLOWLOCATION, 1L);
  curl_easy_setopt(handle, CURLOPT_MAXREDIRS, kMaxRedirects);
  curl_easy_setopt(handle, CURLOPT_FAILONERROR, 1L);
  curl_easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(handle, CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
  curl_easy_setopt(handle, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(handle, CURLOPT_LOW_SPEED_TIME, kStallSeconds);
  if (!token.empty()) {
    curl_easy_setopt(handle, CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
    curl_easy_setopt(handle, CURLOPT_XOAUTH2_BEARER, token.c_str());
  }
  return easy;
}

bool is_transient(CURLcode code, long status) {
  if (code == CURLE_HTTP_RETURNED_ERROR) return status == 408 || status == 429 || status >= 500;
  return code == CURLE_PARTIAL_FILE || code == CURLE_RECV_ERROR || code == CURLE_SEND_ERROR ||
         code == CURLE_GOT_NOTHING || code == CURLE_OPERATION_TIMEDOUT ||
         code == CURLE_COULDNT_CONNECT || code == CURLE_HTTP2 || code == CURLE_HTTP2_STREAM;
}

Error request_error(const std::string& url, CURLcode code, long status) {
  if (code != CURLE_HTTP_RETURNED_ERROR) {
    return work_error("{}: {}", url, curl_easy_strerror(code));
  }
  if (status == 401 || status == 403) {
    return input_error(
        "{}: the server answered {}: no such repository, or it wants to know who asks; check the "
        "name, accept its terms on the web page, and set HF_TOKEN",
        url, status);
  }
  if (status == 404) {
    return input_error("{}: the server answered 404: no such repository, revision or file", url);
  }
  return work_error("{}: the server answered {}", url, status);
}

Result<std::string> http_get(const std::string& url, const std::string& token,
                             std::size_t max_bytes) {
  const Easy easy = make_request(url, token);
  if (easy == nullptr) return work_error("{}: curl could not start", url);
  Body body = {.text = {}, .max_bytes = max_bytes};
  curl_easy_setopt(easy.get(), CURLOPT_WRITEFUNCTION, append);
  curl_easy_setopt(easy.get(), CURLOPT_WRITEDATA, &body);
  const CURLcode code = curl_easy_perform(easy.get());
  long status = 0;
  curl_easy_getinfo(easy.get(), CURLINFO_RESPONSE_CODE, &status);
  if (code == CURLE_WRITE_ERROR) {
    return input_error("{}: the answer is longer than {} bytes", url, max_bytes);
  }
  if (code != CURLE_OK) return request_error(url, code, status);
  return std::move(body.text);
}

double retry_pause(double first_pause, int failures, CURL* handle) {
  curl_off_t asked = 0;
  curl_easy_getinfo(handle, CURLINFO_RETRY_AFTER, &asked);
  const double pause = std::max(std::ldexp(first_pause, failures - 1), static_cast<double>(asked));
  return std::min(pause, kMaxPause);
}

}  // namespace espalier::hub
