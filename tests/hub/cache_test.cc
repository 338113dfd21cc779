// Names of models, and the folder of those that were pulled.
#include "hub/cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "hub/hub.h"
#include "support/files.h"

namespace espalier::hub {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class Cache : public testing::Test {
 protected:
  Cache() { ::setenv("XDG_CACHE_HOME", folder_.path().c_str(), 1); }
  ~Cache() override { ::unsetenv("XDG_CACHE_HOME"); }

  // Puts a file of `bytes` bytes into a pulled repository.
  void put(const std::string& path, std::size_t bytes) const {
    const std::filesystem::path file = folder_ / "espalier/models" / path;
    std::filesystem::create_directories(file.parent_path());
    test::write_file(file, std::string(bytes, 'x'));
  }

  test::TemporaryDirectory folder_;
};

std::vector<std::string> names(const std::vector<CachedModel>& models) {
  std::vector<std::string> list;
  for (const CachedModel& model : models) list.push_back(model.name);
  return list;
}

TEST(ModelNames, AreTakenApart) {
  const Result<ModelName> plain = parse_model_name("org/some-model_1.5");
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->repository, "org/some-model_1.5");
  EXPECT_EQ(plain->revision, "main");
  EXPECT_EQ(plain->pattern, "");
  const Result<ModelName> full = parse_model_name("org/model@refs/pr/1:Q4_K_*");
  ASSERT_TRUE(full);
  EXPECT_EQ(full->repository, "org/model");
  EXPECT_EQ(full->revision, "refs/pr/1");
  EXPECT_EQ(full->pattern, "Q4_K_*");
  EXPECT_EQ(repository_label(*full), "org/model@refs/pr/1");
}

TEST(ModelNames, ThatCouldLeaveTheFolderAreRefused) {
  for (const char* wrong : {"", "model", "/model", "org/", "org/../x", "../x", "org/.hidden",
                            "org/a/b", "org/model:", "org/model@", "org/model@../x", "org/mo del",
                            "org/model@a//b", "C:\\org/model"}) {
    const Result<ModelName> name = parse_model_name(wrong);
    ASSERT_FALSE(name) << wrong;
    EXPECT_THAT(name.error().message, HasSubstr("expected org/repo[@revision][:pattern]"));
    EXPECT_EQ(name.error().kind, ErrorKind::kInput);
  }
}

TEST(Patterns, ArePartsOfNamesOrGlobs) {
  EXPECT_TRUE(fits("", "anything"));
  EXPECT_TRUE(fits("q4_k_m", "folder/Model.Q4_K_M.gguf"));
  EXPECT_TRUE(fits("Model*.gguf", "folder/model-q4.gguf"));
  EXPECT_TRUE(fits("folder/*", "folder/model.gguf"));
  EXPECT_FALSE(fits("Q4_K_S", "Model.Q4_K_M.gguf"));
  EXPECT_FALSE(fits("*.gguf", "model.gguf.part"));
}

TEST(GgufSets, KeepThePartsOfAModelTogether) {
  const std::vector<GgufSet> sets =
      gguf_sets({"a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "b.gguf", "c.txt"});
  ASSERT_EQ(sets.size(), 2);
  EXPECT_EQ(sets[0].name, "a-00001-of-00002.gguf");
  EXPECT_THAT(sets[0].parts, ElementsAre("a-00001-of-00002.gguf", "a-00002-of-00002.gguf"));
  EXPECT_THAT(sets[1].parts, ElementsAre("b.gguf"));
}

TEST_F(Cache, ListsFindsAndRemovesModels) {
  put("org/dir/config.json", 10);
  put("org/dir/model.safetensors", 90);
  put("org/quants/m.Q4_K_M.gguf", 5);
  put("org/quants/m.Q8_0-00001-of-00002.gguf", 7);
  put("org/quants/m.Q8_0-00002-of-00002.gguf", 8);
  put("org/exl3@4.0bpw/config.json", 1);

  const Result<std::vector<CachedModel>> models = list_cached();
  ASSERT_TRUE(models) << models.error().message;
  EXPECT_THAT(names(*models), ElementsAre("org/dir", "org/exl3@4.0bpw", "org/quants:m.Q4_K_M.gguf",
                                          "org/quants:m.Q8_0-00001-of-00002.gguf"));
  EXPECT_EQ((*models)[0].bytes, 100);
  EXPECT_EQ((*models)[3].bytes, 15);
  for (const CachedModel& model : *models) {
    EXPECT_TRUE(model.complete) << model.name;
    const Result<std::filesystem::path> found = find_model(model.name);
    ASSERT_TRUE(found) << found.error().message;
    EXPECT_EQ(*found, model.path);
  }
  const Result<std::filesystem::path> short_name = find_model("org/quants:q4_k_m");
  ASSERT_TRUE(short_name) << short_name.error().message;
  EXPECT_EQ(short_name->filename(), "m.Q4_K_M.gguf");

  const Result<std::filesystem::path> several = find_model("org/quants");
  ASSERT_FALSE(several);
  EXPECT_THAT(several.error().message,
              HasSubstr("several models fit: org/quants:m.Q4_K_M.gguf, org/quants:m.Q8_0"));

  const Result<ModelName> quant = parse_model_name("org/quants:Q4_K_M");
  const Result<std::uint64_t> freed = remove_cached(*quant);
  ASSERT_TRUE(freed) << freed.error().message;
  EXPECT_EQ(*freed, 5);
  ASSERT_TRUE(find_model("org/quants"));  // one is left
  ASSERT_TRUE(remove_cached(*parse_model_name("org/quants")));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "espalier/models/org/quants"));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "espalier/models/org/dir"));
  const Result<std::uint64_t> again = remove_cached(*parse_model_name("org/quants"));
  ASSERT_FALSE(again);
  EXPECT_THAT(again.error().message, HasSubstr("org/quants: nothing of that name was pulled"));
}

