//! One suite for each port; see the module of each.
