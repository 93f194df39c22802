//! Commands with files of their own.
//!
//! | file | holds |
//! |---|---|
//! | `schedule` | `punctual schedule` |
//! | `apply` | `punctual schedule apply`: the schedules of a file |

pub mod apply;
pub mod schedule;
