//! The `tasklane` binary.

fn main() {}
