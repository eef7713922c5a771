//! Consumer groups as load: members that join, beat and leave, and commits of offsets on a schedule. The members' side of
//! the classic protocol is here, assignment included; a broker is known by its answers alone. `commands::groups` calls it.
//!
//! Reading order: `assignment` (what members tell each other), `member` (one of them), `paused` (what a rebalance costs),
//! `pace` (the schedule), `lines` (sockets), `fleet` (members that form groups), `steady` (requests on a schedule), `load`
//! (which requests), `asked` (what is asked once, before and after).

pub mod asked;
pub mod assignment;
pub mod fleet;
pub mod lines;
pub mod load;
pub mod member;
pub mod pace;
pub mod paused;
pub mod steady;
