// Memory for the intermediate results of a forward pass: taken in order, given back together, so
// that a pass of a size seen before allocates nothing.
#pragma once

#include <cstddef>
#include <memory>
#include <type_traits>
#include <vector>

namespace espalier::compute {

class Workspace {
 public:
  // Marks a place; what was taken since is free again when the frame ends. Frames nest.
  class Frame {
   public:
    explicit Frame(Workspace& workspace)
        : workspace_(workspace), chunk_(workspace.chunk_), used_(workspace.used_) {}
    ~Frame() {
      workspace_.chunk_ = chunk_;
      workspace_.used_ = used_;
    }
    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;

   private:
    Workspace& workspace_;
    std::size_t chunk_, used_;
  };

  // `count` floats, aligned to 64 bytes, not initialized; theirs until the current frame ends.
  float* floats(std::size_t count);

  // The same for `count` Ts.
  template <typename T>
  T* take(std::size_t count) {
    static_assert(alignof(T) <= 64 && std::is_trivially_destructible_v<T>);
    return reinterpret_cast<T*>(floats((count * sizeof(T) + sizeof(float) - 1) / sizeof(float)));
  }

 private:
  struct AlignedDelete {
    void operator()(float* memory) const;
  };
  struct Chunk {
    std::unique_ptr<float, AlignedDelete> memory;
    std::size_t size;  // in floats
  };

  std::vector<Chunk> chunks_;
  std::size_t chunk_ = 0;  // the chunk that is being filled
  std::size_t used_ = 0;   // floats of it that are taken
};

}  // namespace espalier::compute
