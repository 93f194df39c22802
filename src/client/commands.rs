//! Commands with files of their own.
//!
//! | file | holds |
//! |---|---|
//! | `schedule` | `punctual schedule` |
//! | `pop` | `punctual pop`: takes tasks, and runs a command for each |
//! | `apply` | `punctual schedule apply`: the schedules of a file |

pub mod apply;
pub mod pop;
pub mod schedule;
