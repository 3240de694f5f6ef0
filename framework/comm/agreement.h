// An error on one rank becomes the same error on all, so that none waits for another.
#pragma once

#include <functional>

#include "framework/comm/communicator.h"

namespace keel::comm {

// Every rank runs f; then all throw the error of the lowest rank that failed, with its kind. Collective.
void together(Communicator& group, const std::function<void()>& f);
// Rank 0 alone runs f, and all throw its error. Collective.
void on_rank_0(Communicator& group, const std::function<void()>& f);
// What rank 0 sees. Collective.
bool rank_0_sees(Communicator& group, const std::function<bool()>& f);
// What f throws, with the number of this rank before it and `advice` behind it: for what ranks may see differently.
void naming_rank(const Communicator& group, const std::string& advice, const std::function<void()>& f);

// What the exception that is being handled says to the user.
std::string text_of_exception();

}  // namespace keel::comm
