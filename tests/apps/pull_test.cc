// espalier pull, list and rm, run as a user runs them against a server on this machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "support/command.h"
#include "support/files.h"
#include "support/gguf_builder.h"
#include "support/http_server.h"

namespace espalier {
namespace {

using test::CommandResult;
using test::http_answer;
using test::HttpRequest;
using testing::HasSubstr;

CommandResult espalier(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), ESPALIER_BINARY);
  return test::run_command(arguments);
}

TEST(Pull, MakesAModelThatOtherVerbsFindByName) {
  const test::TemporaryDirectory folder;
  test::GgufBuilder builder;
  builder.add("general.architecture", "llama").tensor("norm", {4}, {1, 2, 3, 4});
  const std::string model = test::read_file(builder.write(folder / "m.gguf"));
  const test::HttpServer server([&model](const HttpRequest& request) {
    if (request.target == "/api/models/org/repo/revision/main?blobs=true") {
      // The digest is that of other bytes until the test says otherwise.
      return http_answer(200, R"({"sha": "0123456789012345678901234567890123456789", "siblings": [
                {"rfilename": "m.Q4_K_M.gguf", "size": )" +
                                  std::to_string(model.size()) + R"(, "lfs": {"sha256": ")" +
                                  std::string(std::getenv("MODEL_SHA256")) + R"("}}]})");
    }
    if (request.target.find("/resolve/") != std::string::npos) return http_answer(200, model);
    return http_answer(404, "");
  });
  ::setenv("HF_ENDPOINT", server.url().c_str(), 1);
  ::setenv("HF_TOKEN", "", 1);
  ::setenv("XDG_CACHE_HOME", folder.path().c_str(), 1);
  ::setenv("no_proxy", "127.0.0.1", 1);

  ::setenv("MODEL_SHA256", std::string(64, '0').c_str(), 1);
  const CommandResult wrong = espalier({"pull", "org/repo"});
  EXPECT_EQ(wrong.exit_code, 1);
  EXPECT_THAT(wrong.err, HasSubstr("m.Q4_K_M.gguf: its SHA-256 is "));
  const std::string digest = wrong.err.substr(wrong.err.find("256 is ") + 7, 64);

  ::setenv("MODEL_SHA256", digest.c_str(), 1);
  const CommandResult pulled = espalier({"pull", "org/repo:q4_k_m"});
  EXPECT_EQ(pulled.exit_code, 0) << pulled.err;
  const std::filesystem::path path = folder / "espalier/models/org/repo/m.Q4_K_M.gguf";
  EXPECT_EQ(pulled.out, path.string() + "\n");
  EXPECT_EQ(test::read_file(path), model);

  const CommandResult inspected = espalier({"inspect", "org/repo"});
  EXPECT_EQ(inspected.exit_code, 0) << inspected.err;
  EXPECT_THAT(inspected.out, HasSubstr("norm"));
  EXPECT_THAT(espalier({"list"}).out, HasSubstr("MB  org/repo:m.Q4_K_M.gguf\n"));
  EXPECT_THAT(espalier({"rm", "org/repo"}).out, HasSubstr("MB freed"));
  EXPECT_EQ(espalier({"list"}).out, "");
  EXPECT_FALSE(std::filesystem::exists(path));

  const CommandResult unknown = espalier({"pull", "org/other"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("/api/models/org/other/revision/main"));
  EXPECT_THAT(unknown.err, HasSubstr("the server answered 404"));
  const CommandResult gone = espalier({"run", "-m", "org/repo", "-p", "x"});
  EXPECT_EQ(gone.exit_code, 2);
  EXPECT_THAT(gone.err, HasSubstr("no such model was pulled: `espalier pull org/repo`"));
}

TEST(Pull, WrongNamesAreOneLineErrors) {
  for (const char* name : {"repo", "a/b/c", "org/..", "org/repo:"}) {
    const CommandResult result = espalier({"pull", name});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr("expected org/repo[@revision][:pattern]"));
  }
}

}  // namespace
}  // namespace espalier
