"""Running a user's model without changing it: private copies, calls and hooks, deferred checks, changes."""
