// Signals that end a run: the first one asks for a save and an orderly end (exit 4), a second one does not wait for it.
#pragma once

namespace keel {

// SIGINT, SIGTERM and SIGUSR1 end the run at hand, saved; runs begun later see it too.
void catch_signals();
bool signal_came();

}  // namespace keel
