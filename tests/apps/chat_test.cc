// The chat of espalier run, and espalier chat-template, as a user calls them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/command.h"
#include "support/files.h"
#include "support/tiny_llama.h"

namespace espalier {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr const char* kTemplate =
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|control_261|>{% endfor %}";

class ChatVerbs : public ::testing::Test {
 protected:
  ChatVerbs() {
    auto file = test::tiny_llama();
    file.add("tokenizer.chat_template", kTemplate);
    file.write(model_);
  }

  static test::CommandResult espalier(std::vector<std::string> arguments,
                                      std::string_view input = "") {
    arguments.insert(arguments.begin(), ESPALIER_BINARY);
    return test::run_command(arguments, input);
  }

  // The number of tokens that the model reads for one message.
  std::size_t prompt_tokens(const std::string& message, std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"run", "-m", model_, "--json", "-n", "1", "-p", message});
    const auto result = espalier(more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out)["prompt_tokens"];
  }

  // A conversation of these lines, and its messages in the end.
  struct Talk {
    test::CommandResult result;
    json messages;
  };
  Talk talk(const std::string& lines, std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"run", "-m", model_, "-n", "5", "--temp", "2", "--top-k", "0"});
    const std::string saved = folder_ / "saved.json";
    Talk talk{espalier(more, lines + "\n/save " + saved + "\n"), {}};
    EXPECT_EQ(talk.result.exit_code, 0) << talk.result.err;
    talk.messages = json::parse(test::read_file(saved))["messages"];
    return talk;
  }

  test::TemporaryDirectory folder_;
  std::string model_ = folder_ / "tiny.gguf";
};

TEST_F(ChatVerbs, APromptGoesThroughTheTemplate) {
  // "[user]" is five tokens ("er" is one), and a control token ends the message.
  EXPECT_EQ(prompt_tokens("hi"), 5 + 2 + 1);
  EXPECT_EQ(prompt_tokens("hi", {"--system", "be"}), 8 + 2 + 1 + 5 + 2 + 1);
  const std::string file = folder_ / "t.jinja";
  test::write_file(file, "{{ messages[0].content }}!");
  EXPECT_EQ(prompt_tokens("hi", {"--template", file}), 2 + 1);
  EXPECT_EQ(prompt_tokens("hi", {"--raw"}), 2);
}

TEST_F(ChatVerbs, ReasoningReachesTheTemplate) {
  const std::string file = folder_ / "t.jinja";
  test::write_file(file,
                   "{{ 'on' if enable_thinking else 'off' if enable_thinking is defined "
                   "else 'default' }}");
  EXPECT_EQ(prompt_tokens("hi", {"--template", file}), 7);
  EXPECT_EQ(prompt_tokens("hi", {"--template", file, "--reasoning", "on"}), 2);
  EXPECT_EQ(prompt_tokens("hi", {"--template", file, "--reasoning", "off"}), 3);
}

TEST_F(ChatVerbs, WhatAUserTypesIsText) {
  EXPECT_EQ(prompt_tokens("<|control_261|>"), 5 + 15 + 1);
  EXPECT_EQ(prompt_tokens("<|control_261|>", {"--raw"}), 1);
}

TEST_F(ChatVerbs, StandardInputIsAConversation) {
  const Talk chat = talk("hi\n\nhow\n/stats");
  ASSERT_EQ(chat.messages.size(), 4);
  EXPECT_EQ(chat.messages[0]["content"], "hi");
  EXPECT_EQ(chat.messages[1]["role"], "assistant");
  EXPECT_EQ(chat.messages[2]["content"], "how");
  // The model is random and writes what is no UTF-8, which JSON cannot carry.
  const auto valid = [](const std::string& text) {
    const std::string document =
        nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    return nlohmann::json::parse(document).get<std::string>();
  };
  EXPECT_EQ(valid(chat.result.out), chat.messages[1]["content"].get<std::string>() + "\n" +
                                        chat.messages[3]["content"].get<std::string>() + "\n");
  // The first question at least is in the cache when the second is asked.
  std::size_t reused = 0;
  const std::size_t at = chat.result.err.find("; ");
  ASSERT_EQ(std::sscanf(chat.result.err.c_str() + at, "; %zu tokens reused", &reused), 1)
      << chat.result.err;
  EXPECT_GE(reused, 8);
}

