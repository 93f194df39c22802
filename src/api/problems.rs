//! Every answer other than a success: the problems, their types and pages, and the type of each
//! refusal.

pub mod pages;
pub mod problem;
pub mod problem_type;
pub mod refusal;
