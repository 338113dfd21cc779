// What one layer remembers of earlier rows: keys and values, or the state of a recurrence. The
// other is empty.
#pragma once

#include "compute/kv_view.h"
#include "compute/recurrent_view.h"

namespace espalier::compute {

struct LayerState {
  KvView kv;
  RecurrentView recurrent;
};

}  // namespace espalier::compute