TEST_F(ChatVerbs, TheCacheChangesNoAnswer) {
  const Talk chat = talk("hi\nhow");
  const json& messages = chat.messages;
  const Talk again = talk("hi\nhow\n/regen\nwhy\n/reset\nhi\nhow");
  ASSERT_EQ(again.messages.size(), 4);
  // After /regen the seed differs; what was said and the templates do not.
  EXPECT_EQ(again.messages[2], messages[2]);
  EXPECT_EQ(talk("hi\nhow").messages, messages);
  EXPECT_EQ(talk("x\n/reset\nhi\nhow").messages, messages);
}

TEST_F(ChatVerbs, MessagesCanHaveSeveralLines) {
  const Talk chat = talk("one\\\ntwo\n\"\"\"three\n\nfour\"\"\"");
  ASSERT_EQ(chat.messages.size(), 4);
  EXPECT_EQ(chat.messages[0]["content"], "one\ntwo");
  EXPECT_EQ(chat.messages[2]["content"], "three\n\nfour");
}

TEST_F(ChatVerbs, CommandsDoWhatHelpSays) {
  EXPECT_THAT(talk("/help").result.err, HasSubstr("/regen"));
  EXPECT_THAT(talk("/fly").result.err, HasSubstr("unknown command /fly"));
  EXPECT_THAT(talk("/regen").result.err, HasSubstr("there is no answer to give again"));
  EXPECT_EQ(talk("hi\n/regen").messages.size(), 2);
  const Talk chat = talk("hi\n/system be kind\nyo\n/system");
  EXPECT_EQ(chat.messages[0]["content"], "be kind");
  EXPECT_EQ(chat.messages[1]["content"], "yo");
  EXPECT_THAT(chat.result.err, HasSubstr("be kind\n"));
  const auto left = espalier({"run", "-m", model_, "-n", "1"}, "/exit\nhi\n");
  EXPECT_EQ(left.exit_code, 0);
  EXPECT_EQ(left.out, "");
}

TEST_F(ChatVerbs, AConversationThatFillsTheContextStops) {
  const auto result =
      espalier({"run", "-m", model_, "--ctx", "12", "-n", "2"}, "hi\nhow are you\n");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("but the context holds 12; see --ctx"));
}

TEST_F(ChatVerbs, AModelWithoutTemplateContinuesTheText) {
  const std::string plain = folder_ / "plain.gguf";
  test::tiny_llama().write(plain);
  const auto result = espalier({"run", "-m", plain, "-p", "hi", "-n", "1", "--json"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, plain + ": there is no chat template; the text is continued as it is\n");
  EXPECT_EQ(json::parse(result.out)["prompt_tokens"], 2);
}

TEST_F(ChatVerbs, WhatATemplateRaisesIsTheError) {
  const std::string file = folder_ / "t.jinja";
  test::write_file(file, "a\n{{ raise_exception('no ' ~ messages[0].role) }}");
  const auto raised = espalier({"run", "-m", model_, "-p", "hi", "--template", file});
  EXPECT_EQ(raised.exit_code, 2);
  EXPECT_EQ(raised.err, "error: " + file + ": line 2: no user\n");
  test::write_file(file, "{% if %}");
  EXPECT_EQ(espalier({"run", "-m", model_, "-p", "hi", "--template", file}).err,
            "error: " + file + ": line 1: unexpected 'end of statement block'\n");
}

TEST_F(ChatVerbs, ChatTemplatePrintsTheRenderingToTheByte) {
  const std::string context = folder_ / "case.json";
  test::write_file(context, R"({"messages": [{"role": "user", "content": "é"}]})");
  const auto result = espalier({"chat-template", model_, "--context", context});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "[user]é<|control_261|>");

  const std::string file = folder_ / "t.jinja";
  test::write_file(file, "{{ strftime_now('%d %b') }} {{ messages[0].content }} {{ tools }}");
  const std::vector<std::string> command = {
      "chat-template", "--file", file, "--context", context, "--now", "2026-11-30T12:34:56"};
  EXPECT_EQ(espalier(command).out, "30 Nov é None");
  auto as_json = command;
  as_json.emplace_back("--json");
  EXPECT_EQ(json::parse(espalier(as_json).out),
            json::parse(R"([{"text": "30 Nov ", "origin": "template"},
                            {"text": "é", "origin": "message"},
                            {"text": " None", "origin": "template"}])"));
  EXPECT_EQ(espalier({"chat-template", "--file", file, "--context", "-"}, "[]").err,
            "error: -: the document is no object, expected the template's variables\n");
  EXPECT_EQ(espalier({"chat-template", "--context", context}).exit_code, 2);
  EXPECT_EQ(espalier({"chat-template", model_, "--context", context, "--now", "now"}).exit_code, 2);
}

}  // namespace
}  // namespace espalier
