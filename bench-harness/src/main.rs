//! Entry point of `odradek-bench`.

fn main() {}
