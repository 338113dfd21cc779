// Qwen2 and Qwen2.5: a Llama with biases of query, key and value. Yang et al. (2024).
#include "model/qwen.h"

namespace espalier::model {

const Architecture kQwen2 = {
    .name = "qwen2", .model_types = {"qwen2", "qwen2_vl", "qwen2_5_vl"}, .configure = read_qwen};

}  // namespace espalier::model
