//! Every answer that is no success: the problems, their types, their pages, and which refusal is
//! which.

pub mod pages;
pub mod problem;
pub mod problem_type;
pub mod refusal;
