//! Every answer that is not a success: the problems, their types, their pages, and the type of each
//! refusal.

pub mod pages;
pub mod problem;
pub mod problem_type;
pub mod refusal;
