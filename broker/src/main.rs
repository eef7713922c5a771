//! Entry point of `odradek`.

fn main() {}
