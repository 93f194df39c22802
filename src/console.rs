//! The console: HTML pages for operators of a cluster and for owners of topics.
//!
//! The pages are made of the answers of the REST API, in JSON, so a page shows no more than the
//! reader may ask for. `api::server::console` serves the pages, and makes the calls of the API.
//! Each file is a page or a group of pages; `frame` is around every page, and `action` has the
//! changing calls. Nothing here does input or output.
//!
//! Every page works without a script. The script only refreshes a visible page.

pub mod action;
pub mod ahead;
pub mod assets;
pub mod dead;
pub mod format;
pub mod frame;
pub mod inbound;
pub mod now;
pub mod rates;
pub mod schedules;
pub mod tasks;
pub mod topics;
