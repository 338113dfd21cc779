// Pulling from a server that serves, breaks off, lies about lengths and returns errors.
#include "hub/download.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <random>

#include "hub/digest.h"
#include "support/files.h"
#include "support/http_server.h"

namespace espalier::hub {
namespace {

using test::http_answer;
using test::HttpRequest;
using test::HttpServer;
using testing::HasSubstr;

constexpr std::uint64_t kPiece = 1000;

std::string random_bytes(std::size_t count) {
  std::mt19937 random(7);
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// The part of `body` that the request's Range asks for, as an honest server sends it.
std::string ranged(const HttpRequest& request, const std::string& body) {
  const auto range = request.headers.find("range");
  unsigned long long begin = 0;
  unsigned long long end = 0;
  if (range == request.headers.end() ||
      std::sscanf(range->second.c_str(), "bytes=%llu-%llu", &begin, &end) != 2) {
    return http_answer(200, body);
  }
  return http_answer(206, body.substr(begin, end + 1 - begin),
                     "Content-Range: bytes " + std::to_string(begin) + "-" + std::to_string(end) +
                         "/" + std::to_string(body.size()) + "\r\n");
}

class Downloads : public testing::Test {
 protected:
  Downloads() {
    // Loopback is never behind a proxy.
    ::setenv("no_proxy", "127.0.0.1", 1);
  }

  // Fetches one file "m.gguf" of which the listing tells the size and digest of `body`.
  Status fetch(const HttpServer& server, const std::string& body, int tries = 3) const {
    const std::filesystem::path copy = scratch_ / "copy";
    test::write_file(copy, body);
    const Result<std::string> digest =
        file_digest(copy, DigestKind::kSha256, [](std::uint64_t) { return true; });
    const Fetch file = {.file = {.path = "m.gguf", .size = body.size(), .sha256 = *digest},
                        .url = server.url() + "/org/m/resolve/main/m.gguf"};
    return download(
        {&file, 1}, folder_.path(), "",
        {.connections = 4, .piece_bytes = kPiece, .tries = tries, .first_pause = 0.001});
  }

  [[nodiscard]] std::string fetched() const { return test::read_file(folder_ / "m.gguf"); }
  [[nodiscard]] bool exists(const char* name) const {
    return std::filesystem::exists(folder_ / name);
  }

  test::TemporaryDirectory folder_, scratch_;
};

TEST_F(Downloads, FetchPiecesOverSeveralConnections) {
  const std::string body = random_bytes(10 * kPiece + 123);
  std::atomic<int> requests = 0;
  const HttpServer server([&](const HttpRequest& request) {
    ++requests;
    return ranged(request, body);
  });
  const Status status = fetch(server, body);
  ASSERT_TRUE(status) << status.error().message;
  EXPECT_EQ(fetched(), body);
  EXPECT_EQ(requests, 11);
  EXPECT_FALSE(exists("m.gguf.part"));
  EXPECT_FALSE(exists("m.gguf.part.pieces"));
  ASSERT_TRUE(fetch(server, body));
  EXPECT_EQ(requests, 11) << "a file that is there is not fetched again";
}

TEST_F(Downloads, OfEmptyAndSmallFiles) {
  for (const std::string& body : {std::string(), std::string("x"), random_bytes(kPiece)}) {
    const HttpServer server([&](const HttpRequest& request) { return ranged(request, body); });
    std::filesystem::remove(folder_ / "m.gguf");
    const Status status = fetch(server, body);
    ASSERT_TRUE(status) << status.error().message;
    EXPECT_EQ(fetched(), body);
  }
}

TEST_F(Downloads, GoOnAfterBrokenConnections) {
  const std::string body = random_bytes(5 * kPiece);
  const HttpServer server([&](const HttpRequest& request) {
    const std::string answer = ranged(request, body);
    // Answers with a whole piece end before it does; those with the rest of one are right.
    const bool whole = answer.find("Content-Length: 1000\r\n") != std::string::npos;
    return whole ? answer.substr(0, answer.size() - 300) : answer;
  });
  const Status status = fetch(server, body);
  ASSERT_TRUE(status) << status.error().message;
  EXPECT_EQ(fetched(), body);
}

TEST_F(Downloads, ResumeWhereAnEarlierTryEnded) {
  const std::string body = random_bytes(8 * kPiece);
  std::atomic<bool> broken = true;
  std::atomic<std::size_t> bytes = 0;
  const HttpServer server([&](const HttpRequest& request) {
    const std::string answer = ranged(request, body);
    // Bytes behind the middle cannot be had at first.
    if (broken && request.headers.at("range").find("bytes=5") == 0) return std::string();
    bytes += answer.size() - answer.find("\r\n\r\n") - 4;
    return answer;
  });
  const Status status = fetch(server, body);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().kind, ErrorKind::kWork);
  EXPECT_THAT(status.error().message, HasSubstr("given up after 3 tries at byte 5000"));
  EXPECT_TRUE(exists("m.gguf.part"));
  EXPECT_FALSE(exists("m.gguf"));
  broken = false;
  const std::size_t before = bytes;
  ASSERT_TRUE(fetch(server, body));
  EXPECT_EQ(fetched(), body);
  EXPECT_LT(bytes - before, body.size()) << "what had arrived is not fetched again";
}

TEST_F(Downloads, FromServersWithoutRanges) {
  const std::string body = random_bytes(4 * kPiece);
  std::atomic<int> requests = 0;
  const HttpServer server([&](const HttpRequest&) {
    const std::string answer = http_answer(200, body);
    return ++requests == 1 ? answer.substr(0, answer.size() - 10) : answer;
  });
  const Status status = fetch(server, body);
  ASSERT_TRUE(status) << status.error().message;
  EXPECT_EQ(fetched(), body);
  EXPECT_EQ(requests, 2);
}

TEST_F(Downloads, TryAgainWhenTheServerIsBusy) {
  const std::string body = random_bytes(2 * kPiece);
  std::atomic<int> requests = 0;
  const HttpServer server([&](const HttpRequest& request) {
    const int now = ++requests;
    if (now == 1) return http_answer(503, "busy");
    if (now == 2) return http_answer(429, "slowly");
    return ranged(request, body);
  });
  const Status status = fetch(server, body);
  ASSERT_TRUE(status) << status.error().message;
  EXPECT_EQ(fetched(), body);
}

TEST_F(Downloads, ThatTheServerRefusesEndAtOnce) {
  struct Case {
    int status;
    const char* message;
  };
  for (const Case& c : {Case{401, "set HF_TOKEN"}, Case{403, "accept its terms"},
                        Case{404, "no such repository"}, Case{410, "the server answered 410"}}) {
    std::atomic<int> requests = 0;
    const HttpServer server([&](const HttpRequest&) {
      ++requests;
      return http_answer(c.status, "no");
    });
    const Status status = fetch(server, "body");
    ASSERT_FALSE(status);
    EXPECT_THAT(status.error().message, HasSubstr(c.message));
    EXPECT_EQ(requests, 1);
  }
}

TEST_F(Downloads, OfLyingServersAreRefused) {
  const std::string body = random_bytes(2 * kPiece);
  const std::string tail = "\r\nConnection: close\r\n\r\n";
  struct Case {
    const char* what;
    std::string answer;
    const char* message;
  };
  const Case cases[] = {
      {"another length", http_answer(200, body + "more"),
       "sends 2004 bytes, its listing says 2000"},
      {"more than announced", "HTTP/1.1 200 OK" + tail + body + "more", "more than the 2000 bytes"},
      {"another range",
       http_answer(206, body.substr(0, kPiece), "Content-Range: bytes 7-1006/2000\r\n"),
       "asked for bytes 0-999 of 2000, the server sends 'bytes 7-1006/2000'"},
      {"another total",
       http_answer(206, body.substr(0, kPiece), "Content-Range: bytes 0-999/3000\r\n"),
       "the server sends 'bytes 0-999/3000'"},
      {"no range", http_answer(206, body.substr(0, kPiece)), "no Content-Range"},
      {"a range header that is none",
       http_answer(206, body.substr(0, kPiece), "Content-Range: some\r\n"), "no Content-Range"},
      {"less, without a length", "HTTP/1.1 200 OK" + tail + "less", "given up after 3 tries"},
      {"no HTTP", "hello", "Unsupported"},
      {"a redirection to a file", http_answer(302, "", "Location: file:///etc/passwd\r\n"),
       "nsupported protocol"},
  };
  for (const Case& c : cases) {
    const HttpServer server([&](const HttpRequest&) { return c.answer; });
    const Status status = fetch(server, body);
    ASSERT_FALSE(status) << c.what;
    EXPECT_THAT(status.error().message, HasSubstr(c.message)) << c.what;
    EXPECT_FALSE(exists("m.gguf")) << c.what;
  }
}

TEST_F(Downloads, WithAWrongChecksumAreThrownAway) {
  const std::string body = random_bytes(2 * kPiece);
  std::string changed = body;
  changed[1234] = static_cast<char>(changed[1234] ^ 1);
  {
    const HttpServer server([&](const HttpRequest& request) { return ranged(request, changed); });
    const Status status = fetch(server, body);
    ASSERT_FALSE(status);
    EXPECT_THAT(status.error().message, HasSubstr("m.gguf: its SHA-256 is "));
    EXPECT_FALSE(exists("m.gguf.part"));
  }
  const HttpServer server([&](const HttpRequest& request) { return ranged(request, body); });
  ASSERT_TRUE(fetch(server, body));
  EXPECT_EQ(fetched(), body);
}

TEST_F(Downloads, DistrustPiecesOfAnotherFile) {
  const std::string body = random_bytes(3 * kPiece);
  test::write_file(folder_ / "m.gguf.part", std::string(3 * kPiece, 'x'));
  test::write_file(folder_ / "m.gguf.part.pieces", "3000 0123 1000\n0\n1\n2\n-5\n99999999999\n");
  const HttpServer server([&](const HttpRequest& request) { return ranged(request, body); });
  ASSERT_TRUE(fetch(server, body));
  EXPECT_EQ(fetched(), body);
}

TEST_F(Downloads, KeepTheTokenFromOtherHosts) {
  const std::string body = "small";
  std::atomic<bool> leaked = false;
  std::atomic<bool> asked = false;
  const HttpServer other([&](const HttpRequest& request) {
    asked = true;
    leaked = leaked || request.headers.contains("authorization");
    return ranged(request, body);
  });
  std::atomic<bool> told = false;
  const HttpServer server([&](const HttpRequest& request) {
    const auto token = request.headers.find("authorization");
    told = token != request.headers.end() && token->second == "Bearer secret";
    // The same host by another name is another host.
    std::string place = other.url();
    place.replace(place.find("127.0.0.1"), 9, "localhost");
    return http_answer(302, "", "Location: " + place + "/file\r\n");
  });
  ::setenv("no_proxy", "127.0.0.1,localhost", 1);
  const Fetch file = {.file = {.path = "m.gguf",
                               .size = body.size(),
                               .git_blob = "f9c8d4e9ae3e9ee6bd0e9ae6c0b1b9c9e9b0c0f5"},
                      .url = server.url() + "/m.gguf"};
  const Status status = download({&file, 1}, folder_.path(), "secret", {.tries = 1});
  ASSERT_FALSE(status);  // the checksum above is of something else
  EXPECT_THAT(status.error().message, HasSubstr("its Git blob hash is "));
  EXPECT_TRUE(told);
  EXPECT_TRUE(asked);
  EXPECT_FALSE(leaked);
}

TEST(Digests, AreThoseOfTheirStandards) {
  const test::TemporaryDirectory folder;
  test::write_file(folder / "abc", "abc");
  const auto all = [](std::uint64_t) { return true; };
  // FIPS 180-4's example, and what `git hash-object` prints.
  EXPECT_EQ(*file_digest(folder / "abc", DigestKind::kSha256, all),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(*file_digest(folder / "abc", DigestKind::kGitBlob, all),
            "f2ba8f84ab5c1bce84a7b441cb1959cfc7093b7f");
  EXPECT_FALSE(file_digest(folder / "none", DigestKind::kSha256, all));
  EXPECT_FALSE(
      file_digest(folder / "abc", DigestKind::kSha256, [](std::uint64_t) { return false; }));
}

// What a repository's listing looks like.
std::string listing(const std::string& siblings) {
  return R"({"sha": "0123456789012345678901234567890123456789", "siblings": [)" + siblings + "]}";
}

TEST(Listings, AreRead) {
  ::setenv("no_proxy", "127.0.0.1", 1);
  std::string asked;
  const HttpServer server([&](const HttpRequest& request) {
    asked = request.target;
    return http_answer(
        200, listing(R"({"rfilename": "b.gguf", "size": 5, "blobId": "x", "lfs": {"sha256": ")" +
                     std::string(64, 'a') + R"(", "size": 5}},
                   {"rfilename": "a b.json", "size": 2, "blobId": ")" +
                     std::string(40, 'b') + "\"}"));
  });
  const Hub hub = {.endpoint = server.url()};
  const ModelName name = {.repository = "org/m", .revision = "refs/pr/1"};
  const Result<RemoteRepository> remote = list_repository(hub, name);
  ASSERT_TRUE(remote) << remote.error().message;
  EXPECT_EQ(asked, "/api/models/org/m/revision/refs%2Fpr%2F1?blobs=true");
  ASSERT_EQ(remote->files.size(), 2);
  EXPECT_EQ(remote->files[0].path, "a b.json");
  EXPECT_EQ(remote->files[0].git_blob, std::string(40, 'b'));
  EXPECT_EQ(remote->files[1].sha256, std::string(64, 'a'));
  EXPECT_EQ(file_url(hub, name, remote->commit, "a b.json"),
            server.url() + "/org/m/resolve/0123456789012345678901234567890123456789/a%20b.json");
}

TEST(Listings, ThatAreWrongAreRefused) {
  ::setenv("no_proxy", "127.0.0.1", 1);
  const std::string blob = R"(, "size": 1, "blobId": ")" + std::string(40, 'b') + "\"}";
  struct Case {
    std::string body;
    const char* message;
  };
  const Case cases[] = {
      {"<html>", "not JSON"},
      {"{}", "key 'sha': found ''"},
      {R"({"sha": "0123456789012345678901234567890123456789"})", "key 'siblings'"},
      {listing("5"), "found an integer, expected an object"},
      {listing(R"({"rfilename": "../x")" + blob), "'../x' is no path below a folder"},
      {listing(R"({"rfilename": "/etc/x")" + blob), "is no path below a folder"},
      {listing(R"({"rfilename": "a//b")" + blob), "is no path below a folder"},
      {listing(R"({"rfilename": "a\\b")" + blob), "is no path below a folder"},
      {listing(R"({"rfilename": "a", "size": -1})"), "key 'size'"},
      {listing(R"({"rfilename": "a", "size": 1})"), "found no checksum"},
      {listing(R"({"rfilename": "a", "size": 1, "lfs": {"sha256": "zz"}})"), "found no checksum"},
      {listing(R"({"rfilename": "a")" + blob + R"(, {"rfilename": "a")" + blob), "listed twice"},
  };
  for (const Case& c : cases) {
    const HttpServer server([&](const HttpRequest&) { return http_answer(200, c.body); });
    const Result<RemoteRepository> remote =
        list_repository({.endpoint = server.url()}, {.repository = "org/m"});
    ASSERT_FALSE(remote) << c.body;
    EXPECT_THAT(remote.error().message, HasSubstr(c.message)) << c.body;
  }
}

}  // namespace
}  // namespace espalier::hub
