// The Jinja interpreter where no reference data look: bounds, errors and their lines, hostile
// input, and the origin of text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/jinja/json.h"
#include "text/jinja/template.h"

namespace espalier::text::jinja {
namespace {

using testing::HasSubstr;

Result<MarkedText> render_with(const std::string& source, const Variables& variables,
                               const Limits& limits = {}) {
  ESPALIER_TRY(const Template parsed, Template::parse(source, "t"));
  return parsed.render(variables, {}, limits);
}

Variables variables(const std::string& json) {
  const auto object = parse_json(json, Origin::kMessage, "context");
  EXPECT_TRUE(object) << object.error().message;
  Variables result;
  for (const auto& [name, value] : object->dict()->items) {
    result.emplace_back(name.text()->bytes(), value);
  }
  return result;
}

// What a template gives, or "error: " and why.
std::string render(const std::string& source, const std::string& json = "{}") {
  const auto text = render_with(source, variables(json));
  return text ? text->bytes() : "error: " + text.error().message;
}

std::string repeated(std::string_view text, std::size_t count) {
  std::string result;
  for (std::size_t i = 0; i < count; ++i) result += text;
  return result;
}

TEST(Jinja, LoopsCanBeLeft) {
  EXPECT_EQ(
      render("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}"),
      "012");
  EXPECT_EQ(render("{% for i in range(5) %}{% if i is odd %}{% continue %}{% endif %}{{ i }}"
                   "{% endfor %}"),
            "024");
  EXPECT_EQ(render("{% for i in [1, 2] %}{% for j in [1, 2] %}{{ i }}{{ j }} {% break %}"
                   "{% endfor %}{% else %}none{% endfor %}"),
            "11 21 ");
  EXPECT_EQ(render("{% break %}"), "error: t: line 1: 'break' outside loop");
}

TEST(Jinja, SlicesAsPythonDoes) {
  EXPECT_EQ(render("{{ 'añ漢😀'[::-1] }}{{ [1, 2, 3][::-1] }}{{ (1, 2)[::-1] }}"),
            "😀漢ña[3, 2, 1](2, 1)");
  EXPECT_EQ(render("{{ 'abc'[5:] }}|{{ 'abc'[-9:2] }}|{{ 'abc'[2:0:-1] }}|{{ 'abc'[:none] }}"),
            "|ab|cb|abc");
  EXPECT_EQ(render("{{ [1][::0] }}"), "error: t: line 1: slice step cannot be zero");
}

TEST(Jinja, ScopesAreThoseOfJinja) {
  EXPECT_EQ(render("{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = x + i %}{{ x }} "
                   "{% endfor %}{{ x }}"),
            "12 13 1");
  EXPECT_EQ(render("{% if true %}{% set x = 1 %}{% endif %}{{ x }}"), "1");
  EXPECT_EQ(render("{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}"),
            "12False");
  EXPECT_EQ(render("{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }} {{ m(1, b=2) }}"),
            "11 12");
}

TEST(Jinja, ErrorsNameTheirLine) {
  EXPECT_EQ(render("a\n{{ 1 }}\n{{ x.y }}\n"), "error: t: line 3: 'x' is undefined");
  EXPECT_EQ(render("{% for i in [1] %}\n{{ raise_exception('no\\nway') }}{% endfor %}"),
            "error: t: line 2: no\\nway");
  EXPECT_EQ(render("{{ 'a' }}\n{% if %}"), "error: t: line 2: unexpected 'end of statement block'");
  EXPECT_EQ(render("{% macro f() %}\n{{ 1 / 0 }}{% endmacro %}\n\n{{ f() }}"),
            "error: t: line 2: division by zero");
  EXPECT_EQ(render("\n\n{{ 'open"), "error: t: line 3: a string has no end");
  EXPECT_EQ(render("{# open"), "error: t: line 1: a comment has no end");
  EXPECT_EQ(render("{% raw %}x"), "error: t: line 1: 'raw' has no 'endraw'");
  EXPECT_EQ(render("{{ 1 | nope }}"), "error: t: line 1: No filter named 'nope'.");
  EXPECT_EQ(render("{% if true %}x"),
            "error: t: line 1: unexpected end of template, expected 'endif'");
}

TEST(Jinja, IntegersHaveRoomAndAnEnd) {
  EXPECT_EQ(render("{{ 2 ** 100 }} {{ 18446744073709551615 + 1 }} {{ -7 // 2 }} {{ -7 % 3 }}"),
            "1267650600228229401496703205376 18446744073709551616 -4 2");
  EXPECT_EQ(render("{{ x }}", R"({"x": 123456789012345678901234567890})"),
            "123456789012345678901234567890");
  EXPECT_THAT(render("{{ 2 ** 127 }}"), HasSubstr("an integer is too large"));
  EXPECT_THAT(render("{{ 2 ** 126 * 4 }}"), HasSubstr("an integer is too large"));
  EXPECT_THAT(render("{{ 99999999999999999999999999999999999999999 }}"), HasSubstr("too large"));
  EXPECT_EQ(render("{{ (-2 ** 126 * 2) // -1 }}").substr(0, 6), "error:");
  EXPECT_EQ(render("{{ 1 // 0 }}"), "error: t: line 1: integer division or modulo by zero");
  EXPECT_EQ(render("{{ 1e400 }} {{ 0.1 + 0.2 }} {{ 1e16 }} {{ 123456.0 }}"),
            "inf 0.30000000000000004 1e+16 123456.0");
}

TEST(Jinja, FormatsAsPythonDoes) {
  EXPECT_EQ(render("{{ '%s|%5d|%-5s|%05.1f|%x|%%' % ('a', 42, 'b', 3.14159, 255) }}"),
            "a|   42|b    |003.1|ff|%");
  EXPECT_EQ(render("{{ '%(a)s-%(b)r' % {'a': 1, 'b': 'x'} }}"), "1-'x'");
  EXPECT_EQ(render("{{ '{:,}|{:+.2e}|{:^7}|{:08.3f}|{!r}|{0[k]}' .format(1) }}").substr(0, 6),
            "error:");
  EXPECT_EQ(render("{{ '{:,}|{:+.2e}|{:^7}|{:08.3f}|{!r}'.format(1234567, 12.5, 'mid', 3.14159, "
                   "'q') }}"),
            "1,234,567|+1.25e+01|  mid  |0003.142|'q'");
  EXPECT_EQ(render("{{ '{0[k]}{1.x}'.format({'k': 1}, namespace(x=2)) }}"), "12");
  EXPECT_EQ(render("{{ '%d' % 'x' }}").substr(0, 6), "error:");
  EXPECT_EQ(render("{{ '%s' % () }}"), "error: t: line 1: not enough arguments for format string");
}

// ---- what a template may not do

// The same within limits that are reached soon.
std::string render_limited(const std::string& source) {
  constexpr Limits kLimits = {.steps = 500'000, .bytes = 32 << 20, .output = 4 << 20};
  const auto text = render_with(source, {}, kLimits);
  return text ? text->bytes() : "error: " + text.error().message;
}

TEST(JinjaLimits, TemplatesThatNeverEndAreStopped) {
  const std::string forever =
      "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}";
  EXPECT_THAT(render(forever), HasSubstr("the template "));
  EXPECT_EQ(render_limited("{% set l = range(1000) %}{% for a in l %}{% for b in l %}{{ 1 }}"
                           "{% endfor %}{% endfor %}"),
            "error: t: line 1: the template takes more than 500000 steps");
  EXPECT_THAT(render("{{ range(100001) }}"), HasSubstr("Range too big"));
}

TEST(JinjaLimits, RecursionIsStopped) {
  EXPECT_EQ(render("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
            "error: t: line 1: the template recurses too deeply");
  EXPECT_EQ(render("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}"),
            "error: t: line 1: the template recurses too deeply");
  EXPECT_EQ(render("{% macro f(x) %}{% call f(x) %}{% endcall %}{{ caller }}{% endmacro %}"
                   "{% call f(1) %}{% endcall %}"),
            "error: t: line 1: the template recurses too deeply");
}

TEST(JinjaLimits, SyntaxNestsOnlySoDeep) {
  for (const auto& [open, close] :
       {std::pair("(", ")"), std::pair("[", "]"), std::pair("{1:", "}"), std::pair("-", ""),
        std::pair("not ", ""), std::pair("f(", ")"), std::pair("x[", "]"),
        std::pair("1 if ", " else 0"), std::pair("1 if 1 else ", "")}) {
    EXPECT_THAT(render("{{ " + repeated(open, 2000) + "1" + repeated(close, 2000) + " }}"),
                HasSubstr("nested more than 200 deep"))
        << open;
  }
  for (const char* link : {" + 1", ".a", "[0]", "|e", " and 1", "()", " ** 1"}) {
    EXPECT_THAT(render("{{ 1" + repeated(link, 2000) + " }}"),
                HasSubstr("nested more than 200 deep"))
        << link;
  }
  EXPECT_THAT(render(repeated("{% if 1 %}", 2000)), HasSubstr("nested more than 200 deep"));
  EXPECT_THAT(render(repeated("{% for x in y %}", 2000)), HasSubstr("nested more than 200 deep"));
  // Wide is not deep.
  EXPECT_EQ(render("{{ " + repeated("'a' ~ ", 5000) + "'' }}").size(), 5000);
  EXPECT_EQ(render("{% if 0 %}" + repeated("{% elif 0 %}", 5000) + "{% endif %}"), "");
}

TEST(JinjaLimits, GigabytesAreNotBuilt) {
  constexpr const char* kBytes = "the template builds more than 33554432 bytes of values";
  for (const char* source : {
           "{{ 'a' * 10000000000 }}",
           "{{ 10000000000 * [1] }}",
           "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}"
           "{% endfor %}",
           "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}"
           "{% endfor %}",
           "{{ ('a' * 100000)|replace('a', 'b' * 100000) }}",
           "{{ ('a' * 100000).join(['b'] * 100000) }}",
           "{{ 'a'.ljust(10 ** 20) }}",
           "{{ 'a'|center(10 ** 20) }}",
           "{{ ('a\\n' * 100000)|indent(100000) }}",
           "{{ '%1000000000000d' % 1 }}",
           "{{ '{:1000000000000}'.format(1) }}",
           "{{ ('\\t' * 100000).expandtabs(100000) }}",
           "{{ [1]|batch(10 ** 12, 0)|list }}",
           "{% set ns = namespace(x=[1]) %}{% for i in range(150) %}{% set ns.x = [ns.x, ns.x] %}"
           "{% endfor %}{{ ns.x }}",
       }) {
    EXPECT_THAT(render_limited(source),
                testing::AnyOf(HasSubstr(kBytes), HasSubstr("more than 500000 steps")))
        << source;
  }
  EXPECT_THAT(render_limited("{% for i in range(99) %}{{ 'a' * 1000000 }}{% endfor %}"),
              HasSubstr("the template prints more than 4194304 bytes"));
  EXPECT_THAT(render_limited("{% set ns = namespace(x=[]) %}{% for i in range(999) %}"
                             "{% set ns.x = [ns.x] %}{% endfor %}"),
              HasSubstr("values are nested more than 200 deep"));
}

// Each of these is exponential or quadratic in its length if nobody counts.
TEST(JinjaLimits, WorkOnLargeValuesIsCounted) {
  const std::string pair =
      "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(150) %}"
      "{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}";
  for (const char* use :
       {"{{ ns.a == ns.b }}", "{{ ns.a < ns.b }}", "{{ ns.a in [ns.b] }}", "{{ ns.a|tojson }}",
        "{{ ns.a|string }}", "{{ ns.a|pprint }}", "{{ [ns.a, ns.b]|unique|list }}",
        "{{ [ns.a, ns.b]|sort }}", "{{ [ns.a, ns.b]|min }}", "{{ [ns.a].index(ns.b) }}",
        "{{ 'x' ~ ns.a }}", "{% for x in [1] %}{{ loop.changed(ns.a) }}{% endfor %}"}) {
    EXPECT_THAT(render_limited(pair + use),
                testing::AnyOf(HasSubstr("more than 500000 steps"), HasSubstr("bytes of values")))
        << use;
  }
  EXPECT_THAT(
      render_limited("{% set s = 'a' * 10000000 %}{% for i in range(100000) %}{{ s.find('b') }}"
                     "{{ s == s }}{{ 'b' in s }}{% endfor %}"),
      HasSubstr("more than 500000 steps"));
}

TEST(JinjaLimits, WhatHoldsItselfIsLetGo) {  // leaks are the sanitizer's to find
  EXPECT_EQ(render("{% set ns = namespace() %}{% set ns.me = ns %}{% macro f() %}{{ ns }}"
                   "{% endmacro %}{% set ns.f = f %}{% set ns.l = [ns, f] %}"
                   "{% for x in [1] recursive %}{% set ns.loop = loop %}{% set ns.m = loop.cycle %}"
                   "{% endfor %}{{ ns.me.me.f.name }}"),
            "f");
}

TEST(JinjaLimits, TheSandboxHoldsItsDoors) {
  // As in Jinja, what may not be touched is undefined: it prints as nothing.
  EXPECT_EQ(render("{{ ''.__class__ }}{{ ''|attr('__class__') }}{{ '{0.__class__}'.format('') }}"),
            "");
  EXPECT_THAT(render("{{ ''['__class__'].__mro__ }}"), HasSubstr("is unsafe"));
  EXPECT_THAT(render("{{ [].append(1) }}"), HasSubstr("is unsafe"));
  EXPECT_THAT(render("{% set self.x = 1 %}"), HasSubstr("non-namespace"));
}

// Of Jinja's language, a chat template has no other templates, and no filters that make HTML or
// wrap lines: none that models ship uses them.
TEST(Jinja, WhatIsNotSupportedIsSaidInOneLine) {
  for (const auto& [source, name] :
       {std::pair("{% include 'x' %}", "include"), std::pair("{% extends 'x' %}", "extends"),
        std::pair("{% import 'x' as y %}", "import"),
        std::pair("{% from 'x' import y %}", "from")}) {
    EXPECT_EQ(render(std::string("\n") + source),
              std::string("error: t: line 2: the tag '") + name +
                  "' takes from another template, but there is only one");
  }
  EXPECT_EQ(render("{% trans %}x{% endtrans %}"),
            "error: t: line 1: Encountered unknown tag 'trans'.");
  for (const char* name : {"urlize", "wordwrap", "xmlattr"}) {
    EXPECT_EQ(render(std::string("a\n{{ 'x' | ") + name + " }}"),
              std::string("error: t: line 2: No filter named '") + name + "'.");
  }
  // As in Jinja, one that a condition skips does no harm, and one that it does not skip does.
  EXPECT_EQ(render("{% if x is defined %}{{ x | urlize }}{% endif %}a"), "a");
  EXPECT_EQ(render("{% if true %}\n{{ 'x' | urlize }}{% endif %}"),
            "error: t: line 2: No filter named 'urlize' found.");
  EXPECT_EQ(render("{{ 1 is nope }}"), "error: t: line 1: No test named 'nope'.");
}

TEST(Jinja, AnyBytesAreATemplate) {
  EXPECT_EQ(render("\xff{{ '\xfe\xc3' }}\xe6"), "\xff\xfe\xc3\xe6");
  EXPECT_EQ(render("{{ '\xff\xc3'|upper }}{{ 'a\xffz'[1] }}{{ 'a\xff'|length }}"),
            "\xff\xc3\xff\x32");
  EXPECT_EQ(render(std::string("a\0b", 3)), std::string("a\0b", 3));
}

TEST(Jinja, JsonIsReadInOrderAndWithinBounds) {
  EXPECT_EQ(render("{{ x }}", R"({"x": {"b": 1, "a": {"z": null, "y": [true, 1.5, -3]}, "b": 2}})"),
            "{'b': 2, 'a': {'z': None, 'y': [True, 1.5, -3]}}");
  EXPECT_FALSE(parse_json(repeated("[", 1000), Origin::kMessage, "j"));
  EXPECT_FALSE(parse_json("{\"a\": 1", Origin::kMessage, "j"));
  EXPECT_FALSE(parse_json("\"\xff\"", Origin::kMessage, "j"));
  EXPECT_EQ(parse_json("[1,]", Origin::kMessage, "j").error().message, "j: not JSON at byte 4");
}

// ---- origins

std::string marked(const std::string& source, const std::string& json) {
  const auto text = render_with(source, variables(json));
  if (!text) return text.error().message;
  std::string result;
  for (const MarkedPart& part : text->parts()) {
    result += part.origin == Origin::kMessage ? "[" + std::string(part.text) + "]"
                                              : std::string(part.text);
  }
  return result;
}

TEST(JinjaOrigins, EveryByteKnowsWhereItCameFrom) {
  const auto of = [](const std::string& expression) {
    return marked("{{ " + expression + " }}", R"({"x": "user", "n": 7, "l": ["a", "b"]})");
  };
  EXPECT_EQ(of("'<' + x + '>'"), "<[user]>");
  EXPECT_EQ(of("'<' ~ x|upper ~ n ~ '>'"), "<[USER]7>");
  EXPECT_EQ(of("('ab' + x)[::-1]"), "[resu]ba");
  EXPECT_EQ(of("('ab' + x)|replace('u', '-')"), "ab-[ser]");
  EXPECT_EQ(of("('ab' + x)|replace('b', x)"), "a[useruser]");
  EXPECT_EQ(of("'-'.join(l)"), "[a]-[b]");
  EXPECT_EQ(of("x.join(['1', '2'])"), "1[user]2");
  EXPECT_EQ(of("{'k': x, x: 1}|tojson"), R"({"k": "[user]", "[user]": 1})");
  EXPECT_EQ(of("l"), "['[a]', '[b]']");
  EXPECT_EQ(of("'%s: %s' % ('t', x)"), "t: [user]");
  EXPECT_EQ(of("'{} {}'.format('t', x)"), "t [user]");
  EXPECT_EQ(of("x.format('t')"), "[user]");
  EXPECT_EQ(of("(x ~ ' t').split()|join('|')"), "[user]|t");
  EXPECT_EQ(of("('  ' ~ x ~ ' ').strip() ~ '.'"), "[user].");
  EXPECT_EQ(of("(x ~ 'é')|title"), "[User]é");
  EXPECT_EQ(of("x.ljust(6, '.')"), "[user]..");
  EXPECT_EQ(of("x|string|list|last"), "[r]");
  EXPECT_EQ(of("x == 'user' and 'equal'"), "equal");
  EXPECT_EQ(of("strftime_now(x)"), "[user]");
  EXPECT_EQ(marked("{% set y %}a{{ x }}{% endset %}{% filter upper %}{{ y }}b{% endfilter %}",
                   R"({"x": "u"})"),
            "A[U]B");
  EXPECT_EQ(marked("{% macro m(t) %}<{{ t }}{{ caller() }}>{% endmacro %}"
                   "{% call m(x) %}c{{ x }}{% endcall %}",
                   R"({"x": "u"})"),
            "<[u]c[u]>");
}

}  // namespace
}  // namespace espalier::text::jinja
