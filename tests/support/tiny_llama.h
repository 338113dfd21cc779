// A complete Llama of random weights as a GGUF file, small enough for any test, with a byte-level
// vocabulary of 300 tokens: every byte, some pairs of letters, and control tokens.
#pragma once

#include "support/gguf_builder.h"

namespace espalier::test {

struct TinyLlama {
  std::uint32_t layers = 2, hidden = 32, mlp_hidden = 64, heads = 4, kv_heads = 2, context = 128;
  std::uint32_t tokens = 300;  // of the vocabulary
  std::uint32_t rows = 300;    // of the embedding
  std::string pre = "gpt-2";   // what cuts texts into words
  // Of the matrices, in turn; empty: all F32.
  std::vector<std::string> formats = {};
};

// Metadata, vocabulary and F32 tensors. Add or change what a test is about.
GgufBuilder tiny_llama(const TinyLlama& shape = {});

// The metadata and the tensors alone, for tests that leave a part out.
void add_tiny_llama_metadata(GgufBuilder& file, const TinyLlama& shape);
void add_tiny_llama_vocabulary(GgufBuilder& file, const TinyLlama& shape);
void add_tiny_llama_tensors(GgufBuilder& file, const TinyLlama& shape);

}  // namespace espalier::test
