#include "text/jinja/marked_text.h"

#include <algorithm>

namespace espalier::text::jinja {

std::size_t MarkedText::run_at(std::size_t i) const {
  const auto run = std::upper_bound(runs_.begin(), runs_.end(), i,
                                    [](std::size_t at, const Run& r) { return at < r.end; });
  return static_cast<std::size_t>(run - runs_.begin());
}

Origin MarkedText::origin(std::size_t i) const { return runs_[run_at(i)].origin; }

Origin MarkedText::weakest_origin() const {
  const bool any = std::any_of(runs_.begin(), runs_.end(),
                               [](const Run& run) { return run.origin == Origin::kMessage; });
  return any ? Origin::kMessage : Origin::kTemplate;
}

std::vector<MarkedPart> MarkedText::parts() const {
  std::vector<MarkedPart> parts;
  std::size_t begin = 0;
  for (const Run& run : runs_) {
    parts.push_back({std::string_view(bytes_).substr(begin, run.end - begin), run.origin});
    begin = run.end;
  }
  return parts;
}

void MarkedText::append(std::string_view bytes, Origin origin) {
  if (bytes.empty()) return;
  bytes_ += bytes;
  if (!runs_.empty() && runs_.back().origin == origin) {
    runs_.back().end = bytes_.size();
  } else {
    runs_.push_back({bytes_.size(), origin});
  }
}

void MarkedText::append(const MarkedText& other, std::size_t begin, std::size_t count) {
  const std::size_t end = begin + count;
  for (std::size_t run = other.run_at(begin); begin < end; ++run) {
    const std::size_t stop = std::min(end, other.runs_[run].end);
    append(std::string_view(other.bytes_).substr(begin, stop - begin), other.runs_[run].origin);
    begin = stop;
  }
}

MarkedText MarkedText::substr(std::size_t begin, std::size_t count) const {
  MarkedText part;
  part.append(*this, begin, count);
  return part;
}

}  // namespace espalier::text::jinja