TEST_F(Cache, AnEmptyCacheIsNoError) {
  const Result<std::vector<CachedModel>> models = list_cached();
  ASSERT_TRUE(models);
  EXPECT_TRUE(models->empty());
  const Result<std::filesystem::path> found = find_model("org/model");
  ASSERT_FALSE(found);
  EXPECT_THAT(found.error().message, HasSubstr("`espalier pull org/model`"));
  const Result<std::filesystem::path> file = find_model("no-such.gguf");
  ASSERT_TRUE(file) << "what is no model's name is a path";
  EXPECT_EQ(*file, "no-such.gguf");
}

TEST_F(Cache, ABrokenOffDownloadIsNoModel) {
  put("org/dir/config.json", 10);
  put("org/dir/model.safetensors.part", 90);
  put("org/split/m-00001-of-00002.gguf", 1);
  for (const char* name : {"org/dir", "org/split"}) {
    const Result<std::filesystem::path> found = find_model(name);
    ASSERT_FALSE(found) << name;
    EXPECT_THAT(found.error().message, HasSubstr("its download was broken off"));
  }
}

RemoteRepository repository(const std::vector<std::string>& paths) {
  RemoteRepository remote;
  for (const std::string& path : paths) remote.files.push_back({.path = path});
  return remote;
}

std::vector<std::string> paths(const Result<std::vector<RemoteFile>>& files) {
  std::vector<std::string> list;
  if (!files) return {files.error().message};
  for (const RemoteFile& file : *files) list.push_back(file.path);
  return list;
}

TEST(ChosenFiles, OfADirectoryAreWeightsAndWhatBelongsToThem) {
  const RemoteRepository remote =
      repository({"README.md", "chat_template.jinja", "config.json", "consolidated.safetensors",
                  "model-00001-of-00001.safetensors", "model.safetensors.index.json",
                  "onnx/model.onnx", "original/params.json", "tokenizer.json", "tokenizer.model"});
  EXPECT_THAT(paths(choose_files(remote, {.repository = "org/m"})),
              ElementsAre("chat_template.jinja", "config.json", "model-00001-of-00001.safetensors",
                          "model.safetensors.index.json", "tokenizer.json", "tokenizer.model"));
}

TEST(ChosenFiles, OfAGgufRepositoryAreOneModel) {
  const RemoteRepository remote =
      repository({"README.md", "config.json", "m.Q4_K_M.gguf", "m.Q8_0-00001-of-00002.gguf",
                  "m.Q8_0-00002-of-00002.gguf", "mmproj-m.gguf"});
  const auto choose = [&remote](const std::string& pattern) {
    return paths(choose_files(remote, {.repository = "org/m", .pattern = pattern}));
  };
  EXPECT_THAT(choose(""), ElementsAre("m.Q4_K_M.gguf"));
  EXPECT_THAT(choose("q8_0"),
              ElementsAre("m.Q8_0-00001-of-00002.gguf", "m.Q8_0-00002-of-00002.gguf"));
  EXPECT_THAT(choose("*.md"), ElementsAre("README.md"));
  EXPECT_EQ(choose("m*.gguf").size(), 4);
  EXPECT_THAT(choose("m."), ElementsAre(HasSubstr("org/m: 3 models fit; add a part")));
  EXPECT_THAT(choose("IQ3"), ElementsAre("org/m:IQ3: none of its 6 files fits"));
  EXPECT_THAT(paths(choose_files(repository({"a.bin"}), {.repository = "org/m"})),
              ElementsAre(HasSubstr("none of its 1 files is a GGUF")));
}

}  // namespace
}  // namespace espalier::hub
