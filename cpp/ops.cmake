# THE lists of ops, one stem each. The build, the tests and tests/python/test_architecture.py read
# them: a stem names a file in every layer. An op whose back end is another's with one more array
# is in the first list alone.
set(
  MEMBOUND_OPS
  rms_norm
  add_rms_norm
  rms_norm_backward
  add_rms_norm_backward
  layer_norm
  add_layer_norm
  layer_norm_backward
  add_layer_norm_backward
  rms_norm_gated
  rms_norm_gated_backward
  rms_norm_quant
  add_rms_norm_quant
  gated_activation
  gated_activation_backward
  rope
  rope_backward
  embedding
  embedding_backward
)
set(
  MEMBOUND_BACK_ENDS
  rms_norm
  rms_norm_backward
  rms_norm_quant
  gated_activation
  gated_activation_backward
  rope
  embedding
  embedding_backward
)
