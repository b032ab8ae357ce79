#include "program.h"

namespace allmetal {

bool Program::add(const char* name, const Word* arguments, int num_arguments) {
  for (const Function* each = functions_; each->name; each++) {
    if (std::strcmp(each->name, name) != 0) continue;
    if (each->num_arguments != num_arguments) return false;
    calls_.push_back({each, arguments_.size()});
    arguments_.insert(arguments_.end(), arguments, arguments + num_arguments);
    return true;
  }
  return false;
}

void Program::run() const {
  for (const Call& call : calls_) call.function->call(arguments_.data() + call.first);
}

}  // namespace allmetal
