#include "file/gguf.h"
