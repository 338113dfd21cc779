// The list of all kernels: included where ESPALIER_ENTRY(name, Args, Memory, body) says what
// becomes of each, as often as needed.

// clang-format off
ESPALIER_ENTRY(rms_norm, RmsNormArguments, RmsNormMemory, rms_norm)
ESPALIER_ENTRY(rope, RopeArguments, NoMemory, rope)
ESPALIER_ENTRY(gate_silu, GateArguments, NoMemory, gate<Silu>)
ESPALIER_ENTRY(gate_gelu_tanh, GateArguments, NoMemory, gate<GeluTanh>)
ESPALIER_ENTRY(gate_sigmoid, GateArguments, NoMemory, gate<Sigmoid>)
ESPALIER_ENTRY(gate_clamped_swiglu, GateArguments, NoMemory, gate<ClampedSwiglu>)
ESPALIER_ENTRY(add, UnaryArguments, NoMemory, add)
ESPALIER_ENTRY(scale, UnaryArguments, NoMemory, scale)
ESPALIER_ENTRY(softcap, UnaryArguments, NoMemory, softcap)
ESPALIER_ENTRY(top_k, TopKArguments, TopKMemory, top_k)
ESPALIER_ENTRY(softmax, SoftmaxArguments, SoftmaxMemory, softmax)
ESPALIER_ENTRY(route_softmax, RouteArguments, NoMemory, route<SoftmaxScores>)
ESPALIER_ENTRY(route_sigmoid, RouteArguments, NoMemory, route<SigmoidScores>)
ESPALIER_ENTRY(exl3_prepare, RotateArguments, HadamardMemory<kHadamardRun>, exl3_prepare)
ESPALIER_ENTRY(exl3_finish, RotateArguments, HadamardMemory<kHadamardRun>, exl3_finish)
ESPALIER_ENTRY(embed_exl3_emb, EmbedArguments, HadamardMemory<kRing>, embed_exl3)
ESPALIER_ENTRY(attention_chunk_f32_64, AttentionArguments<float>, AttentionMemory<64>, attention_chunk<float, 64>)
ESPALIER_ENTRY(attention_chunk_f32_128, AttentionArguments<float>, AttentionMemory<128>, attention_chunk<float, 128>)
ESPALIER_ENTRY(attention_chunk_f32_256, AttentionArguments<float>, AttentionMemory<256>, attention_chunk<float, 256>)
ESPALIER_ENTRY(attention_chunk_f32_512, AttentionArguments<float>, AttentionMemory<512>, attention_chunk<float, 512>)
ESPALIER_ENTRY(attention_chunk_f16_64, AttentionArguments<uint16_t>, AttentionMemory<64>, attention_chunk<uint16_t, 64>)
ESPALIER_ENTRY(attention_chunk_f16_128, AttentionArguments<uint16_t>, AttentionMemory<128>, attention_chunk<uint16_t, 128>)
ESPALIER_ENTRY(attention_chunk_f16_256, AttentionArguments<uint16_t>, AttentionMemory<256>, attention_chunk<uint16_t, 256>)
ESPALIER_ENTRY(attention_chunk_f16_512, AttentionArguments<uint16_t>, AttentionMemory<512>, attention_chunk<uint16_t, 512>)
ESPALIER_ENTRY(attention_merge, AttentionMergeArguments, NoMemory, attention_merge)
ESPALIER_ENTRY(causal_convolution, ConvolutionArguments, NoMemory, causal_convolution)
ESPALIER_ENTRY(delta_step, DeltaArguments, DeltaMemory, delta_step)
// clang-format on

// For each format project_ and embed_ with the name that formats.h gives it.
#define ESPALIER_PROJECT(name, ...) \
  ESPALIER_ENTRY(project_##name, ProjectArguments, NoMemory, project<__VA_ARGS__>)
#define ESPALIER_EMBED(name, ...) \
  ESPALIER_ENTRY(embed_##name, EmbedArguments, NoMemory, embed<__VA_ARGS__>)
ESPALIER_FORMATS(ESPALIER_PROJECT)
ESPALIER_FORMATS(ESPALIER_EMBED)
#undef ESPALIER_PROJECT
#undef ESPALIER_EMBED
