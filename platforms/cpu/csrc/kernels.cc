// All kernels for one instruction set.  The build compiles this file once for each, with AM_ISA
// naming it.
#include "kernels.h"

#include "arithmetic.h"
#include "attention.h"
#include "elementwise.h"
#include "experts.h"
#include "linear.h"
#include "panel_linear.h"
#include "sampling.h"

#define AM_STRING_(x) #x
#define AM_STRING(x) AM_STRING_(x)
#define AM_JOIN_(a, b) a##b
#define AM_JOIN(a, b) AM_JOIN_(a, b)
#define AM_TYPED(T) \
  {AM_ISA::linear<T>,    AM_ISA::linear_int8<T>,     AM_ISA::linear_blocks<T>, \
   AM_ISA::attention<T>, AM_ISA::attention_input<T>, AM_ISA::rms_norm<T>,      \
   AM_ISA::gated_activation<T>, AM_ISA::moe<T>, AM_ISA::add<T>, AM_ISA::scale<T>}

namespace allmetal {

extern const Kernels AM_JOIN(AM_ISA, _kernels) = {
    AM_STRING(AM_ISA),
    AM_TYPED(uint16_t),
    AM_TYPED(float),
    AM_ISA::sampling,
    AM_ISA::panel_bytes,
    AM_ISA::pack_panels,
    AM_ISA::linear_panels,
    AM_ISA::convert<float, uint16_t>,
    AM_ISA::convert<uint16_t, float>,
};

}  // namespace allmetal
